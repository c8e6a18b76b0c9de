//go:build unix

package etcdguard_test

import (
	"testing"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// Members die, or stop with their sockets open, while all is written.
func TestFaultsOfMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as many other tests together: not in a quick run (-short)")
	}
	etcd := embedded.Start(t, &embedded.Options{Members: 3, Process: true})
	s := &stage{etcd: etcd, truth: etcd.NewClient(t)}
	for _, f := range []struct {
		name         string
		strike, mend func(embedded.TB, ...int)
	}{
		{"leader killed", etcd.Kill, etcd.Restart},
		{"leader stopped", etcd.Pause, etcd.Resume},
	} {
		victim := etcd.Leader(t)
		s.client = etcd.NewClient(t)
		var alive []string
		for i, endpoint := range etcd.Endpoints() {
			if i != victim {
				alive = append(alive, endpoint)
			}
		}
		s.truth.SetEndpoints(alive...)
		fault{
			name: f.name, with: unclear,
			cause: func(t *testing.T, _ *stage) {
				f.strike(t, victim)
				etcd.Leader(t) // there is one again
			},
			over: func(t *testing.T, _ *stage) { f.mend(t, victim) },
		}.strike(t, s)
	}
}
