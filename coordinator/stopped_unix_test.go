//go:build unix

package coordinator_test

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A process is stopped for longer than its lease, in the middle of its writes,
// and then goes on with them. Nothing in it can know; the resource does.
func TestStoppedHolderWritesNoMore(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a := exec.CommandContext(t.Context(), self)
	a.Env = append(os.Environ(), workerVariable+"="+etcd.Endpoints()[0])
	a.Stderr = os.Stderr
	out, err := a.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	said, last := make(chan string, 1), make(chan string, 1)
	go func() {
		var line string
		writes := 0
		lines(bufio.NewScanner(out), func(s string) {
			if line = s; strings.HasPrefix(s, "write ") {
				if writes++; writes == 10 {
					said <- s
				}
			}
		})
		last <- line
	}()
	select {
	case <-said:
	case line := <-last:
		t.Fatalf("the worker ended with %q", line)
	case <-time.After(patience):
		t.Fatal("the worker does not write")
	}

	if err := a.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	c := newCoordinator(t, client, steady)
	g := acquire(t, c, "orders") // ends with the worker's lease
	first, err := client.Txn(t.Context()).If(g.Fence()...).Then(clientv3.OpPut("stock", "B")).Commit()
	if err != nil || !first.Succeeded {
		t.Fatalf("the write of the next holder: applied %v, %v", first.Succeeded, err)
	}
	for time.Since(stopped) < 2*workerTTL+workerTTL/2 {
		pause()
	}
	if err := a.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var line string
	select {
	case line = <-last:
	case <-time.After(patience):
		t.Fatal("the worker goes on writing")
	}
	if err := a.Wait(); err != nil || !strings.HasPrefix(line, "refused ") {
		t.Errorf("the worker ended with %q, %v, want a refused write", line, err)
	}
	t.Log("the worker's last words:", line)

	history := client.Watch(t.Context(), "stock", clientv3.WithRev(first.Header.Revision))
	if _, err := client.Put(t.Context(), "stock", "end"); err != nil {
		t.Fatal(err)
	}
	for end := false; !end; {
		for _, ev := range (<-history).Events {
			value := string(ev.Kv.Value)
			if ev.Type != mvccpb.Event_PUT || value != "B" && value != "end" {
				t.Errorf("%s %q at %d, after the next holder had written", ev.Type, value, ev.Kv.ModRevision)
			}
			end = end || value == "end"
		}
	}
	release(t, g)
}
