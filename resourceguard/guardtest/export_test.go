package guardtest

import "time"

// Measure is one sub-benchmark of [Benchmark].
var Measure = measure

// Hurry makes the kit try competing writers for a few rounds only, and returns
// what gives it its time back.
func Hurry() (restore func()) {
	rounds, held := roundsTime, meanwhile
	roundsTime, meanwhile = 0, 10*time.Millisecond
	return func() { roundsTime, meanwhile = rounds, held }
}
