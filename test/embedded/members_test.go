package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// startThree starts three members, and says how long that took.
func startThree(t *testing.T, opts *embedded.Options) *embedded.Cluster {
	t.Helper()
	began := time.Now()
	opts.Members = 3
	etcd := embedded.Start(t, opts)
	t.Logf("three members ready after %v", time.Since(began).Round(time.Millisecond))
	return etcd
}

// only returns a client of one member.
func only(t *testing.T, etcd *embedded.Cluster, member int) *clientv3.Client {
	t.Helper()
	return etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = etcd.Endpoints()[member : member+1] })
}

// put writes, again and again while an election may be under way. Each attempt
// has a bound of its own: one that went to a paused member never ends.
func put(ctx context.Context, t *testing.T, client *clientv3.Client, key string) {
	t.Helper()
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := client.Put(attempt, key, "value")
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("put %s: %v", key, err)
		}
	}
}

// serializable says whether the member has the key in its own data.
func serializable(ctx context.Context, t *testing.T, client *clientv3.Client, key string) bool {
	t.Helper()
	resp, err := client.Get(ctx, key, clientv3.WithSerializable())
	if err != nil {
		t.Fatal(err)
	}
	return len(resp.Kvs) == 1
}

func TestAKilledLeaderIsReplaced(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		etcd := startThree(t, opts)
		ctx := bounded(t)
		put(ctx, t, etcd.Client(), "before")
		old := etcd.Leader(t)
		began := time.Now()
		etcd.Kill(t, old)
		t.Logf("kill took %v", time.Since(began).Round(time.Millisecond))
		if leader := etcd.Leader(t); leader == old {
			t.Errorf("member %d is dead and leads", old)
		}
		put(ctx, t, etcd.Client(), "after")
		t.Logf("written %v after the kill began", time.Since(began).Round(time.Millisecond))

		began = time.Now()
		etcd.Restart(t, old)
		t.Logf("restart took %v", time.Since(began).Round(time.Millisecond))
		if !serializable(ctx, t, only(t, etcd, old), "after") {
			t.Error("Restart has returned and the member has not caught up")
		}
	})
}

func TestAMinorityDoesNotStopWritesAMajorityDoes(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		etcd := startThree(t, opts)
		ctx := bounded(t)
		leader := etcd.Leader(t)
		one, two := (leader+1)%3, (leader+2)%3
		etcd.Stop(t, one)
		put(ctx, t, etcd.Client(), "minority")
		etcd.Stop(t, two)
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		if _, err := only(t, etcd, leader).Put(short, "majority", ""); err == nil {
			t.Error("one member of three takes a write")
		}
		// The two others cannot answer before both run, so they start together.
		began := time.Now()
		etcd.Restart(t, one, two)
		t.Logf("restart of two took %v", time.Since(began).Round(time.Millisecond))
		put(ctx, t, etcd.Client(), "again")
		for i := range 3 {
			if _, err := only(t, etcd, i).Get(ctx, "again"); err != nil {
				t.Errorf("member %d: %v", i, err)
			}
		}
	})
}

func TestAllMembersRestartTogether(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		etcd := startThree(t, opts)
		ctx := bounded(t)
		put(ctx, t, etcd.Client(), "key")
		began := time.Now()
		etcd.Stop(t, 0, 1, 2)
		t.Logf("stop of all took %v", time.Since(began).Round(time.Millisecond))
		began = time.Now()
		etcd.Restart(t, 0, 1, 2)
		t.Logf("restart of all took %v", time.Since(began).Round(time.Millisecond))
		if resp, err := etcd.Client().Get(ctx, "key"); err != nil || len(resp.Kvs) != 1 {
			t.Errorf("after the restart of all: %v, %v", resp, err)
		}
	})
}

func TestMoveLeaderMovesIt(t *testing.T) {
	etcd := startThree(t, &embedded.Options{})
	for _, to := range []int{0, 1, 2, 2} {
		etcd.MoveLeader(t, to)
		if leader := etcd.Leader(t); leader != to {
			t.Errorf("moved to member %d, member %d leads", to, leader)
		}
	}
	tb := new(fakeTB)
	tb.run(func() {
		etcd.Stop(tb, 0)
		etcd.MoveLeader(tb, 0)
	})
	if !strings.Contains(tb.output.String(), "member 0 does not answer") {
		t.Errorf("moved to a stopped member: %s", tb.output.String())
	}
}

func TestAPausedLeaderIsReplaced(t *testing.T) {
	needsProcess(t)
	etcd := startThree(t, &embedded.Options{Process: true})
	old := etcd.Leader(t)
	etcd.Pause(t, old)
	if leader := etcd.Leader(t); leader == old {
		t.Errorf("member %d is paused and leads", old)
	}
	put(bounded(t), t, only(t, etcd, etcd.Leader(t)), "key")
	etcd.Resume(t, old)
	if resp, err := only(t, etcd, old).Get(bounded(t), "key"); err != nil || len(resp.Kvs) != 1 {
		t.Errorf("the resumed member: %v, %v", resp, err)
	}
}

func TestAClientCanBeCutOffFromOneMemberOrAll(t *testing.T) {
	etcd := startThree(t, &embedded.Options{})
	ctx := bounded(t)
	proxies := etcd.Proxies(t)
	cut := make([]*clientv3.Client, 3) // each by one proxy
	for i := range cut {
		cut[i] = etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = proxies.Endpoints()[i : i+1] })
		put(ctx, t, cut[i], "key")
	}
	reaches := func(want ...bool) {
		t.Helper()
		for i, client := range cut {
			limit := 10 * time.Second
			if !want[i] {
				limit = 100 * time.Millisecond
			}
			short, cancel := context.WithTimeout(ctx, limit)
			if _, err := client.Get(short, "key"); (err == nil) != want[i] || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("through proxy %d: %v, want an answer: %v", i, err, want[i])
			}
			cancel()
		}
	}
	proxies[1].Cut()
	reaches(true, false, true)
	proxies.Cut()
	reaches(false, false, false)
	proxies.Heal()
	reaches(true, true, true)
	proxies.Reset()
	reaches(true, true, true)
	put(ctx, t, etcd.Client(), "key") // who does not go through them notices nothing
}

func TestSeveralMembersKeepAGivenDirectory(t *testing.T) {
	dir := t.TempDir()
	for i := range 2 {
		etcd, err := embedded.Run(bounded(t), &embedded.Options{Members: 3, Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := etcd.Client().Get(bounded(t), "key")
		if err != nil || len(resp.Kvs) != i {
			t.Errorf("run %d: %v, %v", i, resp, err)
		}
		put(bounded(t), t, etcd.Client(), "key")
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := embedded.Run(bounded(t), &embedded.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "Options.Members") {
		t.Errorf("one member with the data of three: %v", err)
	}
}

func TestNumbersOfMembersThatAreRefused(t *testing.T) {
	for _, n := range []int{-1, 2, 4, 8, 9} {
		if _, err := embedded.Run(t.Context(), &embedded.Options{Members: n}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("Options.Members is %d", n)) {
			t.Errorf("%d members: %v", n, err)
		}
	}
}

// TestAFaultCostsNoMoreThanAnElection is about the speed of other people's tests:
// to be told the new leader, and to end a lease, takes an election, and not the
// time-out of a request to the dead one, which etcd has at five seconds.
func TestAFaultCostsNoMoreThanAnElection(t *testing.T) {
	etcd := startThree(t, &embedded.Options{})
	ctx := bounded(t)
	lease, err := etcd.Client().Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	for name, needsLeader := range map[string]func() error{
		"Leader":      func() error { etcd.Leader(t); return nil },
		"ExpireLease": func() error { return etcd.ExpireLease(ctx, lease.ID) },
	} {
		old := etcd.Leader(t)
		etcd.Kill(t, old)
		began := time.Now()
		if err := needsLeader(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		took := time.Since(began)
		t.Logf("%s took %v", name, took.Round(time.Millisecond))
		if took > 4*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		etcd.Restart(t, old)
	}
}

func TestAnIsolatedLeaderIsReplacedAndComesBack(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		etcd := startThree(t, opts)
		ctx := bounded(t)
		old := etcd.Leader(t)
		cut := only(t, etcd, old)
		put(ctx, t, cut, "before")
		etcd.Isolate(t, old)
		leader := etcd.Leader(t)
		for ; leader == old; leader = etcd.Leader(t) { // nobody knows yet, for an election
			if ctx.Err() != nil {
				t.Fatalf("member %d is isolated and leads", old)
			}
		}
		other := only(t, etcd, leader)
		put(ctx, t, other, "after")
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		if _, err := cut.Put(short, "lost", ""); err == nil {
			t.Error("an isolated member takes a write")
		}
		if !serializable(ctx, t, cut, "before") || serializable(ctx, t, cut, "after") {
			t.Error("clients do not reach the isolated member, or the others do")
		}
		// One that restarts meanwhile is cut off from it just the same, and with
		// it there is a majority without the isolated one.
		third := 3 - old - leader
		etcd.Restart(t, third)
		put(ctx, t, other, "later")
		if serializable(ctx, t, cut, "later") {
			t.Error("the isolated member learns from one that has restarted")
		}
		etcd.Rejoin(t, old)
		if resp, err := cut.Get(ctx, "later"); err != nil || len(resp.Kvs) != 1 {
			t.Errorf("after Rejoin: %v, %v", resp, err)
		}
		etcd.Isolate(t, third)
		etcd.Restart(t, third) // which ends it
		put(ctx, t, only(t, etcd, third), "again")
	})
}
