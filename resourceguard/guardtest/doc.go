// Package guardtest checks that a guard keeps stale tokens out. Every guard of
// this module passes it, and so should one of your own:
//
//	func TestConformance(t *testing.T) {
//		guardtest.Run(t, newHarness)
//	}
//
// # What a guard brings
//
// A [Harness]: functions that open the guard, make resources and grants, and look
// at the resource behind the guard's back; and a [Subject], which is the guard
// with writing brought into one form. Most are a few lines each. The example of
// [Run] is a small guard with its harness, to copy. That of package memguard, in its
// conformance_test.go, lacks nothing; it damages a mark by a function that only
// memguard's own tests have.
//
// # What is checked
//
// One property after another, each in a subtest of its name and with a harness of
// its own: see [Properties]. A failure names the property, so that the name tells
// what is wrong with the guard. The kit judges by what is in the resource
// afterwards, never by the answers alone.
//
// # What a guard cannot do
//
// A guard declares in [Harness.Lacks] what its backend cannot do, with the reason.
// Exactly the properties that need it are skipped, and the reason is shown.
// Nothing else is skipped: what is missing and was not declared is a failure.
//
// # Races
//
// That check and effect are one step is tried with competing writers, which finds
// a defect with high probability only. A subject that implements [SlowPutter], and
// [SlowDeleter] where there are deletions, is also tried deterministically: do
// implement them.
//
// # Trying the kit
//
// [Examine] runs the properties without failing the test and returns what was
// found. Use it on a guard with a deliberate defect, to see that your harness lets
// the kit find it.
//
// # Measuring
//
// [Benchmark] measures any guard with the same harness, beside writes without it
// if the subject is a [BarePutter].
package guardtest
