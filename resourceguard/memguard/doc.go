// Package memguard is the reference guard: values, marks and operations in
// memory, check and effect in one critical section.
//
// It shows the shape that every guard has, it stands in for a guard in tests of
// code that writes under tokens, and it is what the conformance kit in package
// guardtest was tried on first. It protects what lives in one process, such as a
// cache that several goroutines fill for owners elsewhere. Its marks end with the
// process; so do the values, so that no old writer can meet a value without its
// mark.
//
// # One step
//
// Everything happens under the lock of the [Store]: the rule is asked, the
// function of [Guard.Do] runs on a copy, and value, mark and saved result are
// stored together or, when anything failed, not at all. Nothing is decided on
// what was read earlier.
//
// # Errors
//
// Every error has a definite outcome: it is [resourceguard.NotApplied], since
// there is no answer that could be lost on the way.
package memguard
