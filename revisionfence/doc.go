// Package revisionfence is the fencing token: how it is derived from etcd, how two
// of them are ordered, how one is written down, and how it is carried to the place
// that checks it. It needs the standard library only, so that a service which
// checks tokens does not have to link an etcd client.
//
// # Why there is a token
//
// Whoever holds a lock under a lease can be paused (by a garbage collector, a
// stopped virtual machine, a full disk, a network that is cut) for longer than the
// lease lasts. Somebody else is granted the lock and writes; then the first one
// wakes up, still believes that it is the owner, and writes too. Nothing inside of
// the paused process can prevent that. So every grant gets a number that is larger
// than those of all earlier grants, the number travels with every write, and the
// resource refuses numbers lower than the largest it has accepted.
//
// # What a token is
//
// A [Token] is three things:
//
//   - the name of the lock;
//   - the epoch, which counts how often the authority was recovered from a backup;
//   - the revision: the create revision of the lock key in etcd, that is, the key
//     whose place in the queue makes its holder the owner.
//
// etcd's revision is one counter for the whole store, and every change raises it.
// The owner of a lock is the lock key with the lowest create revision, so a later
// owner's key was always created later: each grant has a larger token than every
// grant of the same lock before it, across restarts of processes, changes of the
// leader, loss of members, compaction and defragmentation. The create revision of a
// key stays as it is while the key exists, so one grant has one token.
//
// The epoch is there since restoring etcd from a backup moves revisions back: the
// restored store will issue numbers that it had issued before. Epochs count before
// revisions, so tokens rise again once an authority raises its epoch. While the
// epoch is the same, nothing here can tell old numbers from new ones.
//
// # What is not a token
//
//   - A bare lock key, or knowing that it exists, is not a token. Existence has no
//     order, and a key of the same name can be deleted and made again: by another
//     owner, or by the same one for another grant.
//   - A lease ID is not a token. It is not monotone: etcd composes it of a member
//     ID, a time and a counter, so that a later lease can have a smaller ID when
//     another member granted it. One lease can also serve many grants.
//   - The revision in a response header is not a token. It is that of the whole
//     store at the moment of the answer. It equals the create revision only if the
//     lock was free; whenever the lock was contended, the answer that says "it is
//     yours now" comes later and has a larger revision, which changes with every
//     read and which no compare of etcd can check. Mixing both for one lock breaks
//     the comparison for equality. Take the create revision, as [FromKey] does.
//   - The mod revision of the lock key is not a token: it changes when the value
//     of the key does.
//   - A clock is not a token. Clocks of two machines disagree, and each may be set
//     back.
//
// # What a token does not do
//
//   - It is neither a secret nor a credential. It can be guessed and may be logged.
//     Authenticate callers by other means; whoever may present any number can
//     present one that is too large.
//   - It does not help to compare it only at the client, or to ask etcd "am I still
//     the owner?" before the write: the client can pause between the answer and the
//     write. The comparison must happen where the effect happens, in one step with
//     it: that is what package resourceguard and the guards below it do.
//   - It does not order the grants of different locks. Their numbers come from one
//     counter, but the owner of one lock is not newer than the owner of another:
//     [Token.Compare] refuses. A resource belongs to one lock.
//   - It does not say which etcd issued it. Two clusters, or two prefixes in one,
//     may have locks of one name; a resource belongs to one of them. Put the name
//     of the authority into that of the lock where they could meet.
//   - It does not order the writes of one owner under one grant.
//
// # Storing and sending
//
// [Token.String] is the whole token as text: printable ASCII without spaces, for a
// header, an environment variable, an annotation, a log line or a row. [Parse] is
// its strict inverse. In JSON a token is a string: many readers round numbers above
// 2^53. A resource that knows its lock and wants a number stores [Token.Int64], and
// one that compares bytes stores [Token.SortKey]; both order as [Token.Compare]
// does.
//
// The zero Token is no token. It is refused wherever one is presented, and so a
// forgotten token never passes as an old one.
package revisionfence
