package etcdguard

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

const (
	// pruneEvery is after how many operations a guard looks for old records, and
	// prunePage at how many it looks then: four for each that it writes, so that
	// the old ones stay few beside those that are kept.
	pruneEvery = 16
	prunePage  = 64
	// pruneTimeout bounds what a caller waits for on behalf of others.
	pruneTimeout = time.Second
)

// pruning is how far a guard has come with looking for old records.
type pruning struct {
	mu    sync.Mutex
	count int
	next  string // the key to go on at
	busy  bool
}

// pruneSometimes deletes some records that are old enough. It is part of some calls
// and not a goroutine, since a guard has no end at which one could be stopped. Its
// failures are counted: the caller's operation has been applied.
func (g *Guard) pruneSometimes(ctx context.Context) {
	g.pruning.mu.Lock()
	g.pruning.count++
	due := g.pruning.count >= pruneEvery && !g.pruning.busy
	if due {
		g.pruning.count, g.pruning.busy = 0, true
	}
	from := max(g.pruning.next, g.opts.ops())
	g.pruning.mu.Unlock()
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pruneTimeout)
	defer cancel()
	next, err := g.prune(ctx, from)
	if err != nil {
		g.metrics.pruneFailures.Inc()
	}
	g.pruning.mu.Lock()
	defer g.pruning.mu.Unlock()
	g.pruning.next, g.pruning.busy = next, false
}

// prune looks at one page of records and returns where to go on.
func (g *Guard) prune(ctx context.Context, from string) (next string, err error) {
	page, err := g.once.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(g.opts.ops())), clientv3.WithLimit(prunePage))
	if err != nil {
		return from, err
	}
	if n := len(page.Kvs); page.More && n > 0 {
		next = string(page.Kvs[n-1].Key) + "\x00"
	}
	candidates := g.expired((*pb.RangeResponse)(page))
	if len(candidates) == 0 {
		return next, nil
	}
	var marks []clientv3.Op
	for _, c := range candidates {
		marks = append(marks, clientv3.OpGet(g.opts.mark(c.resource)))
	}
	resp, err := g.once.Txn(ctx).Then(marks...).Commit()
	if err != nil {
		return from, err
	}
	t := transaction{otherwise: []clientv3.Op{clientv3.OpGet(g.opts.epoch())}}
	for i, c := range candidates {
		// The owner of the mark may still be waiting for the answer.
		if m := markIn(resp.Responses[i].GetResponseRange()); m.token() == c.token {
			continue
		}
		t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(c.key), "=", c.mod))
		t.then = append(t.then, clientv3.OpDelete(c.key))
	}
	if len(t.then) == 0 {
		return next, nil
	}
	deleted, err := g.once.Txn(ctx).If(t.compares...).Then(t.then...).Else(t.otherwise...).Commit()
	if err != nil {
		return from, err
	}
	if deleted.Succeeded { // else another guard was here
		g.metrics.pruned.Add(float64(len(t.then)))
	}
	return next, nil
}

// candidate is a record that is old enough.
type candidate struct {
	key, resource string
	token         revisionfence.Token
	mod           int64
}

// expired picks the records that are old enough. What cannot be read is left alone.
func (g *Guard) expired(page *pb.RangeResponse) []candidate {
	var result []candidate
	for _, kv := range page.Kvs {
		escaped, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), g.opts.ops()), "/")
		resource, badName := url.PathUnescape(escaped)
		s, err := readSaved(kv)
		if badName != nil || err != nil || time.Since(s.At) <= g.opts.KeepOperations {
			continue
		}
		result = append(result, candidate{key: string(kv.Key), resource: resource, token: s.Token, mod: kv.ModRevision})
	}
	return result
}
