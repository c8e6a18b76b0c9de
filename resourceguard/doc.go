// Package resourceguard is the rule by which a resource admits fencing tokens,
// with the errors and outcomes that all guards share.
//
// A lock alone cannot keep an old owner from writing. A process that is paused
// past the end of its lease goes on where it stopped, and no clock, lease or
// renewal of its own can stop it in time. What can is the resource: it knows the
// last token that it accepted (its mark), and refuses every lower one.
//
// # What a guard is
//
// A guard stands where the effect happens and, in one atomic step with the
// effect, compares the token of the write with the mark, stores the new value and
// stores the new mark. [Rule] is that comparison: it is pure, and the same for
// every guard. The step is the backend's: a transaction, a script, a conditional
// write, a mutex.
//
// In the words of these packages a token is older or newer than another one of the
// same lock, and stale once the resource has accepted a newer one: lower than the
// mark, or equal to it where one write is allowed for each grant. An old owner is
// one whose grant has ended, whether it knows or not; its token need not be stale yet.
//
// # Guarantees
//
// For one resource and the lock that guards it, provided that every write goes
// through guards that pass package guardtest, except for what a guard declares
// there that it lacks:
//
//   - Once a token has been accepted, no lower one is: not after a restart, not
//     after the value was deleted, not when two writers race.
//   - A refused write changes nothing, and its error says why: never a time-out,
//     never silence.
//   - Tokens of another lock, missing tokens and, where a ceiling is known, tokens
//     that nobody can have been granted are refused before anything is stored.
//   - A mark that cannot be read refuses writes. It never counts as no mark.
//   - A repeated operation is applied once, for as long as its result is kept.
//
// # What this does not guarantee
//
//   - That an old owner is refused at once. A guard that decides by its mark
//     learns of a new owner from the first call that carries the newer token:
//     call [Guard.Advance] after the grant and before the first read.
//   - Order within one grant. An owner's older write whose outcome was unknown can
//     still arrive after its newer one. After [Unknown], repeat under an operation
//     ID, or acquire the lock again.
//   - Order across resources. Each has a mark of its own.
//   - Anything about writers that go around the guard.
//   - Who the caller is. A token is not a credential: authenticate callers first.
//     Whoever may present tokens can present one that is too large, and lock the
//     real owners out until an operator has repaired the mark ([Guard.SetFloor]).
//     A ceiling bounds that.
//
// # Where no guard can be
//
// A token that is only written into a log line, a message or an e-mail protects
// nothing: it shows afterwards what went wrong. Checking the token in the client,
// or on the way, protects nothing either, since the client can pause between its
// check and the effect. For a resource that can neither compare nor store a token
// there are three ways, and none of them is free:
//
//   - a gate in front of it that is the only way in, has a guard, and finishes each
//     request before it admits the next;
//   - the resource's own versions, where it has them: write only if it is still at
//     the version read under this token;
//   - a person who looks before the irreversible step.
//
// # Writing a guard of one's own
//
// Read the mark, ask the rule, and store, inside of one step of the backend:
//
//	BEGIN
//	  stored := NoMark(), MarkOf(t) or ParseMark(text): what is there
//	  decision, err := Rule{Lock: lock, Policy: policy}.Admit(stored, w.Token)
//	  refused:  roll back, return ForResource(w.Resource, err)
//	  Raise:    store w.Token as the mark
//	  store the effect
//	COMMIT
//
// And then:
//
//   - Be told which lock guards a resource, by configuration. A guard that takes
//     the lock of the first token it sees trusts whoever comes first.
//   - Tell "there is no mark" from "I could not read it": [NoMark] is for the first
//     alone. The zero [Stored] is the second.
//   - Use [Rule.Advance] for barriers and for the replay of a saved operation, and
//     [Rule.Floor] for repairs. Check the token before an operation ID opens any
//     door; when it is stale and the operation is known, fill in
//     [StaleError.Applied].
//   - Where owners are stored, store that of a write with its mark, and none with
//     the mark of an Advance, which knows no owner: the next write with an equal
//     token stores its own. See [CheckOwner].
//   - Refuse a context that has ended in every method, and change nothing: in
//     writes and in Advance, Mark, Marks and SetFloor too.
//   - Keep the mark when the value is deleted. That costs one small record for
//     every resource that ever had a token, for ever; whoever removes it must know
//     that no old owner is left.
//   - Give every error an outcome: see below.
//   - Let package guardtest look at it.
//
// # Errors and outcomes
//
// Every refusal is one of the errors here, by errors.Is; a stale token is also a
// [*StaleError] by errors.As. All of them mean that nothing was changed.
//
// Everything else is the backend's error, and what matters about it is whether the
// write took effect: [OutcomeOf] is [NotApplied], [Applied] or [Unknown]. A guard
// classifies its backend's errors in one function and attaches the outcome with
// [WithOutcome]. When in doubt it is [Unknown], which is what an error without an
// outcome counts as.
//
// Under [AcceptEqual] a call that was [NotApplied] can be made again with the same
// token, unless the error is a refusal. A call of [Unknown] outcome can be made
// again under its operation ID only; the guard then says whether the first attempt
// got through.
package resourceguard
