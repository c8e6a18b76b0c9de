package embedded

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Leader returns the index of the leader. It waits until there is one that most
// members follow, and fails the test when there is none within a minute.
func (c *Cluster) Leader(t TB) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	leader, _, err := c.leader(ctx, nobody)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return leader
}

// MoveLeader makes the member with this index the leader, and returns when most
// members follow it. The old leader and its clients stay connected. The member
// must run and be reachable, else the test fails.
func (c *Cluster) MoveLeader(t TB, to int) {
	t.Helper()
	if !c.has(t, to) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := c.moveLeader(ctx, to); err != nil {
		t.Fatalf("%v", err)
	}
}

func (c *Cluster) moveLeader(ctx context.Context, to int) error {
	for {
		from, ids, err := c.leader(ctx, to)
		if err != nil || from == to {
			return err
		}
		id := ids[to]
		if id == 0 {
			return fmt.Errorf("embedded: move leader: member %d does not answer", to)
		}
		// Only the leader itself takes this request.
		err = c.ask(ctx, from, func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.MoveLeader(ctx, id)
			return err
		})
		// There may have been an election in between.
		if err != nil && !errors.Is(err, rpctypes.ErrNotLeader) && !errors.Is(err, rpctypes.ErrNoLeader) {
			return fmt.Errorf("embedded: move leader: %w", err)
		}
	}
}

// nobody stands for no member.
const nobody = -1

// leader waits for a leader. It also returns the IDs of the members that have
// answered, by index, and waits for one member's answer or its failure to, if
// one is given.
func (c *Cluster) leader(ctx context.Context, beside int) (int, []uint64, error) {
	type answer struct {
		member       int
		id, followed uint64
		err          error
	}
	ctx, cancel := context.WithCancelCause(ctx)
	answers := make(chan answer)
	var asking sync.WaitGroup
	for _, m := range c.members {
		// Each at its own pace: the time of an election is not to be spent on
		// a member that is dead or paused.
		asking.Go(func() {
			for ctx.Err() == nil {
				a := answer{member: m.index}
				a.err = c.ask(ctx, m.index, func(ctx context.Context, client *clientv3.Client) error {
					s, err := client.Status(ctx, m.Endpoint())
					if err == nil {
						a.id, a.followed = s.Header.MemberId, s.Leader
					}
					return err
				})
				select {
				case answers <- a:
				case <-ctx.Done():
				}
				sleep(ctx, 5*time.Millisecond) // an election tells nobody who is no member
			}
		})
	}
	defer asking.Wait()
	defer cancel(nil)
	ids, followed := make([]uint64, len(c.members)), make([]uint64, len(c.members))
	asked, errs := make([]bool, len(c.members)), make([]error, len(c.members))
	for {
		select {
		case a := <-answers:
			ids[a.member], followed[a.member], errs[a.member], asked[a.member] = a.id, a.followed, a.err, true
		case <-ctx.Done():
			return nobody, nil, errors.Join(fmt.Errorf("embedded: no leader: %w", context.Cause(ctx)), errors.Join(errs...))
		}
		if leader := elected(ids, followed); leader != nobody && (beside == nobody || asked[beside]) {
			return leader, ids, nil
		}
	}
}

// sleep ends early with ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// elected returns the member that calls itself the leader and that most members
// follow, or nobody. A leader that is cut off believes in itself for some time.
func elected(ids, followed []uint64) int {
	for i, id := range ids {
		if id == 0 || followed[i] != id {
			continue
		}
		votes := 0
		for _, f := range followed {
			if f == id {
				votes++
			}
		}
		if votes > len(ids)/2 {
			return i
		}
	}
	return nobody
}

// askTimeout is how long one member is asked: a paused one never answers.
const askTimeout = time.Second

// ask sends a request to one member and to no other.
func (c *Cluster) ask(ctx context.Context, member int, f func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	config := c.ClientConfig()
	config.Context = ctx // with a password, New asks the member already
	config.Endpoints = []string{c.members[member].Endpoint()}
	client, err := clientv3.New(config)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := f(ctx, client); err != nil {
		return fmt.Errorf("member %d: %w", member, err)
	}
	return nil
}
