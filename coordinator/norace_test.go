//go:build !race

package coordinator_test

const raced = false
