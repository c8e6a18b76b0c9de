/*
 * Restores and recoveries: protocol as specified; the code has no recovery yet.
 *
 * etcd is restored from one snapshot, up to twice, and recovered each time before it
 * is opened again (the first step of the recovery; the others come while clients are
 * there). A process, whose requests can be lost and late, goes on with what it
 * believed before. A neighbour takes the lock now and then, each time with a session
 * that it opens for that.
 *
 * Code: coordinator/session.go (enrol), entry.go, settle.go, wait.go (readPlace).
 */

/* ---- the steps, each with what stands there without it ---- */

/* Step E1: a session key is created only under the epoch that was read. -DE1_MOD
   compares the mod revision of the epoch record, as the code does, and not what it
   says: after two restores of one snapshot two epochs can have one mod revision. */
#ifdef NO_E1
#define E1 true
#else
#ifdef E1_MOD
#define E1 (epochMod == seen)
#else
#define E1 (epoch == mine)
#endif
#endif

/* Step A2: an acquire compares the mod revision of the session key. */
#ifdef NO_A2
#define A2 true
#else
#define A2 (sesMod == fence)
#endif

/* Step S2: a settle puts the session key only if it is the session's own. */
#ifdef NO_S2
#define S2 true
#else
#define S2 (sesCreate == start)
#endif

/* Step R2: and so does the release of a slow acquire. */
#ifdef NO_R2
#define R2 true
#else
#define R2 (sesCreate == start)
#endif

/* Step P1: the epoch rises and the session keys go in one transaction. Without it, the
   session keys go first. */
#ifdef NO_P1
#define P1 false
#else
#define P1 true
#endif

/* Step P2: the new epoch is larger than those of all marks (or than the clock says),
   and not only than the recorded one. */
#ifdef NO_P2
#define P2 epoch
#else
#define P2 (epoch > marks -> epoch : marks)
#endif

/* ---- what etcd holds; a snapshot has all of it ---- */

#define KEYS 4                 /* 0 and 1 are the process's, the rest the neighbour's */

byte rev = 1, epoch, epochMod = 1;
byte sesCreate, sesMod;        /* of the process's session key; 0: no key */
bool lease;
byte create[KEYS];

byte oldRev, oldEpoch, oldEpochMod, oldCreate[KEYS];
bool oldLease;                 /* the session key goes at once, see recover */

#define BEHIND(k, o) (create[o] != 0 && create[o] < create[k])
#define FIRST(k) (create[k] != 0 && !BEHIND(k, 0) && !BEHIND(k, 1) && !BEHIND(k, 2) && !BEHIND(k, 3))

/* ---- what is believed ---- */

byte marks;                    /* the largest epoch of a token that was returned */
short top;                     /* the largest token */
int returned[4];               /* the tokens, a bit for each revision of an epoch */
bool held[KEYS];
byte heldEpoch[KEYS];

/* ---- the properties ---- */

bool bad_holder, bad_order;

/* No token is returned twice, and no two handles of one epoch are there at a time. */
ltl one_holder  { [] !bad_holder }
/* A token is larger than all that were returned before its acquire began. */
ltl tokens_rise { [] !bad_order }

#define TOKEN(e, r) ((e) * 32 + (r))
#define CLASH(k, e) (held[k] && heldEpoch[k] == e)

inline grant(k, e, r, before) {
	bad_holder = bad_holder || (returned[e] & (1 << (r))) || CLASH(0, e) || CLASH(1, e) || CLASH(2, e) || CLASH(3, e);
	bad_order = bad_order || TOKEN(e, r) <= before;
	returned[e] = returned[e] | (1 << (r));
	held[k] = true; heldEpoch[k] = e;
	top = (TOKEN(e, r) > top -> TOKEN(e, r) : top);
	marks = (e > marks -> e : marks)
}

inline letGo(k) { held[k] = false; heldEpoch[k] = 0 }

active proctype process() {
	byte key, mine, seen, start, fence, token, losses = 1;
	short before;
	bool slow;

open:
	atomic { mine = epoch; seen = epochMod }
	lease = true;
	atomic {
		if
		:: E1 -> rev++; sesCreate = rev; sesMod = rev; start = rev; fence = rev
		:: else -> lease = false; mine = 0; seen = 0; goto open
		fi }
round:
	atomic { before = top; slow = false; token = 0 }
enter:
	/* The request is under way. */
	atomic {
		if
		:: lease && A2 && create[key] == 0 -> rev++; create[key] = rev; token = rev
		:: lease && A2 && create[key] != 0 -> token = create[key]
		:: lease && !A2 && sesCreate == start && create[key] != 0 -> token = create[key]
		:: lease && !A2 && sesCreate == start && create[key] == 0 -> fence = sesMod; goto enter
		:: !lease || !A2 && sesCreate != start -> goto over
		fi;
		if
		:: true
		:: losses > 0 -> losses--; token = 0; slow = true; goto unclear
		fi }
	goto wait;
unclear:
	atomic {                   /* it is settled: by a delete, or to be adopted */
		if
		:: lease && S2 -> rev++;
			sesMod = rev; fence = rev;
			if
			:: sesCreate == 0 -> sesCreate = rev
			:: else
			fi;
			if
			:: token = create[key]
			:: create[key] = 0
			fi
		:: else -> goto over
		fi;
		if
		:: token == 0 -> goto enter
		:: else
		fi }
wait:
	atomic {
		if
		:: create[key] == token && FIRST(key) -> grant(key, mine, token, before)
		:: create[key] != token -> goto over
		fi }
	atomic {                   /* released, or lost and not told yet */
		letGo(key);
		if
		:: create[key] == token -> rev++; create[key] = 0;
			if
			:: slow && R2 -> sesMod = rev; fence = rev;
				if
				:: sesCreate == 0 -> sesCreate = rev
				:: else
				fi
			:: else
			fi
		:: else
		fi;
		if
		:: key == 0 -> key = 1; goto round
		:: else
		fi }
over:
	atomic {
		letGo(key); token = 0; fence = 0; start = 0; mine = 0; seen = 0; before = 0; slow = false; losses = 0
	}
}

active proctype neighbour() {
	byte key = 2, mine, token;
	short before;
round:
	/* A session of the present epoch, and a place in the queue. */
	atomic { before = top; mine = epoch; rev++; create[key] = rev; token = rev }
	atomic {
		if
		:: create[key] == token && FIRST(key) -> grant(key, mine, token, before)
		:: create[key] != token
		fi }
	atomic {
		letGo(key);
		if
		:: create[key] == token -> rev++; create[key] = 0
		:: else
		fi;
		token = 0; mine = 0; before = 0;
		if
		:: key < 3 -> key++; goto round
		:: else
		fi }
}

active proctype operator() {
	byte restores;
	d_step {                   /* the snapshot */
		oldRev = rev; oldEpoch = epoch; oldEpochMod = epochMod; oldLease = lease;
		oldCreate[0] = create[0]; oldCreate[1] = create[1]; oldCreate[2] = create[2]; oldCreate[3] = create[3]
	}
recover:
	skip;
	d_step {                   /* the disaster: what the snapshot does not have is gone */
		rev = oldRev; epoch = oldEpoch; epochMod = oldEpochMod; lease = oldLease;
		create[0] = oldCreate[0]; create[1] = oldCreate[1]; create[2] = oldCreate[2]; create[3] = oldCreate[3];
		/* The first step of the recovery. */
		rev++;
		sesCreate = 0; sesMod = 0;
		if
		:: P1 -> epoch = P2 + 1; epochMod = rev
		:: else
		fi
	}
	if
	:: P1
	:: d_step { !P1 -> rev++; epoch = P2 + 1; epochMod = rev }
	fi;
	d_step {
		/* The second: the lock keys, those at the end of the queue first (here, at once). */
		rev++;
		create[0] = (create[0] < epochMod -> 0 : create[0]);
		create[1] = (create[1] < epochMod -> 0 : create[1]);
		create[2] = (create[2] < epochMod -> 0 : create[2]);
		create[3] = (create[3] < epochMod -> 0 : create[3]);
		/* The third: the leases of the sessions that are over. */
		lease = (sesCreate < epochMod -> false : lease)
	}
	if
	:: restores == 0 -> restores++; goto recover
	:: true
	fi
}
