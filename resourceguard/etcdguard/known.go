package etcdguard

import (
	"sync"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// maxKnown bounds what a guard remembers of marks.
const maxKnown = 4096

// knownMarks remembers marks that were the caller's own. It only chooses the way:
// what it says is compared in etcd, and a wrong memory costs a request.
type knownMarks struct {
	mu    sync.Mutex
	marks map[string]mark // by resource
}

// known returns the texts that all marks of a call are expected to have, or nil if
// one of them is not known or does not let the call through by itself.
func (g *Guard) known(c call) []string {
	// Under RejectEqual a mark that equals the token refuses.
	if c.advance || g.opts.Policy == resourceguard.RejectEqual {
		return nil
	}
	g.memory.mu.Lock()
	defer g.memory.mu.Unlock()
	texts := make([]string, len(c.claims))
	for i := range c.claims {
		m, ok := g.memory.marks[c.claims[i].resource]
		if !ok || !c.claims[i].covers(m) {
			return nil
		}
		texts[i] = m.text
	}
	return texts
}

// raised remembers the marks after a plan was carried out.
func (g *Guard) raised(c call, p plan) {
	for i, s := range p.steps {
		if s.raises {
			g.metrics.raises.Inc()
		}
		if s.text != "" {
			g.remember(c.claims[i].resource, s.text)
		}
	}
}

func (g *Guard) remember(resource, text string) {
	m := mark{text: text}
	m.stored, m.owner = parseMark(text)
	g.memory.mu.Lock()
	defer g.memory.mu.Unlock()
	if _, have := g.memory.marks[resource]; !have && len(g.memory.marks) >= maxKnown {
		for other := range g.memory.marks { // any
			delete(g.memory.marks, other)
			break
		}
	}
	if g.memory.marks == nil {
		g.memory.marks = make(map[string]mark)
	}
	g.memory.marks[resource] = m
}

func (g *Guard) forget(resource string) {
	g.memory.mu.Lock()
	defer g.memory.mu.Unlock()
	delete(g.memory.marks, resource)
}
