package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// width is what the timeline and the table keep to, as most terminals do.
const width = 80

// timeline prints what happens, at the moment at which the parent learns of it.
type timeline struct {
	out   io.Writer
	style style
	start time.Time
}

// actor is who does something: one of the workers, or the parent itself.
type actor string

const (
	workerA actor = "A"
	workerB actor = "B"
	nobody  actor = "-"
)

// paint gives each worker a colour, so that two stories can be followed at once.
func (a actor) paint() paint {
	switch a {
	case workerA:
		return yellow
	case workerB:
		return cyan
	case nobody:
	}
	return faint
}

// begin starts an act, and its clock.
func (t *timeline) begin(title string) {
	fmt.Fprintf(t.out, "\n%s\n\n", t.style.paint(bold, title))
	t.start = time.Now()
}

// margin is what stands before the text of each line: the time and the actor.
const margin = len("  00.000 s  A  ")

// say prints one line, broken where it is too long.
func (t *timeline) say(who actor, p paint, format string, args ...any) {
	t.erase()
	at := fmt.Sprintf("  %6.3f s", time.Since(t.start).Seconds())
	for i, line := range wrap(fmt.Sprintf(format, args...), width-margin) {
		if i == 0 {
			fmt.Fprintf(t.out, "%s  %s  %s\n", t.style.paint(faint, at), t.style.paint(who.paint(), string(who)), t.style.paint(p, line))
			continue
		}
		fmt.Fprintf(t.out, "%s%s\n", strings.Repeat(" ", margin), t.style.paint(p, line))
	}
}

// erase removes a line that is still being redrawn.
func (t *timeline) erase() {
	if t.style.columns > 0 {
		fmt.Fprint(t.out, "\r\x1b[K")
	}
}

// countdown shows how long it may still take, until done is closed: as a bar
// that moves on a terminal, and elsewhere in a line from time to time.
func (t *timeline) countdown(what string, total time.Duration, done <-chan struct{}) {
	every := max(time.Second, total/10)
	if t.style.columns > 0 {
		every = 50 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for began := time.Now(); ; {
		select {
		case <-done:
			t.erase()
			return
		case <-ticker.C:
		}
		left := max(0, total-time.Since(began))
		rest := fmt.Sprintf("%s in about %.1f s", what, left.Seconds())
		if left == 0 {
			// etcd looks twice a second for leases that are due, and after a change
			// of leader it starts them anew.
			rest = what + " any moment now"
		}
		if t.style.columns == 0 {
			t.say(nobody, plain, "%s", rest)
			continue
		}
		const length = 20
		gone := int(length * (total - left) / total)
		bar := strings.Repeat("#", gone) + strings.Repeat(".", length-gone)
		line := fmt.Sprintf("  %6.3f s  %s  [%s] %s", time.Since(t.start).Seconds(), nobody, bar, rest)
		// A line that wraps cannot be redrawn.
		fmt.Fprintf(t.out, "\r\x1b[K%s", t.style.paint(faint, line[:min(len(line), t.style.columns-1)]))
	}
}
