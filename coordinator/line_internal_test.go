package coordinator

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"
)

func kv(key string, create int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(key), CreateRevision: create, ModRevision: create, Version: 1}
}

func put(key string, revision int64) *clientv3.Event {
	return &clientv3.Event{Type: clientv3.EventTypePut, Kv: kv(key, revision)}
}

// deleted is a DELETE as etcd sends it: it says nothing about the life of the
// key that it ends.
func deleted(key string, revision int64) *clientv3.Event {
	return &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}}
}

// A client of concurrency.Mutex unlocked at 3 and locked again at 4 under the
// same key. The list of 5 shows that; the watch was opened before and still
// holds the DELETE.
func TestDeleteOlderThanTheListDoesNotRemoveTheNewOwner(t *testing.T) {
	l := newLine("own", 5, 5, []*mvccpb.KeyValue{kv("mutex", 4), kv("own", 5)})
	if l.apply([]*clientv3.Event{deleted("mutex", 3), put("mutex", 4), put("own", 5)}) {
		t.Fatal("an event from before the list decides")
	}
	if len(l.ahead) != 1 {
		t.Fatalf("ahead: %v, want the mutex", l.ahead)
	}
	if !l.apply([]*clientv3.Event{deleted("mutex", 6)}) {
		t.Fatal("the mutex is gone, and nothing happens")
	}
}

func TestDeleteAtTheRevisionOfTheListIsKnown(t *testing.T) {
	l := newLine("own", 4, 6, []*mvccpb.KeyValue{kv("a", 3), kv("own", 4)})
	if l.apply([]*clientv3.Event{deleted("a", 6)}) {
		t.Fatal("the list of revision 6 still has the key that is said to have gone at 6")
	}
}

// One revision may delete one key and put another, and end two keys at once
// when they hang on one lease. All of it is one answer.
func TestNothingIsDecidedBeforeTheWholeAnswer(t *testing.T) {
	l := newLine("own", 5, 5, []*mvccpb.KeyValue{kv("a", 2), kv("b", 3), kv("own", 5)})
	if l.apply([]*clientv3.Event{deleted("a", 6), put("c", 6)}) {
		t.Fatal("one of two keys ahead is gone, and it decides")
	}
	if !l.apply([]*clientv3.Event{deleted("b", 7), deleted("own", 7)}) {
		t.Fatal("the own key is gone, and nothing happens")
	}
	if !l.ownGone || len(l.ahead) != 0 {
		t.Fatalf("after the whole answer: own key gone %v, ahead %v", l.ownGone, l.ahead)
	}
}

func TestOwnKeyDeletedDecidesAtOnce(t *testing.T) {
	l := newLine("own", 5, 5, []*mvccpb.KeyValue{kv("a", 2), kv("own", 5)})
	if !l.apply([]*clientv3.Event{deleted("own", 6)}) || !l.ownGone {
		t.Fatal("the own key is gone, and nothing happens")
	}
}

func TestKeyThatCameBackStandsBehind(t *testing.T) {
	l := newLine("own", 5, 5, []*mvccpb.KeyValue{kv("mutex", 4), kv("own", 5)})
	if !l.apply([]*clientv3.Event{deleted("mutex", 6), put("mutex", 7)}) {
		t.Fatal("a key that was deleted and put again does not stand ahead any more")
	}
}

func TestChangedValueChangesNoPlace(t *testing.T) {
	l := newLine("own", 5, 5, []*mvccpb.KeyValue{kv("a", 4), kv("own", 5)})
	again := put("a", 4)
	again.Kv.ModRevision, again.Kv.Version = 6, 2
	if l.apply([]*clientv3.Event{again, put("z", 7), deleted("z", 8), deleted("never seen", 9)}) {
		t.Fatal("nothing has moved, and it decides")
	}
}

// The line must come to the state that a list at the end would show, whenever
// the watch began and however the server packs its events, for as long as it
// began before the list.
func TestLineEndsAsALastListWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type moment struct {
			events []*clientv3.Event
			state  map[string]int64 // key -> create revision, after it
		}
		history := []moment{{state: map[string]int64{}}}
		ownAt := 0
		steps := rapid.IntRange(1, 30).Draw(t, "steps")
		for revision := 1; revision <= steps || ownAt == 0; revision++ {
			state := maps.Clone(history[revision-1].state)
			var events []*clientv3.Event
			if ownAt == 0 && (revision > steps || rapid.IntRange(0, 3).Draw(t, "own") == 0) {
				ownAt = revision
				state["own"] = int64(revision)
				events = append(events, put("own", int64(revision)))
			} else {
				// Few keys, so that they come and go; two at once, as a hand-on
				// and the end of a lease do.
				for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "own"}), 1, 2, rapid.ID[string]).Draw(t, "keys") {
					if _, there := state[key]; there {
						delete(state, key)
						events = append(events, deleted(key, int64(revision)))
					} else if key != "own" {
						state[key] = int64(revision)
						events = append(events, put(key, int64(revision)))
					}
				}
			}
			history = append(history, moment{events, state})
		}

		list := rapid.IntRange(ownAt, len(history)-1).Draw(t, "list")
		if _, there := history[list].state["own"]; !there {
			return // the list itself says that it is over
		}
		var kvs []*mvccpb.KeyValue
		for key, create := range history[list].state {
			kvs = append(kvs, kv(key, create))
		}
		l := newLine("own", int64(ownAt), int64(list), kvs)
		watch := rapid.IntRange(1, list+1).Draw(t, "watch")
		var decided bool
		for next := watch; next < len(history); {
			var answer []*clientv3.Event
			for packed := rapid.IntRange(1, 4).Draw(t, "revisions in one answer"); packed > 0 && next < len(history); packed-- {
				answer = append(answer, history[next].events...)
				next++
			}
			decided = l.apply(answer)
		}

		want := make(map[string]int64)
		end := history[len(history)-1].state
		for key, create := range end {
			if create < int64(ownAt) {
				want[key] = create
			}
		}
		if diff := cmp.Diff(want, l.ahead); diff != "" {
			t.Fatalf("ahead (-list +line):\n%s", diff)
		}
		_, there := end["own"]
		if l.ownGone == there {
			t.Fatalf("own key gone: %v, the last list has it: %v", l.ownGone, there)
		}
		if want := len(want) == 0 || !there; watch < len(history) && decided != want {
			t.Fatal(fmt.Sprintf("decides: %v, want %v", decided, want))
		}
	})
}
