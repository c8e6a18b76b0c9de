package embedded_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// fakeTB is a test that fails or not as it is told.
type fakeTB struct {
	failed  bool
	output  strings.Builder
	cleanup []func()
}

func (f *fakeTB) Helper()                 {}
func (f *fakeTB) Cleanup(c func())        { f.cleanup = append(f.cleanup, c) }
func (f *fakeTB) Failed() bool            { return f.failed }
func (f *fakeTB) Logf(s string, a ...any) { fmt.Fprintf(&f.output, s+"\n", a...) }
func (f *fakeTB) Fatalf(s string, a ...any) {
	f.failed = true
	f.Logf(s, a...)
	runtime.Goexit()
}

// run runs body as the body of a test, with what follows a test.
func (f *fakeTB) run(body func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := range f.cleanup {
				f.cleanup[len(f.cleanup)-1-i]()
			}
		}()
		body()
	}()
	<-done
}

// runExample runs an example that is a test.
func runExample(test func(embedded.TB)) {
	tb := new(fakeTB)
	tb.run(func() { test(tb) })
	if tb.failed {
		fmt.Println(tb.output.String())
	}
}

func TestLogsAreShownOnlyWhenTheTestFails(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		for _, fails := range []bool{false, true} {
			tb := new(fakeTB)
			tb.run(func() {
				embedded.Start(tb, opts)
				tb.failed = fails
			})
			if shown := strings.Contains(tb.output.String(), "became leader"); shown != fails {
				t.Errorf("failed: %v, logs shown: %v: %s", fails, shown, tb.output.String())
			}
		}
	})
}

func TestStartFailsTheTestWithTheReason(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		opts.Dir = "/dev/null/not-a-directory"
		tb := new(fakeTB)
		tb.run(func() { embedded.Start(tb, opts) })
		if !tb.failed || !strings.Contains(tb.output.String(), "embedded: start: ") {
			t.Errorf("failed: %v, output: %s", tb.failed, tb.output.String())
		}
		if err := goleak.Find(goleak.IgnoreCurrent()); err != nil {
			t.Error(err)
		}
	})
}

func TestNothingIsLeftAfterTheTest(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		before := goleak.IgnoreCurrent()
		tb := new(fakeTB)
		var endpoint string
		tb.run(func() {
			etcd := embedded.Start(tb, opts)
			endpoint = etcd.Endpoints()[0]
			etcd.Client().Watch(t.Context(), "key")
			etcd.NewClient(tb)
			etcd.Proxy(tb).Cut()
		})
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
		if listening(endpoint) {
			t.Errorf("somebody still listens at %s", endpoint)
		}
	})
}

func TestUnknownMembersAreRefused(t *testing.T) {
	tb := new(fakeTB)
	tb.run(func() { embedded.Start(tb, nil).Stop(tb, 1) })
	if !strings.Contains(tb.output.String(), "there is no member 1, there are 1") {
		t.Error(tb.output.String())
	}
}
