/*
 * Hand-on: a process gives the lock up and takes a new place for its next waiter, in
 * one transaction, up to twice. A foreign waiter comes in between. Requests are lost,
 * late and applied twice; the session expires, or a recovery ends it.
 *
 * Code: coordinator/handon.go, depart.go.
 */

/* ---- the steps, each with what stands there without it ---- */

/* Step H1: the old key is compared by its create revision. */
#ifdef NO_H1
#define H1 true
#else
#define H1 (create[i] == cmp[i])
#endif

/* Step H2: the session key must be the session's own. */
#ifdef NO_H2
#define H2 true
#else
#define H2 (session)
#endif

/* Step H3: the new key must not exist yet. (Step H1 already sees to that, as long as
   no name is used twice.) */
#ifdef NO_H3
#define H3 true
#else
#define H3 (create[i + 1] == 0)
#endif

/* Step H4: to settle, the old key is deleted, after which no copy can apply. Without
   it, a look whether the new key is there has to do. */
#ifdef NO_H4
#define H4 false
#else
#define H4 true
#endif

/* Step H5: a new key that is found then is adopted. */
#ifdef NO_H5
#define H5 false
#else
#define H5 true
#endif

#ifndef LOSSES
#define LOSSES 2
#endif

/* ---- what etcd holds ---- */

#define FOREIGN 3              /* keys 0 to 2 are the process's */
#define KEYS 4

byte rev = 1, epoch;
bool lease = true;
bool session = true;           /* the session key is there: it is never put anew here */
byte create[KEYS] = 0;

#define BEHIND(k, o) (create[o] != 0 && create[o] < create[k])
#define FIRST(k) (create[k] != 0 && !BEHIND(k, 0) && !BEHIND(k, 1) && !BEHIND(k, 2) && !BEHIND(k, 3))

/* ---- what is under way: hand-ons from key i to key i + 1 ---- */

byte copies[2], cmp[2];
mtype = { none, applied, other };
mtype answer = none;
byte answerNew;
bool answerOwner, answerSession;
bool awaited;                  /* the answer to the hand-on from key `from` */
byte from;

/* ---- what is believed ---- */

bool trusted = true;
bool known[KEYS], held[KEYS];
byte heldEpoch[KEYS];
bool waiting, waitingToo;      /* the process, the foreign waiter */
byte top;                      /* the largest token that was ever returned */
byte before[KEYS];             /* what it was when the waiter came */
bool came[KEYS];
int  returned[2];              /* the tokens of each epoch, a bit for each revision */

/* ---- the properties ---- */

bool bad_holder, bad_order, bad_orphan, bad_waiter;

ltl one_holder      { [] !bad_holder }
ltl tokens_rise     { [] !bad_order }
ltl no_orphan_key   { [] !bad_orphan }
ltl waiters_granted { [] !bad_waiter }

#define TOKEN(e, r) ((e) * 32 + (r))
#define CLASH(k, e) (held[k] && heldEpoch[k] == e)

inline grant(k, e, r) {
	d_step {
		bad_holder = bad_holder || (returned[e] & (1 << (r))) || CLASH(0, e) || CLASH(1, e) || CLASH(2, e) || CLASH(3, e);
		bad_order = bad_order || TOKEN(e, r) <= before[k];
		returned[e] = returned[e] | (1 << (r));
		held[k] = true; heldEpoch[k] = e;
		top = (TOKEN(e, r) > top -> TOKEN(e, r) : top)
	}
}

/* ---- etcd ---- */

inline apply(i) {
	copies[i]--;
	if
	:: lease && H1 && H2 && H3 ->
		rev++;
		create[i] = 0;
		create[i + 1] = (create[i + 1] == 0 -> rev : create[i + 1]);
		ok = true
	:: else -> ok = false
	fi;
	if
	:: awaited && from == i ->
		answer = (ok -> applied : other);
		answerNew = create[i + 1];
		answerOwner = FIRST(i + 1);
		answerSession = session;
		awaited = false
	:: awaited && from == i && copies[i] > 0   /* this answer is lost */
	:: !awaited || from != i
	fi;
	ok = false
}

#define LOST(i) (copies[i] > 1 || copies[i] == 1 && !(awaited && from == i))

active proctype etcd() {
	bool ok;
end:
	do
	:: atomic { copies[0] > 0 -> apply(0) }
	:: atomic { copies[1] > 0 -> apply(1) }
	:: atomic { LOST(0) -> copies[0]-- }
	:: atomic { LOST(1) -> copies[1]-- }
	od
}

inline deafen() {
	awaited = false; answer = none; answerNew = 0; answerOwner = false; answerSession = false
}

/* ---- the process: it holds the lock to begin with ---- */

proctype process() {
	byte key, token = rev, losses = LOSSES;
	bool shown;                /* a recent answer showed the key */

holding:
	atomic {
		if
		:: held[key] -> held[key] = false
		:: !trusted || !lease -> goto over
		fi }
	/* Somebody waits here, or nobody does. */
	if
	:: atomic { key < 2 && came[key + 1] ->
		from = key; cmp[key] = token; known[key + 1] = true; awaited = true;
		if
		:: copies[key] = 1
		:: copies[key] = 2
		fi }
	:: atomic { key == 2 || !came[key + 1] -> goto leave }
	fi;
	if
	:: atomic { answer == applied -> known[key] = false; token = answerNew; key++;
		if
		:: answerOwner -> deafen(); goto got
		:: else -> shown = true; deafen(); goto wait
		fi }
	:: atomic { answer == other && !answerSession -> goto over }
	:: atomic { answer == other && answerSession && answerNew != 0 ->   /* an earlier copy was applied */
		known[key] = false; token = answerNew; key++; deafen(); goto wait }
	:: atomic { answer == other && answerSession && answerNew == 0 ->   /* somebody took the old key away */
		known[key] = false; known[key + 1] = false; deafen(); goto done }
	:: atomic { answer == none && losses > 0 -> losses--; deafen(); goto unclear }
	:: atomic { !trusted || !lease -> goto over }
	fi;

unclear:
	atomic {
		if
		:: H4 && create[key] == token -> rev++; create[key] = 0; answerNew = 0
		:: else -> answerNew = create[key + 1]
		fi;
		if
		:: losses > 0 -> losses--; answerNew = 0; goto unclear           /* no answer */
		:: true
		fi;
		if
		:: !trusted || !lease -> goto over
		:: else
		fi;
		known[key] = false;
		if
		:: H5 && answerNew != 0 -> token = answerNew; key++; answerNew = 0; goto wait
		:: else -> known[key + 1] = false; answerNew = 0; goto done      /* the next waiter starts afresh */
		fi }

wait:   /* Events alone decide, soon after an answer that showed the key (step N1, see
           wait.pml), or else one read, which looks at the session key too. */
	waiting = true;
	atomic {
		if
		:: create[key] == token && FIRST(key) && (shown || session) -> waiting = false; shown = false
		:: create[key] != token || !session || !trusted || !lease -> waiting = false; goto over
		fi }
got:
	atomic {
		if
		:: trusted -> grant(key, 0, token); goto holding
		:: else -> goto over
		fi }

leave:
	atomic {
		if
		:: create[key] == token -> rev++; create[key] = 0
		:: else
		fi;
		known[key] = false; goto done }
over:
	atomic { known[0] = false; known[1] = false; known[2] = false; held[key] = false; deafen() }
done:
	skip
}

/* Its waiters come at any time. */
proctype waiters() {
	if
	:: atomic { before[1] = top; came[1] = true }
	:: true -> goto none_comes
	fi;
	if
	:: atomic { before[2] = top; came[2] = true }
	:: true
	fi;
none_comes:
	skip
}

proctype foreign() {
	byte token, mine;
	atomic { before[FOREIGN] = top; rev++; create[FOREIGN] = rev; token = rev; mine = epoch; known[FOREIGN] = true; waitingToo = true }
	atomic {
		if
		:: FIRST(FOREIGN) -> waitingToo = false; grant(FOREIGN, mine, token)
		:: create[FOREIGN] == 0 -> waitingToo = false; goto done
		fi }
	atomic { held[FOREIGN] = false; rev++; create[FOREIGN] = 0 }
done:
	known[FOREIGN] = false
}

proctype ends() {
	byte recovered;
	if
	:: true -> goto stays
	:: atomic { trusted = false; held[0] = false; held[1] = false; held[2] = false }   /* it expires */
	:: atomic { epoch = 1; rev++; recovered = rev; session = false }                    /* a recovery: first step */;
		/* The second. */
		d_step { rev++; create[0] = 0; create[1] = 0; create[2] = 0;
			if
			:: create[FOREIGN] < recovered -> create[FOREIGN] = 0
			:: else
			fi }
	fi;
	d_step { rev++; lease = false; session = false; create[0] = 0; create[1] = 0; create[2] = 0 }
stays:
	skip
}

init {
	atomic {
		create[0] = 1; known[0] = true; grant(0, 0, 1);
		run process(); run waiters(); run foreign(); run ends()
	}
	/* When nothing more can happen. */
	atomic {
		timeout ->
		bad_orphan = (create[0] != 0 && !known[0]) || (create[1] != 0 && !known[1]) || (create[2] != 0 && !known[2]);
		bad_waiter = !bad_orphan && (waiting || waitingToo)
	}
}
