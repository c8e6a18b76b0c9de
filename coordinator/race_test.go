//go:build race

package coordinator_test

// raced: the race detector makes everything about ten times slower.
const raced = true
