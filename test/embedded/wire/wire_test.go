package wire_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start returns a wire with its client, and a client beside it that sees what
// has really happened.
func start(t *testing.T) (w *wire.Wire, client, truth *clientv3.Client, ctx context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	etcd := embedded.Start(t, nil)
	w = wire.New()
	client = etcd.NewClient(t, func(c *clientv3.Config) { c.DialOptions = append(c.DialOptions, w.DialOptions()...) })
	return w, client, etcd.Client(), ctx
}

// create writes a key in a transaction that does nothing the second time.
func create(ctx context.Context, client *clientv3.Client, key string) (bool, error) {
	resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "")).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

func exists(ctx context.Context, t *testing.T, client *clientv3.Client, key string) bool {
	t.Helper()
	resp, err := client.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return len(resp.Kvs) == 1
}

func TestCountsWhatIsSent(t *testing.T) {
	w, client, _, ctx := start(t)
	if n := w.Calls(""); n != 0 {
		t.Errorf("%d calls before the first", n)
	}
	for range 2 {
		if _, err := client.Put(ctx, "key", ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := create(ctx, client, "other"); err != nil {
		t.Fatal(err)
	}
	if want := map[string]int{"Put": 2, "Txn": 1}; !maps.Equal(w.Counts(), want) || w.Calls("") != 3 {
		t.Errorf("counts %v, want %v", w.Counts(), want)
	}
	w.Reset()
	if n := w.Calls("Put"); n != 0 {
		t.Errorf("%d calls after Reset", n)
	}
}

func TestCountsStreamsUntilTheyEnd(t *testing.T) {
	w, client, truth, ctx := start(t)
	watching, stop := context.WithCancel(ctx)
	watch := client.Watch(watching, "key", clientv3.WithCreatedNotify())
	<-watch
	if w.Calls("Watch") != 1 || w.Open("Watch") != 1 || w.Messages("Watch") != 1 {
		t.Errorf("one watch: %d streams, %d open, %d messages", w.Calls("Watch"), w.Open("Watch"), w.Messages("Watch"))
	}
	if _, err := truth.Put(ctx, "key", ""); err != nil {
		t.Fatal(err)
	}
	<-watch
	stop()
	for range watch {
		continue
	}
	waitFor(ctx, t, func() bool { return w.Open("Watch") == 0 })
}

// waitFor is for what ends in a goroutine of gRPC that tells nobody.
func waitFor(ctx context.Context, t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
}

func TestFaultsAreBelowTheRetries(t *testing.T) {
	w, client, _, ctx := start(t)
	// clientv3 repeats a read whose connection broke, and not a write.
	fault := w.DropReply("Range", 2)
	if _, err := client.Get(ctx, "key"); err != nil {
		t.Error(err)
	}
	if n := w.Calls("Range"); n != 3 || fault.Hits() != 2 {
		t.Errorf("a read whose answer was lost twice was sent %d times, with %d faults", n, fault.Hits())
	}
	w.Reset()
	w.FailBefore("Range", 1)
	if _, err := client.Get(ctx, "key"); err != nil {
		t.Error(err)
	}
	if n := w.Calls("Range"); n != 1 {
		t.Errorf("a read that was kept from being sent once was sent %d times", n)
	}
}

func TestDropReplyHappensAllTheSame(t *testing.T) {
	w, client, truth, ctx := start(t)
	w.DropReply("Txn", 1)
	if _, err := create(ctx, client, "key"); status.Code(err) != codes.Unavailable {
		t.Errorf("lost reply: %v", err)
	}
	if !exists(ctx, t, truth, "key") {
		t.Error("the server did not get it")
	}
	if ok, err := create(ctx, client, "other"); !ok || err != nil {
		t.Errorf("the next one: %v, %v", ok, err)
	}
}

func TestFailBeforeIsNotSent(t *testing.T) {
	w, client, truth, ctx := start(t)
	fault := w.FailBefore("Txn", 0, wire.Code(codes.ResourceExhausted))
	for range 3 {
		if _, err := create(ctx, client, "key"); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("failed before: %v", err)
		}
	}
	if fault.Hits() != 3 || w.Calls("Txn") != 0 || exists(ctx, t, truth, "key") {
		t.Errorf("%d faults, %d requests", fault.Hits(), w.Calls("Txn"))
	}
	fault.Remove()
	if ok, err := create(ctx, client, "key"); !ok || err != nil {
		t.Errorf("after Remove: %v, %v", ok, err)
	}
}

func TestWhenPicksRequests(t *testing.T) {
	w, client, _, ctx := start(t)
	w.FailBefore("Put", 0, wire.When(func(c *wire.Call) bool { return string(c.Request.(*pb.PutRequest).Key) == "bad" }))
	if _, err := client.Put(ctx, "good", ""); err != nil {
		t.Error(err)
	}
	if _, err := client.Put(ctx, "bad", ""); err == nil {
		t.Error("the fault did not strike")
	}
}

func TestHoldWaitsForRelease(t *testing.T) {
	w, client, truth, ctx := start(t)
	latch := w.Hold("Txn")
	result := make(chan error, 1)
	go func() {
		_, err := create(ctx, client, "key")
		result <- err
	}()
	<-latch.Arrived()
	if exists(ctx, t, truth, "key") {
		t.Error("it was not held")
	}
	if ok, err := create(ctx, client, "other"); !ok || err != nil { // only one is held
		t.Errorf("another request: %v, %v", ok, err)
	}
	latch.Release()
	if err := <-result; err != nil || !exists(ctx, t, truth, "key") {
		t.Errorf("after Release: %v", err)
	}
}

func TestHoldEndsWithTheContext(t *testing.T) {
	w, client, truth, ctx := start(t)
	latch := w.Hold("Txn")
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := create(short, client, "key"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a held request with a deadline: %v", err)
	}
	latch.Release()
	if exists(ctx, t, truth, "key") {
		t.Error("it was sent after its context had ended")
	}
}

func TestHoldReplyHasHappened(t *testing.T) {
	w, client, truth, ctx := start(t)
	latch := w.HoldReply("Txn")
	result := make(chan error, 1)
	go func() {
		_, err := create(ctx, client, "key")
		result <- err
	}()
	<-latch.Arrived()
	if !exists(ctx, t, truth, "key") {
		t.Error("the server has not got it")
	}
	if reply := latch.Call().Reply.(*pb.TxnResponse); !reply.Succeeded {
		t.Errorf("held reply %v", reply)
	}
	latch.Fail(status.Error(codes.Unavailable, "broken"))
	if err := <-result; status.Code(err) != codes.Unavailable {
		t.Errorf("after Fail: %v", err)
	}
}

func TestPostponedRequestArrivesLate(t *testing.T) {
	w, client, truth, ctx := start(t)
	late := w.Postpone("Txn")
	if _, err := create(ctx, client, "key"); status.Code(err) != codes.Unavailable {
		t.Errorf("postponed: %v", err)
	}
	if exists(ctx, t, truth, "key") {
		t.Error("it arrived early")
	}
	for _, want := range []bool{true, false} {
		reply, err := late.Send(ctx)
		if err != nil || reply.(*pb.TxnResponse).Succeeded != want {
			t.Errorf("late: %v, %v; want %v", reply, err, want)
		}
	}
	if !exists(ctx, t, truth, "key") || w.Calls("Txn") != 2 {
		t.Errorf("it did not arrive twice, but %d times", w.Calls("Txn"))
	}
}

// TestACopyLeavesTheCallerAlone fails with the race detector, or by a peer that
// was never reached: the caller is done when the copy arrives.
func TestACopyLeavesTheCallerAlone(t *testing.T) {
	w, client, _, ctx := start(t)
	late := w.Postpone("Put")
	var p peer.Peer
	var header, trailer metadata.MD
	finished := 0
	options := []grpc.CallOption{
		grpc.Peer(&p), grpc.Header(&header), grpc.Trailer(&trailer), grpc.OnFinish(func(error) { finished++ }),
	}
	if _, err := pb.NewKVClient(client.ActiveConnection()).Put(ctx, &pb.PutRequest{Key: []byte("key")}, options...); err == nil {
		t.Error("postponed, and answered")
	}
	sent := make(chan error, 1)
	go func() {
		_, err := late.Send(ctx)
		sent <- err
	}()
	// What the caller reads now is its own.
	before := fmt.Sprint(p.Addr, header, trailer, finished)
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if after := fmt.Sprint(p.Addr, header, trailer, finished); after != before {
		t.Errorf("before the copy the caller had %s, after it %s", before, after)
	}
}

func TestSendTwice(t *testing.T) {
	w, client, _, ctx := start(t)
	w.SendTwice("Txn", 1)
	if ok, err := create(ctx, client, "key"); ok || err != nil {
		t.Errorf("the second answer says that the key was created: %v, %v", ok, err)
	}
}

func TestHooksNestAndMustSend(t *testing.T) {
	w, client, _, ctx := start(t)
	var order []string
	note := func(name string) *wire.UnaryHook {
		return w.OnUnary(func(ctx context.Context, call *wire.Call) error {
			order = append(order, name+" before")
			err := call.Send(ctx)
			order = append(order, name+" after")
			return err
		})
	}
	inner, outer := note("inner"), note("outer")
	if _, err := client.Put(ctx, "key", ""); err != nil {
		t.Fatal(err)
	}
	if want := []string{"outer before", "inner before", "inner after", "outer after"}; !slices.Equal(order, want) {
		t.Errorf("order %v", order)
	}
	inner.Remove()
	outer.Remove()
	w.OnUnary(func(context.Context, *wire.Call) error { return nil })
	if _, err := client.Put(ctx, "key", ""); status.Code(err) != codes.Internal {
		t.Errorf("nothing was sent and nobody complained: %v", err)
	}
}

func TestOnFinishIsToldWhatTheHookMadeOfIt(t *testing.T) {
	w, client, _, ctx := start(t)
	w.DropReply("Put", 1, wire.Code(codes.Canceled))
	var told []error // clientv3's default is to send it again
	kv := pb.NewKVClient(client.ActiveConnection())
	_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("key")}, grpc.OnFinish(func(err error) { told = append(told, err) }))
	if len(told) == 0 || status.Code(told[0]) != codes.Canceled {
		t.Errorf("OnFinish was told %v, the caller %v", told, err)
	}
}

func TestAVanishedRequestHadAConnection(t *testing.T) {
	w, client, _, ctx := start(t)
	w.FailBefore("Put", 1)
	var p peer.Peer
	kv := pb.NewKVClient(client.ActiveConnection())
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("key")}, grpc.Peer(&p)); err == nil || p.Addr == nil {
		t.Errorf("%v, with peer %v", err, p)
	}
}

func TestMessagesCanBeDroppedAndHeld(t *testing.T) {
	w, client, truth, ctx := start(t)
	watch := client.Watch(ctx, "key", clientv3.WithCreatedNotify())
	<-watch
	seen := make(chan *pb.WatchResponse)
	hook := w.OnMessage(func(ctx context.Context, m *wire.Message) error {
		if m.Sent {
			return nil
		}
		select {
		case seen <- proto.Clone(m.Payload).(*pb.WatchResponse):
			return wire.ErrDrop
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	for _, value := range []string{"dropped", "passed"} {
		if _, err := truth.Put(ctx, "key", value); err != nil {
			t.Fatal(err)
		}
		if value == "dropped" {
			if got := <-seen; string(got.Events[0].Kv.Value) != value {
				t.Errorf("the hook saw %v", got)
			}
			hook.Remove()
		}
	}
	if got := <-watch; len(got.Events) != 1 || string(got.Events[0].Kv.Value) != "passed" {
		t.Errorf("the watch saw %+v", got)
	}
}

func TestSentMessagesCanBeDropped(t *testing.T) {
	w, client, _, ctx := start(t)
	lease, err := client.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := pb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	keepAlive := func() {
		t.Helper()
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(lease.ID)}); err != nil {
			t.Fatal(err)
		}
	}
	hook := w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if m.Sent {
			return wire.ErrDrop
		}
		return nil
	})
	keepAlive()
	hook.Remove()
	keepAlive()
	if resp, err := stream.Recv(); err != nil || resp.TTL != 60 {
		t.Errorf("%v, %v", resp, err)
	}
	if n := w.Messages("LeaseKeepAlive"); n != 1 {
		t.Errorf("%d of two messages were sent, one was dropped", n)
	}
}

func TestAnErrorBreaksTheStream(t *testing.T) {
	w, client, truth, ctx := start(t)
	watch := client.Watch(ctx, "key", clientv3.WithCreatedNotify())
	<-watch
	broken := false
	w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if m.Sent || broken {
			return nil
		}
		broken = true
		return status.Error(codes.Unavailable, "broken")
	})
	if _, err := truth.Put(ctx, "key", "value"); err != nil {
		t.Fatal(err)
	}
	if got := <-watch; len(got.Events) != 1 { // clientv3 resumes where it was
		t.Errorf("the watch saw %v", got)
	}
	if n := w.Calls("Watch"); n != 2 {
		t.Errorf("%d streams", n)
	}
	waitFor(ctx, t, func() bool { return w.Open("Watch") == 1 })
}
