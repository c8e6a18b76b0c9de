// Package etcdguard keeps an old lock owner from reading and writing data in the
// etcd that its lock is in.
//
//	guard, err := etcdguard.New(client, nil)
//	...
//	grant, err := c.Acquire(ctx, "orders/42") // package coordinator
//	...
//	kv, err := guard.KV(grant)
//	...
//	_, err = kv.Put(ctx, "orders/42/stock", "8")
//
// What [Guard.KV] returns is a clientv3.KV: code that takes one works unchanged,
// and so does code that takes a client whose KV field it has become.
//
// # Why it is safe
//
// Every operation is one etcd transaction:
//
//	If    create revision of the grant's lock key = the token's revision
//	Then  the operation
//	Else  get the first key of the lock's directory
//
// etcd evaluates the compare and applies the operation in one step, at the place
// that the transaction has in its log. The compare is true for as long as the grant
// lasts and never again: a lock key goes with its lease or its release, and one
// that is put again has another create revision. So it does not matter how old the
// request is, how often the network repeats it, or what the caller believes. A
// request that was sent under a live grant and arrives after the end of it changes
// nothing.
//
// The owner of a lock is the key with the smallest create revision, so while a
// grant lasts nobody else owns the lock. Reads are fenced like writes: what was
// read under the fence was read while the grant lasted, and is changed by the
// holder of the grant alone for as long as it lasts.
//
// Nothing but the lock key is needed for that. There is no mark to store, to lose
// or to restore: data and lock are in one etcd and go back together.
//
// # Guarantees
//
//   - No operation takes place once the grant has ended: not from the moment
//     somebody else has the lock, but from the moment the lease is over, the lock
//     key is released, or an operator has deleted it.
//   - A refused operation changes nothing and reads nothing, and its error is a
//     [*resourceguard.StaleError] that names the present owner's token, zero if
//     there is none.
//   - A write is sent once. An operation that only reads is repeated while etcd is
//     unavailable, as clientv3 does with a Get.
//   - The answer has the form that it would have without a guard, header included.
//   - Every call ends: with its context, or after Options.Timeout.
//
// # What this does not guarantee
//
//   - Anything about who goes around the guard. It is not a permission: use etcd's
//     roles for that.
//   - That the program uses the right grant, unless Options.LockOf tells the guard
//     which lock guards a key. Reads are not checked against it.
//   - Order within one grant after an outcome that was unknown: the older of two
//     writes can still be applied after the newer one. Compare the key's mod
//     revision as well, or acquire the lock again, which ends all that was under
//     way.
//   - That a write whose outcome was unknown is applied once, if the program
//     repeats it. There are no operation IDs in this mode; a context that carries
//     one (resourceguard.WithOperation) is refused with [errors.ErrUnsupported].
//   - Anything about another etcd. There the lock key does not exist, and every
//     operation is refused as stale; except in a copy that was restored from a
//     backup made during the grant, which has the lock key too.
//   - One write for each grant (resourceguard.RejectEqual), marks and floors:
//     without a mark there are none. [Guard.Advance] works, and stores nothing.
//
// # What differs from an unfenced KV
//
// Transactions. A program's own compares go into a nested transaction under the
// fence, because beside the fence's a false one could not be told from a fence that
// does not hold. So 128 operations are allowed without compares and, with compares,
// 128 less one for each grant. A transaction that has compares and only reads costs
// a raft proposal then. One without operations is answered by the whole cluster,
// where etcd alone lets one member answer it from what it has.
//
// Reads. A serializable read may be out of date, and a revision below the token's
// belongs to somebody else's tenure: both are refused with [ErrUnfencedRead]. A
// serializable read at a revision that may be read is sent as a linearizable one.
//
// Writes to lock keys, and to anything under the coordinator's prefix, are refused
// with [ErrProtectedKey]; deleting a range that holds such keys is one. Release the
// grant instead.
//
// Compact and GetStream cannot be part of a transaction. They fail with
// [errors.ErrUnsupported] and the code Unimplemented.
//
// Permissions. With etcd's authentication on, the user needs to read the directory
// of the lock besides its data, and for Advance the coordinator's epoch record.
//
// # Namespaces
//
// The guard talks to the connection and not to client.KV, so that nothing can stand
// in between and change the keys that it compares. A client whose KV was replaced is
// refused by [New]. To keep data in a namespace, put that around the guard's KV:
//
//	kv = namespace.NewKV(kv, "app/")
//
// # Errors and outcomes
//
// Every error carries an outcome, for resourceguard.OutcomeOf. NotApplied are all
// refusals, of the guard, of etcd (such as a lease that does not exist) and for
// lack of a connection, and every error of an operation that only reads. Unknown
// is the rest: a broken connection, a time-out of etcd, the end of a context after
// the request was sent. Errors of etcd and of the context are wrapped: match them
// with errors.Is and errors.As.
//
// # Costs
//
// A fenced write is one request and one raft proposal, and a fenced read one
// request and no proposal, as without a guard. A refusal costs a second request, a
// read. A fenced Put takes 1.1 times as long as a bare one for one caller, and 1.3
// to 1.4 times where many callers keep the processors busy: for the compare, and
// for a request that is larger. Measure your own with BenchmarkBesideBare.
package etcdguard
