/*
 * Acquire, settle, adopt, release, and the end of a session.
 *
 * One process takes a lock twice, each time with a new key, on a network that loses
 * and delays its requests and answers and applies requests twice, while its session
 * can end. A neighbour, to whom nothing happens, takes the same lock once.
 *
 * Code: coordinator/entry.go, settle.go, depart.go, queue.go (deliver), session.go.
 * What is left out: README.md.
 */

/* ---- the steps, each with what stands there without it ---- */

/* Step A1: the lock key must not exist, so a second copy changes nothing. */
#ifdef NO_A1
#define A1 true
#else
#define A1 (create[k] == 0)
#endif

/* Step A2: the session key must be as the process knows it. */
#ifdef NO_A2
#define A2 true
#else
#define A2 (sesMod == c)
#endif

/* Step S1: the put of a settle moves the mod revision of the session key. */
#ifdef NO_S1
#define S1 skip
#else
#define S1 sesMod = rev
#endif

/* Step S3: a key for which a delete was ever sent is never adopted. */
#ifdef NO_S3
#define S3 true
#else
#define S3 (!deleted)
#endif

/* Step R1: the release of a slow acquire, of which a copy may be under way, moves
   the session key too. */
#ifdef NO_R1
#define R1 false
#else
#define R1 slow
#endif

/* Step G1: no handle whose trust window is closed. */
#ifdef NO_G1
#define G1 true
#else
#define G1 trusted
#endif

/* Step B1: a session that is over is buried: its lease is revoked, not renewed. */
#ifdef NO_B1
#define B1 false
#else
#define B1 true
#endif

/* ---- how much can go wrong ---- */

#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef DOUBLES
#define DOUBLES 1
#endif

/* ---- what etcd holds ---- */

#define KEYS  3                /* 0 and 1 are the process's, 2 is the neighbour's */
#define NEIGHBOUR 2

byte rev = 1;
byte sesCreate = 1;            /* of the session key: create and mod revision; 0: no key */
byte sesMod = 1;
bool lease = true;
byte create[KEYS];             /* of the lock keys: create revision; 0: no key */

/* First in the queue: no key has a smaller create revision. */
#define BEHIND(k, o) (create[o] != 0 && create[o] < create[k])
#define FIRST(k) (!BEHIND(k, 0) && !BEHIND(k, 1) && !BEHIND(k, 2))

/* ---- what is under way ---- */

mtype = { none, acquire, settle, adopt, release, bump,   /* requests */
          applied, other, refused };                     /* answers */

#define SLOTS 4

typedef request {
	mtype kind = none;
	byte key;
	byte cmp;                  /* the revision that it compares */
	byte copies;               /* still to be applied, or to be lost */
	bool awaited;              /* somebody still waits for the answer */
}
request net[SLOTS];

mtype answer = none;
byte answerOwn;                /* create revision of the lock key */
byte answerMod;                /* mod revision of the session key */

byte losses = LOSSES;          /* how often the process gives up waiting for an answer */
byte doubles = DOUBLES;        /* how often a proxy sends a request twice */

/* ---- what the process believes ---- */

bool trusted = true;           /* the trust window is open */
bool held[KEYS];               /* a handle is out that is neither released nor lost */
bool known[KEYS];              /* the key is on the list of keys */
bool waiting, waitingToo;      /* for the lock or an answer: the process, the neighbour */
byte top;                      /* the largest token that was ever returned */
int  returned;                 /* the tokens that were, one bit each */

/* ---- the properties ---- */

bool bad_holder, bad_order, bad_orphan, bad_waiter;

/* No two handles at a time, and none with a token that another one had. */
ltl one_holder      { [] !bad_holder }
/* A token is larger than all that were returned before its acquire began. */
ltl tokens_rise     { [] !bad_order }
/* In the end no key of a living lease is there that its process does not know. */
ltl no_orphan_key   { [] !bad_orphan }
/* In the end nobody waits, except behind such a key. */
ltl waiters_granted { [] !bad_waiter }

inline grant(k, token, before) {
	d_step {
		bad_holder = bad_holder || held[0] || held[1] || held[2] || (returned & (1 << token));
		bad_order = bad_order || token <= before;
		held[k] = true;
		returned = returned | (1 << token);
		top = (token > top -> token : top)
	}
}

/* ---- the network ---- */

inline post(what, k, c, n) {
	/* The first free slot, so that equal states look equal. */
	slot = 0;
	do
	:: net[slot].copies != 0 -> slot++; assert(slot < SLOTS)
	:: else -> break
	od;
	net[slot].kind = what;
	net[slot].key = k;
	net[slot].cmp = c;
	net[slot].copies = n;
	net[slot].awaited = true;
	slot = 0
}

/* Whatever still comes is thrown away. */
inline deafen() {
	net[0].awaited = false; net[1].awaited = false; net[2].awaited = false; net[3].awaited = false;
	answer = none; answerOwn = 0; answerMod = 0
}

inline reply(what, o, m) {
	kind = what; own = o; mod = m
}

inline used(i) {
	net[i].copies--;
	if
	:: net[i].copies == 0 -> net[i].kind = none; net[i].key = 0; net[i].cmp = 0; net[i].awaited = false
	:: else
	fi
}

/* ---- etcd: a transaction is applied as a whole ---- */

inline apply(i) {
	k = net[i].key;
	c = net[i].cmp;
	if
	:: net[i].kind == acquire ->
		if
		:: lease && A1 && A2 ->
			rev++;
			if
			:: create[k] == 0 -> create[k] = rev
			:: else
			fi;
			reply(applied, rev, c)
		:: else -> reply(other, create[k], sesMod)
		fi
	:: net[i].kind == settle || net[i].kind == adopt ->
		if
		:: sesCreate == c && lease ->   /* Step S2, see recovery.pml */
			rev++;
			S1;
			if
			:: net[i].kind == settle -> create[k] = 0
			:: else
			fi;
			reply(applied, create[k], sesMod)
		:: else -> reply(refused, 0, 0)
		fi
	:: net[i].kind == release || net[i].kind == bump ->
		if
		:: create[k] == c ->
			rev++;
			create[k] = 0;
			if
			:: net[i].kind == bump && sesCreate != 0 -> sesMod = rev   /* Step R2, see recovery.pml */
			:: else
			fi
		:: else
		fi;
		reply(applied, 0, sesMod)
	fi;
	if
	:: net[i].awaited -> answer = kind; answerOwn = own; answerMod = mod; net[i].awaited = false
	:: net[i].awaited && net[i].copies > 1   /* this answer is lost, that of the other copy may come */
	:: !net[i].awaited
	fi;
	used(i);
	kind = none; k = 0; c = 0; own = 0; mod = 0
}

/* A copy can be lost when nobody waits for it, or there is another. The process may
   give up waiting at any time, so it can as well do that first. */
#define LOST(i) (net[i].copies > 1 || net[i].copies == 1 && !net[i].awaited)

active proctype etcd() {
	mtype kind = none;
	byte k, c, own, mod;
end:
	do
	:: atomic { net[0].copies > 0 -> apply(0) }
	:: atomic { net[1].copies > 0 -> apply(1) }
	:: atomic { net[2].copies > 0 -> apply(2) }
	:: atomic { net[3].copies > 0 -> apply(3) }
	:: atomic { LOST(0) -> used(0) }
	:: atomic { LOST(1) -> used(1) }
	:: atomic { LOST(2) -> used(2) }
	:: atomic { LOST(3) -> used(3) }
	od
}

/* ---- the process ---- */

active proctype process() {
	byte key, token, before, slot, n;
	byte fence = sesMod;          /* m: what it believes the mod revision to be */
	bool slow, deleted;

round:
	atomic {
		token = 0; slow = false; deleted = false;
		known[key] = true;        /* before anything of it is sent */
		waiting = true;
		before = top
	}
enter:
	atomic {
		if
		:: n = 1
		:: doubles > 0 -> n = 2; doubles--; slow = true
		fi;
		post(acquire, key, fence, n);
		n = 0
	}
	if
	:: atomic { answer == applied -> token = answerOwn; deafen() }
	:: atomic { answer == other && answerOwn != 0 -> token = answerOwn; deafen() }   /* an earlier copy was applied */
	:: atomic { answer == other && answerOwn == 0 && answerMod == 0 -> goto over }
	:: atomic { answer == other && answerOwn == 0 && answerMod != 0 && answerMod != fence ->
		fence = answerMod; deafen(); goto enter }                                    /* a settle came between */
	:: atomic { answer == none && losses > 0 -> losses--; slow = true; deafen(); goto unclear }
	:: atomic { !trusted -> goto over }
	fi;
	goto wait;

unclear:
	atomic {
		if
		:: post(settle, key, 1, 1); deleted = true   /* nobody wants it any more */
		:: S3 -> post(adopt, key, 1, 1)
		fi
	}
	if
	:: atomic { answer == applied ->
		fence = (answerMod > fence -> answerMod : fence);
		token = answerOwn; deafen();
		if
		:: token == 0 -> goto gone
		:: else
		fi }
	:: atomic { answer == refused -> goto over }
	:: atomic { answer == none && losses > 0 -> losses--; deafen(); goto unclear }
	:: atomic { !trusted -> goto over }
	fi;

wait:   /* The wait itself is in handon.pml. Here one read decides, when it is time. */
	if
	:: create[key] == token && FIRST(key)
	:: atomic { create[key] != token || !trusted -> goto over }
	fi;
	/* The answer of the read is under way. */
	atomic {
		if
		:: G1 -> grant(key, token, before)
		:: !G1 -> goto over
		fi }

	atomic {
		if
		:: held[key] -> held[key] = false   /* to release it */
		:: !trusted -> goto over            /* it is lost */
		fi }
leave:
	atomic {
		if
		:: R1 -> post(bump, key, token, 1)
		:: !R1 -> post(release, key, token, 1)
		fi }
	if
	:: atomic { answer == applied -> fence = (answerMod > fence -> answerMod : fence); deafen() }
	:: atomic { answer == none && losses > 0 -> losses--; deafen(); goto leave }
	:: atomic { !trusted -> goto over }
	fi;
gone:
	atomic {
		known[key] = false;
		if
		:: key == 0 -> key = 1; goto round
		:: else -> goto done
		fi }

over:   /* The session is over, or the key was taken away: all is lost. */
	atomic { known[key] = false; held[key] = false; deafen() }
done:
	waiting = false
}

/* The session can end. The process's window closes before etcd ends the lease. */
active proctype expiry() {
	if
	:: true -> goto stays
	:: d_step { true -> trusted = false; held[0] = false; held[1] = false }
	fi;
	if
	:: d_step { B1 -> rev++; lease = false; sesCreate = 0; sesMod = 0; create[0] = 0; create[1] = 0 }
	:: !B1
	fi;
stays:
	skip
}

active proctype neighbour() {
	byte token, before;
	atomic { before = top; rev++; create[NEIGHBOUR] = rev; token = rev; known[NEIGHBOUR] = true; waitingToo = true }
	atomic { FIRST(NEIGHBOUR) -> waitingToo = false; grant(NEIGHBOUR, token, before) }
	atomic { held[NEIGHBOUR] = false; rev++; create[NEIGHBOUR] = 0; known[NEIGHBOUR] = false }
}

/* When nothing more can happen. */
active proctype finally() {
	atomic {
		timeout ->
		bad_orphan = (create[0] != 0 && !known[0]) || (create[1] != 0 && !known[1]);
		bad_waiter = !bad_orphan && (waiting || waitingToo)
	}
}
