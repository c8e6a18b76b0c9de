package coordinator

import (
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// line is who stands before one key in the queue of a lock, as of a revision.
type line struct {
	own      string
	create   int64
	revision int64
	ahead    map[string]int64 // key -> create revision
	ownGone  bool
}

// newLine starts from a list of the queue: the keys up to the own one, in
// the state of the given revision.
func newLine(own string, create, revision int64, kvs []*mvccpb.KeyValue) *line {
	l := &line{own: own, create: create, revision: revision, ahead: make(map[string]int64, len(kvs))}
	for _, kv := range kvs {
		if string(kv.Key) != own && kv.CreateRevision < create {
			l.ahead[string(kv.Key)] = kv.CreateRevision
		}
	}
	return l
}

// apply takes in one whole answer of a watch and reports whether the line now
// differs in what matters: the own key is at its front, or gone.
//
// Step W1: an event counts only if it is newer than what is known. The watch is
// opened before the list is read, possibly through another member, so it still
// delivers what the list already contains, and a DELETE does not say which
// incarnation of the key it ended: programs that use concurrency.Mutex take the
// same key again and again.
// Step W2: nothing is decided before the last event of the answer, because one
// revision can delete one key and put another.
func (l *line) apply(events []*clientv3.Event) (decide bool) {
	for _, ev := range events {
		key, mod := string(ev.Kv.Key), ev.Kv.ModRevision
		if mod <= l.revision {
			continue
		}
		switch {
		case ev.Type == clientv3.EventTypeDelete && key == l.own:
			l.ownGone = true
		case ev.Type == clientv3.EventTypeDelete:
			delete(l.ahead, key)
		case ev.IsCreate() && ev.Kv.CreateRevision > l.create:
			// Came in behind. If a key of this name stood ahead, that one is gone.
			delete(l.ahead, key)
		}
	}
	for _, ev := range events {
		l.revision = max(l.revision, ev.Kv.ModRevision)
	}
	return l.ownGone || len(l.ahead) == 0
}
