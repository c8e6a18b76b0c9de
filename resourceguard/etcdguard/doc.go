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
// and so does code that takes a client whose KV field it has become. [Guard.Do] is
// for a program that has the token of a grant and not the grant.
//
// There are two modes. Held asks, with each operation, whether the grant still
// lasts. HighWater asks whether a newer token has been here, which a mark in etcd
// remembers. Held is the default: it refuses from the moment the grant ends, and
// stores nothing. HighWater is for what needs a memory: operation IDs, one write for
// each grant, and owners whose work may be finished under a lease that has ended as
// long as nobody else has begun.
//
// # Why Held is safe
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
// # Why HighWater is safe
//
// The mark of a resource is the newest token that was accepted, with its owner, in
// one text under <prefix>marks/. While the mark is the caller's own, every operation
// is one transaction:
//
//	If    value of the mark = the caller's token and owner
//	Then  the operation
//	Else  get the mark
//
// The text covers everything at once: a newer token, one of another lock or epoch,
// another owner of the same token, a mark that is damaged or missing all make it
// differ. When it is not the caller's own, the guard reads the mark, the first key of
// the lock's directory and the epoch in one linearizable transaction. It applies
// [resourceguard.Rule] to what it read, with etcd's revision and epoch as the
// ceiling, and then stores mark and effect in one step:
//
//	If    mod revision of the mark = as read
//	      create revision of the lock key = the token's revision
//	      create revisions in the lock's directory > the token's revision - 1
//	Then  put the mark, and the operation
//
// The first compare keeps out whoever came in between. The second refuses a grant
// that has ended, the third one that is waiting. So neither a forged token, nor the
// token of an old owner where the mark was deleted, nor a waiter raises a mark; and
// after it was raised the mark alone decides, until a newer owner raises it. No text
// is ever ordered by etcd: what is newer is decided by tokens.
//
// The guard remembers the marks that it raised, to choose between the two ways. What
// it remembers is compared in etcd, so that a wrong memory costs a request.
//
// # Guarantees
//
// In both modes:
//
//   - A refused operation changes nothing and reads nothing, and its error says why:
//     a [*resourceguard.StaleError] where the token is not the newest.
//   - A write is sent once, and its payload is. An operation that only reads is
//     repeated while etcd is unavailable, as clientv3 does with a Get.
//   - The answer has the form that it would have without a guard, header included.
//   - Every call ends: with its context, or after Options.Timeout.
//
// In mode Held no operation takes place once the grant has ended: not from the moment
// somebody else has the lock, but from the moment the lease is over, the lock key is
// released, or an operator has deleted it.
//
// In mode HighWater:
//
//   - Once a token has been accepted for a resource, no lower one is: not after a
//     restart, not after the data was deleted, not when two writers race. The mark
//     stays when the data goes, and costs one key for each resource, for ever.
//   - An equal token of another owner is refused with
//     [resourceguard.ErrOwnerMismatch]: the sign of an etcd that was restored from a
//     backup without anybody having noticed. The owner is the last segment of the
//     lock key, which no two grants share.
//   - A mark that cannot be read refuses, until [Guard.SetFloor] has repaired it.
//   - An operation that is repeated under its ID is applied once, as long as its
//     record is kept.
//
// # What this does not guarantee
//
//   - Anything about who goes around the guard. It is not a permission: use etcd's
//     roles for that.
//   - That the program uses the right grant, unless Options.LockOf tells the guard
//     which lock guards what. In mode HighWater a resource is called like its lock
//     otherwise.
//   - Order within one grant after an outcome that was unknown: the older of two
//     writes can still be applied after the newer one. Repeat under an operation ID,
//     use [Sequenced], or acquire the lock again, which in mode Held ends all that
//     was under way and in mode HighWater does with the first call.
//   - That a write whose outcome was unknown is applied once, if the program
//     repeats it without an operation ID. Mode Held has none; a context that carries
//     one (resourceguard.WithOperation) is refused with [errors.ErrUnsupported].
//   - In mode HighWater, that an old owner is refused before a newer one has made its
//     first call. Call [Guard.Advance] after the grant and before the first read.
//   - Anything about another etcd. There the lock key does not exist, and every
//     operation, or the first of a token, is refused as stale; except in a copy that
//     was restored from a backup made during the grant, which has the lock key too.
//   - In mode Held, one write for each grant (resourceguard.RejectEqual), marks and
//     floors: without a mark there are none.
//
// # Resources
//
// In mode HighWater a resource is what has a mark. By default there is one for each
// lock, named by the lock, and all keys that are written under a grant belong to it.
// With Options.Resource several resources can share a lock: a new owner then has to
// come to each of them before its old writers are refused there, and an owner pays
// for raising each mark. The operations of one transaction may belong to several
// resources, of one grant or of several at once. All marks count then, and all rise
// or none.
//
// # Operations
//
//	ctx = resourceguard.WithOperation(ctx, resourceguard.Operation{ID: id, Digest: sum})
//	_, err = kv.Put(ctx, "orders/42/stock", "8")
//
// In mode HighWater a record of the operation is stored with its effect, under
// <prefix>ops/<resource>/. A repetition finds it: nothing is applied, and the answer
// has the revision of the first one, the branch that a transaction took, and empty
// responses of the same kinds. The token is checked all the same. A stale one is
// refused, and StaleError.Applied says that the operation had been applied. Another
// digest under the same ID is refused with [resourceguard.ErrOperationReused].
// Operations that only read are carried out as if they had no ID.
//
// Records are on no lease, since a repetition may come under the next token. After
// every 16th operation a guard looks at 64 records and deletes those that are older
// than Options.KeepOperations, except those of the mark's own token. Age goes by the
// clocks of the programs, so that a clock which is ahead by hours shortens it.
//
// # What differs from an unfenced KV
//
// Transactions. A program's own compares go into a nested transaction under the
// fence, because beside the fence's a false one could not be told from a fence that
// does not hold. So 128 operations are allowed without compares and, with compares,
// 128 less one for each grant, or for each resource in mode HighWater. Where the mark
// has to be raised and there is no room for it, it is raised before. An operation ID
// costs one operation, and two with compares. Under RejectEqual, where the write is
// the raise, 127 are allowed, and 125 with compares; with an operation ID 126 and 123;
// and they may be of 42 resources, since each raise has three compares.
//
// A transaction that has compares and only reads costs a raft proposal. One without
// operations is answered by the whole cluster, where etcd alone lets one member
// answer it from what it has.
//
// Several fenced writes in one transaction are one write: they are applied together
// or not at all, under RejectEqual they are the one write of the grant, and an
// operation ID stands for all of them. Etcd refuses a transaction that writes a key
// twice.
//
// Reads. A serializable read may be out of date, and a revision below the token's
// belongs to somebody else's tenure: both are refused with [ErrUnfencedRead]. A
// serializable read at a revision that may be read is sent as a linearizable one. In
// mode HighWater the first read of a new owner raises the mark.
//
// Writes to lock keys, and to anything under the coordinator's prefix, are refused
// with [ErrProtectedKey]; deleting a range that holds such keys is one. Release the
// grant instead.
//
// Compact and GetStream cannot be part of a transaction. They fail with
// [errors.ErrUnsupported] and the code Unimplemented.
//
// Permissions. With etcd's authentication on, the user needs to read the directory
// of the lock besides its data, and for Advance the coordinator's epoch record. Mode
// HighWater always needs to read both, and to read and write <prefix>marks/ and, for
// operation IDs, <prefix>ops/. SetFloor writes to <prefix>floors/.
//
// # Namespaces
//
// The guard talks to the connection and not to client.KV, so that nothing can stand
// in between and change the keys that it compares. A client whose KV was replaced is
// refused by [New]. To keep data in a namespace, put that around the guard's KV:
//
//	kv = namespace.NewKV(kv, "app/")
//
// Options.Resource and, in mode Held, Options.LockOf are then asked about keys with
// the namespace in front.
//
// # Errors and outcomes
//
// Every error carries an outcome, for resourceguard.OutcomeOf. NotApplied are all
// refusals, of the guard, of etcd (such as a lease that does not exist) and for
// lack of a connection, and every error of an operation that only reads. Unknown
// is the rest: a broken connection, a time-out of etcd, the end of a context after
// the request was sent. Errors of etcd and of the context are wrapped: match them
// with errors.Is and errors.As. Each names the key or the resource.
//
// # Metrics
//
// Options.Registerer gets these counters. Resources, keys and locks are never labels.
//
//	etcd_fence_guard_writes_total              calls that write, by mode and outcome
//	etcd_fence_guard_reads_total               calls that only read, by mode and outcome
//	etcd_fence_guard_raises_total              marks raised by a newer token
//	etcd_fence_guard_operations_pruned_total   records of operations deleted for their age
//	etcd_fence_guard_prune_failures_total      attempts at that which failed
//
// Mode is Held or HighWater. Outcome is applied, replayed (an operation that had been
// applied before), stale, refused (by the guard, for any other reason), not_applied
// (refused by etcd, or not sent) or unknown. Refused deserves an alarm: it is a defect
// of a program, a damaged mark, or a restore.
//
// # Costs
//
// In mode Held a fenced write is one request and one raft proposal, and a fenced read
// one request and no proposal, as without a guard. A refusal costs a second request, a
// read. A fenced Put takes 1.1 times as long as a bare one for one caller, and 1.3
// to 1.4 times where many callers keep the processors busy: for the compare, and
// for a request that is larger.
//
// Mode HighWater costs the same once the mark is the caller's own, also with an
// operation ID, and a refusal costs nothing more. The first call for each token and
// resource costs one request more, a read, and is a proposal even if it only reads.
// Under RejectEqual every call costs that read. Measure your own with
// BenchmarkBesideBare.
package etcdguard
