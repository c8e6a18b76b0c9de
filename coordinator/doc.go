// Package coordinator decides, through etcd, who may hold a lock now, and gives
// each holder the fencing token that a guard at the resource enforces.
//
//	c, err := coordinator.New(client, nil)
//	...
//	err = c.Do(ctx, "orders/42", func(ctx context.Context, g *coordinator.Grant) error {
//		kv, err := guard.KV(g) // etcdguard: every write carries g's token
//		...
//	}, coordinator.Raise(func(ctx context.Context, t revisionfence.Token) error {
//		return guard.Advance(ctx, t.Lock(), t) // before anything is read
//	}))
//
// # What there is
//
// [Coordinator.Acquire] waits for a lock, [Coordinator.TryAcquire] does not;
// [Coordinator.TryAcquireAny] takes the first free one of many, and
// [Coordinator.AcquireAll] several or none. [Coordinator.Do] runs a function under
// a lock, and [Coordinator.Lead] one that is to run somewhere for as long as there
// is work. Their options are [WaitAtMost], [MaxHold], [Reason], [Value] and
// [Raise]. A [Grant] has the token, says whether it may be relied on, tells with
// [Grant.Draining] that it will soon not be, and changes with [Grant.SetValue] what
// it publishes.
//
// [Coordinator.Status], [Coordinator.List], [Coordinator.Observe] and
// [Coordinator.IsCurrent] look at locks; what they return is out of date then, and
// nothing may be decided by it. [Coordinator.Evict] ends a grant from outside.
// [Coordinator.Ping] asks whether all is in place, [Coordinator.Health] says how
// the coordinator is doing without asking. [Options.Directory] joins the locks of
// other programs, [Options.Hooks] and [Options.Registerer] tell what happens.
//
// # Guarantees
//
// Every later grant of a lock carries a larger token than every earlier one,
// whichever process it went to, across restarts of processes and members,
// leader changes, compaction and defragmentation. More exactly: if one grant was
// returned before another was asked for, its token is the smaller; and no token
// is returned twice. A restore of etcd from a backup ends this: see below.
//
// While etcd's own clocks do not fail, no two grants of a lock are held at once:
// a grant ends by its holder's clock before etcd ends the lease.
//
// A caller that got no clear answer from etcd is not told that it holds the
// lock. What its request may have left behind is removed, or goes with the
// lease; see "Outcomes" below.
//
// A handle that was lost or released stays so.
//
// # What this does not guarantee
//
// That the holder is still the holder when its write arrives. A process can be
// paused between looking at [Grant.Err] and writing, for longer than any lease;
// a request can lie in a network. No lock can prevent that. The token can, if
// the resource compares it in the same step as the write: use a guard, or
// [Grant.Fence] for data in the same etcd. Where a resource compares nothing, a
// token in a log line protects nothing.
//
// That a lock is free as soon as its holder has died. It is when etcd has ended
// the lease, which a leader change starts anew.
//
// That a restore of etcd from a backup is noticed. Revisions go back then, and
// tokens repeat. A cluster of another ID is refused with [ErrRestored], but a
// restored cluster can keep its ID. So is a prefix whose epoch record is missing
// while sessions, marks or floors lie beside it; once those are gone too, a new
// record starts at epoch 0. There is no recovery yet. After a restore use a new
// [Options.Prefix], and new lock names where marks are kept outside of etcd.
//
// That the order of waiters in different processes is the order in which they
// asked. Within a process it is; processes take turns.
//
// # The token
//
// It is the create revision of the lock key: see package revisionfence for what
// is not a token. A process has one lock key in the queue of a lock, however
// many of its goroutines want it. The key with the smallest create revision
// owns the lock, which is also the rule of concurrency.Mutex and of
// "etcdctl lock": they and this package exclude each other where they share a
// directory. When the lock goes to another goroutine of the same process, one
// transaction deletes the key and puts another at the end of the queue.
//
// Keys in the directory of a lock that this package did not make are respected
// and never deleted. One without a lease holds the lock until somebody deletes
// it; a [BusyError] names it.
//
// # Sessions and the trust window
//
// All grants of a coordinator hang on one lease, kept alive by a session of
// etcd's concurrency package. That alone would not do: such a session can believe
// for a whole TTL after a pause that its lease lives. So the lease is also proven
// alive, every quarter of its TTL and at least every two seconds, and may be
// relied on until
//
//	the moment before the last successful proof was sent + granted TTL − margin
//
// where the margin is a tenth of the TTL, at most a second. Elapsed time is the
// larger of the monotonic clock and one that counts time asleep. The clock is
// looked at twice within each margin, and at each call on a [Grant]. When an
// answer arrived plays no part in it.
//
// With each proof the coordinator also looks at the keys that hang on the
// lease: a renewal that succeeds does not prove that they are there. A lock key
// that an operator deleted ends its grant with [LostKeyDeleted] within one such
// interval. A session with thousands of keys lists them less often, every fifth
// time with 4,000 of them; an eviction, and the loss of the session key, it
// notices with each proof all the same.
//
// A session whose window closed, or whose key is gone, is over for good: its
// grants are lost, waiters queue anew with the next session, and the lease is
// revoked until etcd confirms it, so that a lock is not kept for nobody. Where the
// user of the client may not revoke it, it ends by itself.
//
// # Outcomes
//
// Transactions are sent once, where clientv3 alone might send a write again
// without telling. An acquire without a clear answer is settled: one transaction
// moves the session key's mod revision, which every acquire compares, so that no
// copy still under way can apply, and deletes or adopts the lock key. If a
// caller's context ends before that, it gets [ErrUnsettled] and the settling
// goes on without it.
//
// So the error of a call says which of three is the case. For all ways to acquire:
//
//	no error        done: the caller holds the lock
//	ErrUnsettled    not known yet: the caller does not hold the lock, and a key of
//	                its may stand in the queue until it has been removed
//	any other       not done, and nothing of the call stays at etcd
//
// For the release of a grant:
//
//	no error        done: the lock is free, or has passed on
//	ErrNotHeld      not done: there was nothing to release any more; the error is a
//	                *LostError too, which says why
//	ErrUnsettled    not known yet: the release is tried on in the background, or the
//	                lock ends with the lease; asking again tells
//
// Behind a proxy that sends a request again by itself and passes on the second
// answer, a release that was done is told as ErrNotHeld, with [LostKeyDeleted]. The
// lock is free in either case. An eviction leaves word, and is told as done.
//
// For SetValue and Evict, ErrUnsettled means the same, and any other error that
// nothing was changed by the call. An [ErrNoAnswer] says that etcd was silent: it is
// not known then whether somebody holds the lock, but it is not the caller.
//
// # What etcd holds
//
//	PREFIXepoch                                    the epoch record
//	PREFIXsessions/LEASE                           a session, on its lease
//	PREFIXsessions/LEASE/evicted/LEASE-SERIAL      news of an eviction, on the lease
//	PREFIXlocks/NAME/LEASE-SERIAL                  a place in a queue, on the lease
//
// with the lease in hexadecimal and the name escaped as in a URL path segment.
// Values are JSON with a format number. A record with a larger number is of a newer
// version, and nothing is decided by what it says: no session opens under such an
// epoch record, and Evict and IsCurrent refuse such a lock key, all with
// [ErrFormat]. Its place in the queue counts, as that of any key does, and a
// [Holder] tells people what can be read of it.
//
// # Metrics
//
// With [Options.Registerer] these are reported, summed over the coordinators
// that share it. Names of locks are never labels: there can be too many.
//
//	etcd_fence_acquire_wait_seconds      histogram of the waits that ended with a grant
//	etcd_fence_grants_total              grants made
//	etcd_fence_grants_held               grants held now
//	etcd_fence_grants_lost_total         grants that ended without a release, by reason
//	etcd_fence_grants_leaked_total       grants that became garbage unreleased
//	etcd_fence_waiters                   goroutines that wait now
//	etcd_fence_hand_ons_total            locks handed on inside the process
//	etcd_fence_releases_pending          releases that etcd has not answered yet, or refuses
//	etcd_fence_settles_total             transactions that settled unknown outcomes
//	etcd_fence_renewal_failures_total    proofs of a lease that failed
//	etcd_fence_renewal_age_seconds       age of the last successful proof, the oldest
//	etcd_fence_trust_left_seconds        trusted time left, the least
//
// # Costs
//
// An acquire without contention is one request and one raft proposal, a release
// the same; so are all free locks of an AcquireAll, and their release. Handing a
// lock on inside a process is one of each for both. A lock
// that passes to another process costs that one a watch event, and a read if it
// has waited for more than a second.
// Waiting costs one goroutine, the caller's own, and one read for each process,
// lock and proof interval.
//
// # Errors
//
// All errors are matched with errors.Is and errors.As: see the variables below.
// Errors of etcd's client and the cause of an ended context can be matched too.
package coordinator
