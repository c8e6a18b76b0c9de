package embedded

import "testing"

// Members tell of different leaders for a moment, and a restarted one of none.
func TestLeaderIsWhomMostFollow(t *testing.T) {
	const none = 0
	three := []uint64{11, 12, 13}
	for _, tt := range []struct {
		name          string
		ids, followed []uint64
		want          int
	}{
		{"all agree", three, []uint64{12, 12, 12}, 1},
		{"one has not heard yet", three, []uint64{none, 12, 12}, 1},
		{"a cut-off leader of the past believes in itself", three, []uint64{11, 12, 12}, 1},
		{"only the past leader has answered", three, []uint64{11, none, none}, nobody},
		{"the past leader and who is behind, before the third has answered", []uint64{11, 12, none}, []uint64{11, 11, none}, 0},
		{"the followers know it before it does", three, []uint64{12, none, 12}, nobody},
		{"nobody is elected", three, []uint64{none, none, none}, nobody},
		{"nobody has answered", []uint64{none, none, none}, []uint64{none, none, none}, nobody},
		{"half of four is not most", []uint64{11, 12, 13, 14}, []uint64{11, 11, 13, 13}, nobody},
		{"a single member", []uint64{11}, []uint64{11}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := elected(tt.ids, tt.followed); got != tt.want {
				t.Errorf("elected(%v, %v) = %d, want %d", tt.ids, tt.followed, got, tt.want)
			}
		})
	}
}
