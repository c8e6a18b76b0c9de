package coordinator_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// The transactions of the coordinator, by what they do.
const (
	enrols         = "enrol"          // creates the session key
	enters         = "enter"          // puts a lock key
	entersAll      = "enter all"      // puts several
	writes         = "write"          // changes what a lock key says
	reads          = "read"           // decides who owns the lock
	releases       = "release"        // deletes a lock key
	handsOn        = "hand on"        // deletes one lock key and puts another
	settles        = "settle"         // moves the session key
	looks          = "look"           // settles without moving the session key
	settlesHandOn  = "settle hand-on" // deletes the old lock key, or looks for the new one
	removes        = "remove"         // deletes a lock key that nobody knows of
	createsEpoch   = "create epoch"   // writes the epoch record
	somethingElse  = "something else" // none of these
	sessionsPrefix = coordinator.DefaultPrefix + "sessions/"
	locksPrefix    = coordinator.DefaultPrefix + "locks/"
)

// transaction says what a request does.
func transaction(call *wire.Call) string {
	txn, ok := call.Request.(*pb.TxnRequest)
	if !ok {
		return somethingElse
	}
	return transactionOf(txn)
}

func transactionOf(txn *pb.TxnRequest) string {
	under := func(key []byte, prefix string) bool { return strings.HasPrefix(string(key), prefix) }
	var putsSession, putsEpoch, deletes bool
	putsLocks := 0
	for _, op := range txn.Success {
		if put := op.GetRequestPut(); put != nil {
			putsSession = putsSession || under(put.Key, sessionsPrefix)
			if under(put.Key, locksPrefix) {
				putsLocks++
			}
			putsEpoch = putsEpoch || under(put.Key, coordinator.DefaultPrefix+"epoch")
		}
		deletes = deletes || op.GetRequestDeleteRange() != nil
	}
	switch {
	case putsEpoch:
		return createsEpoch
	case putsLocks > 1:
		return entersAll
	case putsLocks > 0 && deletes:
		return handsOn
	case putsLocks > 0 && txn.Compare[0].GetCreateRevision() != 0:
		return writes
	case putsLocks > 0:
		return enters
	case len(txn.Compare) == 0:
		return reads
	case putsSession && under(txn.Compare[0].Key, coordinator.DefaultPrefix+"epoch"):
		return enrols
	case putsSession && txn.Success[0].GetRequestPut() != nil:
		return settles
	case under(txn.Compare[0].Key, sessionsPrefix):
		return looks
	case !deletes:
		return somethingElse
	case len(txn.Failure) == 0:
		return removes
	case !putsSession && string(txn.Failure[0].GetRequestRange().GetKey()) != string(txn.Compare[0].Key):
		return settlesHandOn
	}
	return releases
}

// of restricts a fault to transactions of a kind.
func of(kind string) wire.Option {
	return wire.When(func(call *wire.Call) bool { return transaction(call) == kind })
}

// tally counts transactions by what they do, each attempt of each.
type tally struct {
	mu       sync.Mutex
	count    map[string]int // when sent
	answered map[string]int
	calls    []*wire.Call
}

func count(w *wire.Wire) *tally {
	c := &tally{count: make(map[string]int), answered: make(map[string]int)}
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		if call.Method != "Txn" {
			return call.Send(ctx)
		}
		kind := transaction(call)
		kept := *call
		kept.Request = proto.Clone(call.Request) // the client may use it again
		c.mu.Lock()
		c.count[kind]++
		c.calls = append(c.calls, &kept)
		c.mu.Unlock()
		err := call.Send(ctx)
		c.mu.Lock()
		c.answered[kind]++
		c.mu.Unlock()
		return err
	})
	return c
}

func (c *tally) of(kind string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[kind]
}

// looked waits until the coordinator has looked at a queue for the first time.
func (c *tally) looked(t *testing.T) {
	t.Helper()
	eventually(t, "the first look", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.answered[reads] > 0
	})
}

func (c *tally) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.count)
	clear(c.answered)
	c.calls = nil
}

// last returns the latest transaction of a kind, of which a copy may be sent.
func (c *tally) last(t *testing.T, kind string) *wire.Call {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range slices.Backward(c.calls) {
		if transaction(call) == kind {
			return call
		}
	}
	t.Fatalf("no transaction of the kind %q", kind)
	return nil
}

// arrives sends a copy of a request that the client has given up or had
// answered, as a network or a proxy may, and reports whether it took effect.
func arrives(t *testing.T, call *wire.Call) bool {
	t.Helper()
	reply, err := call.SendCopy(t.Context())
	if err != nil {
		// "lease not found" is one way of taking no effect.
		return false
	}
	return reply.(*pb.TxnResponse).Succeeded
}

// held waits until a latch holds a request.
func held(t *testing.T, l *wire.Latch) {
	t.Helper()
	select {
	case <-l.Arrived():
	case <-within(t, patience).Done():
		t.Fatal("the request did not come")
	}
}

// errLost is what a client gets whose answer was lost.
var errLost = status.Error(codes.Unavailable, "the answer was lost")
