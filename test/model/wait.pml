/*
 * Waiting: who is the owner, by the events of a watch or by a read.
 *
 * We wait behind a program that uses concurrency.Mutex, which takes a key of the same
 * name again and again, and before or behind another process. The watch begins at a
 * revision that may be older than our key, since the member that serves it can lag.
 * Events can be lost, and an operator, or a restore, can take our key away.
 *
 * Code: coordinator/wait.go, line.go.
 */

/* ---- the steps, each with what stands there without it ---- */

/* Step W1: an event counts only if it is newer than what was read. */
#ifdef NO_W1
#define W1 true
#else
#define W1 (log[pos].at > line)
#endif

/* Step W2: nothing is decided before the last event of a revision. */
#ifdef NO_W2
#define W2 false
#else
#define W2 (pos < end && log[pos].at == now)
#endif

/* Step N1: events alone decide only soon after an answer that showed our key. */
#ifdef NO_N1
#define N1 true
#else
#define N1 recent
#endif

/* Step D1: the read looks for our key, with the create revision that is the token. */
#ifdef NO_D1
#define D1 true
#else
#define D1 (create[OWN] == token)
#endif

/* Step D2: and for smaller ones. */
#ifdef NO_D2
#define D2 true
#else
#define D2 (!SMALLER(MUTEX) && !SMALLER(OTHER))
#endif

/* Step T1: at each renewal it is read again, whatever the watch says. */
#ifdef NO_T1
#define T1 false
#else
#define T1 true
#endif

/* ---- what etcd holds ---- */

#define MUTEX 0
#define OWN 1
#define OTHER 2

byte rev = 1;
byte create[3];

#define BEHIND(k, o) (create[o] != 0 && create[o] < create[k])
#define FIRST(k) (create[k] != 0 && !BEHIND(k, 0) && !BEHIND(k, 1) && !BEHIND(k, 2))
#define SMALLER(k) (create[k] != 0 && create[k] < token)

/* All that happened to the keys, which a watch tells in order. A key of create
   revision 0 was deleted; a DELETE does not say which one that was. */
#define EVENTS 10
typedef event { byte at; byte key; byte create };
event log[EVENTS];
byte end;

inline happened(k, c) {
	create[k] = c;
	log[end].at = rev; log[end].key = k; log[end].create = c;
	end++;
	owned = owned || (FIRST(OWN) && create[OWN] == token)
}

/* ---- what we believe ---- */

byte token;
bool recent;                   /* an answer, asked for within a second, showed our key */
byte pos;                      /* the events before this one were read, or lost */
bool waiting;
bool owned;                    /* the truth: our key was the first, once */

/* ---- the properties ---- */

bool bad_holder, bad_waiter;

/* A handle is returned only if its key was the first in the queue, once. (That it may
   not be any more, for longer than it takes to tell, is what the token is for.) */
ltl one_holder      { [] !bad_holder }
/* In the end we do not wait any more: we had the lock, or know that our key is gone. */
ltl waiters_granted { [] !bad_waiter }

active proctype we() {
	byte line;                 /* the revision of what was read */
	byte now;
	bool aheadMutex, aheadOther, gone;

	atomic { end >= 1 -> rev++; token = rev; happened(OWN, rev); waiting = true }
	/* The watch begins somewhere between the start and now. */
	atomic {
		do
		:: pos < end -> pos++
		:: break
		od }
read:
	atomic {
		if
		:: D1 && D2 -> goto got
		:: !D1 -> goto out
		:: D1 && !D2 ->
			line = rev;
			aheadMutex = SMALLER(MUTEX); aheadOther = SMALLER(OTHER);
			recent = true
		fi }
listen:
	if
	:: atomic { pos < end ->
		now = log[pos].at;
		do
		:: pos < end && log[pos].at == now ->
			if
			:: W1 && log[pos].key == OWN && log[pos].create == 0 -> gone = true
			:: W1 && log[pos].key == MUTEX && (log[pos].create == 0 || log[pos].create > token) -> aheadMutex = false
			:: W1 && log[pos].key == OTHER && (log[pos].create == 0 || log[pos].create > token) -> aheadOther = false
			:: else
			fi;
			pos++;
			if
			:: W2
			:: !W2 -> break
			fi
		:: else -> break
		od;
		now = 0;
		if
		:: gone -> gone = false; goto read
		:: !gone && !aheadMutex && !aheadOther && N1 -> goto got
		:: !gone && !aheadMutex && !aheadOther && !N1 -> goto read
		:: else -> goto listen
		fi }
	/* The next renewal. It changes something only if there is news. */
	:: atomic { T1 && (FIRST(OWN) || create[OWN] != token) -> goto read }
	fi;
got:
	bad_holder = bad_holder || !owned;
out:
	atomic { waiting = false; recent = false }
}

/* Time passes. */
active proctype clock() {
end_clock:
	do
	:: recent -> recent = false
	od
}

/* Takes the lock three times, always with the same key. */
active proctype mutex() {
	byte times;
	atomic { happened(MUTEX, 1) }
	do
	:: times < 2 ->
		if
		:: atomic { FIRST(MUTEX) -> rev++; happened(MUTEX, 0) }   /* it had the lock */
		:: atomic { create[MUTEX] == 0 }                             /* it was taken away */
		fi;
		atomic { rev++; happened(MUTEX, rev); times++ }
	:: else -> break
	od;
	atomic {
		if
		:: FIRST(MUTEX) -> rev++; happened(MUTEX, 0)
		:: create[MUTEX] == 0
		fi }
}

active proctype other() {
	atomic { end >= 1 -> rev++; happened(OTHER, rev) }
	atomic { FIRST(OTHER) -> rev++; happened(OTHER, 0) }
}

/* What can go wrong, once. */
active proctype trouble() {
	if
	/* An operator, or the end of a lease, deletes several keys in one revision. */
	:: atomic { create[OWN] != 0 && create[MUTEX] != 0 -> rev++; create[OWN] = 0; happened(MUTEX, 0); happened(OWN, 0) }
	:: atomic { create[OWN] != 0 -> rev++; happened(OWN, 0) }
	/* A watch is resumed without what happened meanwhile. That takes a while. */
	:: atomic { waiting && !recent && pos < end -> pos = end }
	/* A restore, to a time before our key was put: there is no event of that. */
	:: atomic { create[OWN] != 0 && waiting && !recent -> create[OWN] = 0; pos = end }
	:: true
	fi
}

active proctype finally() {
	atomic { timeout -> bad_waiter = waiting }
}
