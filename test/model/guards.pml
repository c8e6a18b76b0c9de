/*
 * The guards: writes that arrive at any time, whoever owns the lock by then.
 *
 * Three keys stand in a lock's queue, one behind the other; each ends at any time
 * after it became the owner. Writers present their tokens, several at once: while they
 * wait, own, and long after. One presents a token that nobody was given. The mark can
 * be deleted by an operator.
 *
 * Without flags: mode HighWater with AcceptEqual. -DREJECT_EQUAL: one write for each
 * grant. -DHELD: mode Held, where only those write that have a handle (etcdguard's
 * Fence must not be called before).
 *
 * Code: resourceguard/etcdguard/kv.go (Held), highwater.go (HighWater).
 */

/* ---- the steps, each with what stands there without it ---- */

/* Step F1: the write's own transaction compares the lock key with the token. Without
   it, a read just before the write does. */
#ifdef NO_F1
#define F1 true
#else
#define F1 (create[me] == token)
#endif

/* Step M1: while the mark is the token's, the write's own transaction compares it. */
#ifdef NO_M1
#define M1 true
#else
#define M1 (mark == token)
#endif

/* Step M2: a raise compares the mod revision of the mark that the decision saw. */
#ifdef NO_M2
#define M2 true
#else
#define M2 (markMod == seenMod)
#endif

/* Step M3: a raise compares the lock key with the token. */
#ifdef NO_M3
#define M3 true
#else
#define M3 (create[me] == token)
#endif

/* Step M4: only the first in the queue raises: the key of a waiter is there as well. */
#ifdef NO_M4
#define M4 true
#else
#define M4 (!SMALLER(0) && !SMALLER(1) && !SMALLER(2))
#endif
#define SMALLER(k) (create[k] != 0 && create[k] < token)

/* ---- what etcd holds ---- */

#define FORGER 3               /* its token is larger than all others, and has no key */

byte rev = 3;
byte create[4];                /* of the lock keys; 0: no key */
byte mark, markMod;            /* the token in the mark, and its mod revision; 0: no mark */

#define BEHIND(k, o) (create[o] != 0 && create[o] < create[k])
#define FIRST(k) (create[k] != 0 && !BEHIND(k, 0) && !BEHIND(k, 1) && !BEHIND(k, 2))

byte deletions = 1;            /* of the mark */

/* ---- the properties ---- */

byte largest;                  /* the largest token of which a write was accepted */
byte writes[4];                /* how many were accepted, by token */
bool bad_stale, bad_second;

/* No write of an older token after one of a newer token; none at all, in mode Held,
   and no raise of the mark, in mode HighWater, by anyone but the owner at that time. */
ltl no_stale_write_accepted { [] !bad_stale }
#ifdef REJECT_EQUAL
/* One write for each grant, unless the mark is deleted meanwhile. */
ltl no_second_write         { [] !bad_second }
#endif

inline accepted(raised) {
	bad_stale = bad_stale || token < largest || (raised && !(FIRST(me) && create[me] == token));
	largest = (token > largest -> token : largest);
	writes[me] = (writes[me] < 2 -> writes[me] + 1 : 2);
	bad_second = bad_second || (writes[me] > 1 && deletions > 0)
}

proctype writer(byte me; byte token; byte times) {
	byte seenMod;
	bool mine;                 /* the mark was seen to be the token's */
again:
	if
	:: times == 0 -> goto done
	:: else -> times--
	fi;
#ifdef HELD
	/* It has a handle: it was the owner once. */
	atomic {
		if
		:: FIRST(me) && create[me] == token
		:: create[me] == 0 -> goto done
		fi }
	/* The write is under way. */
	atomic {
		if
		:: F1 -> rev++; accepted(true)
		:: else
		fi }
	goto again;
#else
look:
	atomic {                   /* what the decision is made from, in one read */
		if
		:: mine                /* known from before: not read again */
		:: !mine && mark > token -> goto done
#ifdef REJECT_EQUAL
		:: !mine && mark == token -> goto done
		:: !mine && mark < token ->
#else
		:: !mine && mark == token -> mine = true
		:: !mine && mark < token ->
#endif
			if
			:: create[me] == token && M4 -> seenMod = markMod
			:: else -> goto again       /* not the owner: it is stale, or not yet */
			fi
		fi }
	atomic {                   /* the write is under way */
		if
		:: mine && M1 -> rev++; accepted(false)
		:: mine && !M1 -> mine = false; goto look
		:: !mine && M2 && M3 && M4 -> rev++; mark = token; markMod = rev; accepted(true)
#ifndef REJECT_EQUAL
			; mine = true
#endif
		:: !mine && !(M2 && M3 && M4) -> goto look
		fi }
	goto again;
#endif
done:
	skip
}

/* Releases, and ends of leases. */
active proctype tenures() {
	FIRST(0) -> atomic { rev++; create[0] = 0 }
	FIRST(1) -> atomic { rev++; create[1] = 0 }
	FIRST(2) -> atomic { rev++; create[2] = 0 }
}

/* An operator deletes the mark, against all advice. */
active proctype operator() {
	if
	:: atomic { mark != 0 -> rev++; mark = 0; markMod = 0; deletions-- }
	:: true
	fi
}

init {
	atomic {
		create[0] = 1; create[1] = 2; create[2] = 3;
		run writer(0, 1, 2);
		run writer(0, 1, 1);
		run writer(1, 2, 2);
		run writer(2, 3, 1);
#ifndef HELD
		run writer(FORGER, 100, 1)
#endif
	}
}
