package etcdguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// maxOperations is etcd's limit on what one transaction may have of each, unless
// its server is told otherwise.
const maxOperations = 128

// call is one call in mode HighWater.
type call struct {
	claims    []claim
	ops       []clientv3.Op
	advance   bool // a barrier, without operations
	reads     bool // writes nothing but marks
	operation resourceguard.Operation
}

// answer is what became of a call that was let through.
type answer struct {
	resp     *clientv3.TxnResponse // of the operations alone
	saved    *saved                // the call was an operation that had been applied before
	revision int64
}

// highWater carries a call out. Where the marks are known to be the caller's own, one
// transaction does it. Else what is there is read first, and then stored with the
// marks, so that the payload travels once.
func (g *Guard) highWater(ctx context.Context, c call) (answer, error) {
	if texts := g.known(c); texts != nil {
		a, done, err := g.steady(ctx, c, texts)
		if done || err != nil {
			return a, err
		}
	}
	for {
		v, err := g.look(ctx, c)
		if err != nil {
			return answer{}, err
		}
		p, err := g.decide(c, v)
		if err != nil {
			return answer{}, notApplied(err)
		}
		a, done, err := g.carryOut(ctx, c, p)
		if done || err != nil {
			return a, err
		}
		// Somebody has changed a mark meanwhile, or the grant has ended. Whoever
		// changes a mark for long makes progress, so there is nothing to wait for.
	}
}

// steady lets the marks decide. It is not done if they are not as expected and that
// alone does not refuse the call.
//
// Step M1: the write's own transaction compares the mark, whole.
func (g *Guard) steady(ctx context.Context, c call, texts []string) (a answer, done bool, err error) {
	t := transaction{reads: c.reads}
	for i := range c.claims {
		key := g.opts.mark(c.claims[i].resource)
		t.compares = append(t.compares, clientv3.Compare(clientv3.Value(key), "=", texts[i]))
		t.otherwise = append(t.otherwise, clientv3.OpGet(key))
	}
	if c.saves() {
		t.compares = append(t.compares, g.unsaved(c))
		t.otherwise = append(t.otherwise, clientv3.OpGet(g.opts.op(c.claims[0].resource, c.operation.ID)))
	}
	applied, _ := parseMark(texts[0])
	t.then = g.body(c, applied)
	t.compares = g.cut("steady", t.compares)
	resp, err := g.send(ctx, t, c.what())
	if err != nil {
		return answer{}, true, err
	}
	if resp.Succeeded {
		return c.answered(resp, 0), true, nil
	}
	return g.refusedSteadily(c, texts, resp)
}

// refusedSteadily looks at what stood there instead. Only what is certain without
// the lock key is decided here.
func (g *Guard) refusedSteadily(c call, texts []string, resp *clientv3.TxnResponse) (answer, bool, error) {
	s, unreadable := c.savedAt(resp.Responses, len(c.claims))
	asExpected := true
	for i := range c.claims {
		m := markIn(resp.Responses[i].GetResponseRange())
		asExpected = asExpected && m.text == texts[i]
		rule := resourceguard.Rule{Lock: c.claims[i].lock, Policy: g.opts.Policy}
		if _, _, err := rule.Advance(m.stored, c.claims[i].fence.token); errors.Is(err, resourceguard.ErrStale) && !c.claims[i].fence.epochless {
			g.forget(c.claims[i].resource)
			return answer{}, true, notApplied(sayApplied(c, s, resourceguard.ForResource(c.claims[i].resource, err)))
		}
	}
	if !asExpected || s == nil && unreadable == nil {
		return answer{}, false, nil
	}
	if err := errors.Join(unreadable, c.checkDigest(s)); err != nil {
		return answer{}, true, notApplied(resourceguard.ForResource(c.claims[0].resource, err))
	}
	return c.replayed(s), true, nil
}

// view is what a call finds in etcd, at one revision.
type view struct {
	epoch    uint16
	revision int64
	marks    []mark
	first    []*pb.RangeResponse // of the directory
	saved    *saved

	unreadable error // the saved one
}

// look reads all that a decision needs in one transaction, linearizably.
func (g *Guard) look(ctx context.Context, c call) (view, error) {
	ops := []clientv3.Op{clientv3.OpGet(g.opts.epoch())}
	for i := range c.claims {
		cl := &c.claims[i]
		ops = append(ops, clientv3.OpGet(g.opts.mark(cl.resource)), firstIn(cl.fence.directory))
	}
	if c.saves() {
		ops = append(ops, clientv3.OpGet(g.opts.op(c.claims[0].resource, c.operation.ID)))
	}
	resp, err := g.send(ctx, transaction{then: folded(ops), reads: true}, c.what())
	if err != nil {
		return view{}, err
	}
	resp.Responses = unfolded(resp.Responses)
	v := view{revision: resp.Header.Revision}
	// To a coordinator, marks without an epoch record are the remains of a restore: it
	// grants nothing. So the first mark waits for the record.
	if len(resp.Responses[0].GetResponseRange().GetKvs()) == 0 {
		return view{}, notApplied(fmt.Errorf("%w: %s is missing, call Ping of a coordinator with this prefix first", ErrNoEpoch, g.opts.epoch()))
	}
	if v.epoch, err = epochIn(resp.Responses[0].GetResponseRange()); err != nil {
		return view{}, notApplied(err)
	}
	for i := range c.claims {
		r := resp.Responses[1+2*i:]
		v.marks = append(v.marks, markIn(r[0].GetResponseRange()))
		v.first = append(v.first, r[1].GetResponseRange())
	}
	v.saved, v.unreadable = c.savedAt(resp.Responses, 1+2*len(c.claims))
	return v, nil
}

// plan is a transaction that has been found admissible by a view, and holds only if
// what the view showed still stands.
type plan struct {
	steps []step // one for each claim
	saved *saved // the operation was applied before: marks may rise, nothing else happens
}

// step is what a plan does about one mark.
type step struct {
	compares []clientv3.Cmp
	put      string // the new text, "" to leave the mark
	text     string // the text afterwards, "" if there is no mark
	raises   bool
}

// decide applies the rule. The token comes first, whatever is known about the
// operation: an ID must not open the door to an old token.
func (g *Guard) decide(c call, v view) (plan, error) {
	p := plan{saved: v.saved}
	for i := range c.claims {
		s, err := g.step(c, v, i)
		if err != nil {
			return p, sayApplied(c, v.saved, resourceguard.ForResource(c.claims[i].resource, err))
		}
		p.steps = append(p.steps, s)
	}
	if err := errors.Join(v.unreadable, c.checkDigest(v.saved)); err != nil {
		return p, resourceguard.ForResource(c.claims[0].resource, err)
	}
	return p, nil
}

// step decides about one claim. Step M2: whatever it decides holds for the mark that
// it saw, so of two writes that find the same mark one is decided anew. To raise it,
// step M3: the lock key must exist with the token as its create revision, or a token
// that ended, or was never given, could raise. Step M4: it must be the first in the
// queue, as the key of a waiter exists as well.
func (g *Guard) step(c call, v view, i int) (step, error) {
	cl, m := &c.claims[i], v.marks[i]
	t, err := cl.token(v.epoch)
	if err != nil {
		return step{}, err
	}
	rule := resourceguard.Rule{Lock: cl.lock, Policy: g.opts.Policy, Ceiling: ceiling(t, v)}
	target, decision, err := rule.Advance(m.stored, t)
	if err != nil {
		return step{}, err
	}
	if m.token() == t {
		if err := resourceguard.CheckOwner(m.owner, cl.fence.owner); err != nil {
			return step{}, err
		}
	}
	if !c.reads && v.saved == nil {
		if decision, err = rule.Admit(m.stored, t); err != nil {
			return step{}, err
		}
		target = t
	}
	key := g.opts.mark(cl.resource)
	s := step{text: m.text, compares: []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", m.mod)}}
	if decision == resourceguard.Raise {
		lockKey, err := cl.held(t, v, i)
		if err != nil {
			return step{}, err
		}
		owner := ownerOf(lockKey, cl.fence.directory)
		if target != t {
			owner = "" // that of the token below is not known
		}
		s.raises = true
		s.put = markText(target, owner)
		s.compares = append(s.compares,
			clientv3.Compare(clientv3.CreateRevision(lockKey), "=", t.Revision()),
			clientv3.Compare(clientv3.CreateRevision(cl.fence.directory), ">", t.Revision()-1).WithPrefix())
	} else if m.token() == t && m.owner == "" && cl.fence.owner != "" {
		// Of a floor the owner is not known. The first to name itself is it, unless the
		// lock key is there and says otherwise: a wrong name would lock the owner out.
		if ownerIn(v.first[i], t.Lock(), v.epoch) == t {
			if _, err := cl.held(t, v, i); err != nil {
				return step{}, err
			}
		}
		s.put = markText(t, cl.fence.owner)
	}
	if s.put != "" {
		s.text = s.put
	}
	return s, nil
}

// ceiling is the largest token that can have been issued by the time of the view.
func ceiling(t revisionfence.Token, v view) revisionfence.Token {
	c, _ := revisionfence.New(t.Lock(), v.epoch, v.revision) // none if that is no token
	return c
}

// held returns the lock key of the token, which has to be the first of its queue:
// that of a waiter exists as well, and must not pass. A token alone does not tell the
// name, and the queue does.
func (c *claim) held(t revisionfence.Token, v view, i int) (string, error) {
	if owner := ownerIn(v.first[i], t.Lock(), v.epoch); owner != t {
		return "", &endedError{&resourceguard.StaleError{Presented: t, Accepted: owner}, c.fence.directory}
	}
	key := string(v.first[i].Kvs[0].Key)
	return key, resourceguard.CheckOwner(ownerOf(key, c.fence.directory), c.fence.owner)
}

// carryOut sends a plan. It is not done if what the plan was made from has changed.
func (g *Guard) carryOut(ctx context.Context, c call, p plan) (a answer, done bool, err error) {
	t := transaction{reads: c.reads}
	for i, s := range p.steps {
		t.compares = append(t.compares, s.compares...)
		if s.put != "" {
			t.then = append(t.then, clientv3.OpPut(g.opts.mark(c.claims[i].resource), s.put))
		}
	}
	puts := len(t.then)
	switch {
	case p.saved != nil && puts == 0:
		return c.replayed(p.saved), true, nil
	case p.saved != nil:
		t.reads = true // of the payload nothing is sent
	case c.advance && puts == 0:
		return answer{}, true, nil
	default:
		if c.saves() {
			t.compares = append(t.compares, g.unsaved(c))
		}
		applied, _ := parseMark(p.steps[0].text)
		t.then = append(t.then, g.body(c, applied)...)
	}
	if puts > 0 && p.saved == nil && g.opts.Policy == resourceguard.AcceptEqual && !fits(t.compares, t.then, nil, maxOperations) {
		return g.raiseFirst(ctx, c, p)
	}
	// An Else that reads keeps a transaction without operations from being
	// answered by a member that does not ask its peers.
	t.otherwise = []clientv3.Op{clientv3.OpGet(g.opts.mark(c.claims[0].resource))}
	t.compares = g.cut("slow", t.compares)
	w := c.what()
	w.raises = puts > 0
	resp, err := g.send(ctx, t, w)
	if err != nil || !resp.Succeeded {
		return answer{}, err != nil, err
	}
	g.raised(c, p)
	if p.saved != nil {
		return c.replayed(p.saved), true, nil
	}
	return c.answered(resp, puts), true, nil
}

// raiseFirst is for a call that leaves no room for the marks: they are raised
// before, one by one, which under AcceptEqual changes nothing about the call.
func (g *Guard) raiseFirst(ctx context.Context, c call, p plan) (answer, bool, error) {
	var texts []string
	for i, s := range p.steps {
		texts = append(texts, s.text)
		if s.put == "" {
			continue
		}
		alone := call{claims: c.claims[i : i+1], advance: true, reads: true}
		_, done, err := g.carryOut(ctx, alone, plan{steps: p.steps[i : i+1]})
		if !done || err != nil {
			// Of the call itself nothing has been sent.
			return answer{}, err != nil, resourceguard.WithOutcome(err, resourceguard.NotApplied)
		}
	}
	return g.steady(ctx, c, texts)
}

// fits reports whether etcd takes a transaction, by its own count.
func fits(compares []clientv3.Cmp, then, otherwise []clientv3.Op, limit int) bool {
	n := max(len(compares), len(then), len(otherwise))
	if n > limit {
		return false
	}
	for _, op := range slices.Concat(then, otherwise) {
		if !op.IsTxn() {
			continue
		}
		if compares, then, otherwise := op.Txn(); !fits(compares, then, otherwise, limit-n) {
			return false
		}
	}
	return true
}

// saves reports whether the call is an operation whose result is kept.
func (c *call) saves() bool { return c.operation.ID != "" && !c.reads }

func (c *call) what() what {
	w := what{resource: c.claims[0].resource, reads: c.reads, advance: c.advance}
	if len(c.ops) > 0 {
		w.key = resourceOf(c.ops)
	}
	return w
}

func (c *call) savedAt(responses []*pb.ResponseOp, i int) (*saved, error) {
	if !c.saves() {
		return nil, nil //nolint:nilnil // none was asked for
	}
	return savedIn(responses[i].GetResponseRange())
}

func (c *call) checkDigest(s *saved) error {
	if s == nil || bytes.Equal(s.Digest, c.operation.Digest) {
		return nil
	}
	return fmt.Errorf("%w: ID %q", resourceguard.ErrOperationReused, c.operation.ID)
}

// unsaved says that the operation was not applied before.
func (g *Guard) unsaved(c call) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(g.opts.op(c.claims[0].resource, c.operation.ID)), "=", 0)
}

// body is the operations of the call, with the record that they were applied. That
// of a transaction with branches stands in each, for the record to name it.
func (g *Guard) body(c call, under resourceguard.Stored) []clientv3.Op {
	if !c.saves() {
		return c.ops
	}
	t, _, _ := under.Mark()
	record := func(succeeded bool) clientv3.Op {
		return clientv3.OpPut(g.opts.op(c.claims[0].resource, c.operation.ID), encode(operationRecord{
			Format: recordFormat, Token: t, Digest: c.operation.Digest, Succeeded: succeeded, At: time.Now().UTC(),
		}))
	}
	if len(c.ops) == 1 && c.ops[0].IsTxn() {
		compares, then, otherwise := c.ops[0].Txn()
		return []clientv3.Op{clientv3.OpTxn(compares, slices.Concat([]clientv3.Op{record(true)}, then), slices.Concat([]clientv3.Op{record(false)}, otherwise))}
	}
	return slices.Concat([]clientv3.Op{record(true)}, c.ops)
}

// answered takes what is ours out of an answer: skip marks, and the record.
func (c *call) answered(resp *clientv3.TxnResponse, skip int) answer {
	resp.Responses = resp.Responses[skip:]
	if c.saves() {
		if len(c.ops) == 1 && c.ops[0].IsTxn() {
			inner := resp.Responses[0].GetResponseTxn()
			inner.Responses = inner.Responses[1:]
		} else {
			resp.Responses = resp.Responses[1:]
		}
	}
	return answer{resp: resp, revision: resp.Header.Revision}
}
