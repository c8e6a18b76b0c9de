package main

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// demonstrate runs the whole demo and cleans up after it. It reports whether
// every row of the closing table is right.
func demonstrate(ctx context.Context, o options, stdout io.Writer, out style) (ok bool, err error) {
	g, err := prepare(ctx, o)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, g.close()) }()

	told := stdout
	if o.json {
		told, out = io.Discard, style{}
	}
	fmt.Fprintln(told, out.paint(bold, "A worker is paused for longer than its lease"))
	acts, t, err := perform(ctx, g, o, told, out)
	if err == nil {
		ok = t.print(told, out)
	}
	if o.keep {
		fmt.Fprintf(told, "\n%s\n", g.kept())
	} else {
		err = errors.Join(err, g.erase())
	}
	if o.json && err == nil {
		err = newReport(g, o, acts, t).print(stdout)
	}
	return ok, err
}

// perform tells the story and reads it back. Its workers have ended when it
// returns, so that nobody writes any more.
func perform(ctx context.Context, g *ground, o options, stdout io.Writer, out style) (acts []*act, t *table, err error) {
	s := &story{ground: g, ttl: o.ttl, line: &timeline{out: stdout, style: out}}
	defer func() { err = errors.Join(err, s.dismiss()) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() {
		// Then whatever failed did so for this reason.
		if dead := (*deadError)(nil); errors.As(context.Cause(ctx), &dead) {
			err = dead
		}
	}()
	if err := s.hire(ctx); err != nil {
		return nil, nil, err
	}
	go s.watch(ctx, cancel)
	fmt.Fprintf(stdout, `
  etcd     %s
  keys     %s
  lock     %s, on a lease of %v
  workers  A is process %d, B is process %d
`, g.describe(), g.prefix, lockName, o.ttl, s.a.process.pid, s.b.process.pid)

	acts = []*act{
		{title: "1  Without a fence: the workers write with a plain client", key: g.prefix + "unguarded/stock"},
		{title: "2  Through the guard: each write carries its token", key: g.prefix + "guarded/stock", fenced: true},
	}
	for _, a := range acts {
		if err := s.tell(ctx, a); err != nil {
			return nil, nil, err
		}
		// The lock of the last act stays held, for the table to find.
		if a != acts[len(acts)-1] {
			if err := s.handBack(ctx); err != nil {
				return nil, nil, err
			}
		}
	}
	t, err = readBack(ctx, g.client, acts)
	return acts, t, err
}
