package etcdguard

import (
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// claim is a token that is presented to one resource.
type claim struct {
	resource string
	lock     string // that guards the resource
	fence    *fence
}

// token is that of the claim. A grant that names none shows its revision only: the
// epoch is then the one on record, since a lock key exists under no other.
func (c *claim) token(epoch uint16) (revisionfence.Token, error) {
	t := c.fence.token
	if !c.fence.epochless || t.Epoch() == epoch {
		return t, nil
	}
	return revisionfence.New(t.Lock(), epoch, t.Revision())
}

// covers reports whether a mark is the one that the claim itself would set.
func (c *claim) covers(m mark) bool {
	t := m.token()
	same := t == c.fence.token
	if c.fence.epochless {
		same = t.Lock() == c.fence.token.Lock() && t.Revision() == c.fence.token.Revision()
	}
	return same && (m.owner == c.fence.owner || c.fence.owner == "")
}

// claim binds a resource to one of the fences, by the lock that guards it.
func (g *Guard) claim(resource string, fences []fence) (claim, error) {
	c := claim{resource: resource, lock: resource}
	if resource == "" {
		return c, errNoResource
	}
	if g.opts.LockOf != nil {
		var err error
		if c.lock, err = g.opts.LockOf(resource); err != nil {
			return c, fmt.Errorf("the lock that guards %q: %w", resource, err)
		}
	}
	i := slices.IndexFunc(fences, func(f fence) bool { return g.opts.ofLock(f, c.lock) })
	if i < 0 {
		return c, fmt.Errorf("%w: resource %q is guarded by lock %q, and the token is %s", resourceguard.ErrWrongLock, resource, c.lock, fences[0].token)
	}
	f := fences[i]
	if f.token.Lock() != c.lock {
		// Of a directory that the user has chosen only the path was known.
		var err error
		if f.token, err = revisionfence.New(c.lock, f.token.Epoch(), f.token.Revision()); err != nil {
			return c, fmt.Errorf("%w: resource %q: %w", resourceguard.ErrInvalid, resource, err)
		}
	}
	c.fence = &f
	return c, nil
}

// ofLock reports whether a fence is of the lock with this name. Where the token was
// made out of a directory that the user has chosen, it does not tell the name, and the
// directory does.
func (o *Options) ofLock(f fence, lock string) bool {
	if f.epochless && o.Directory != nil {
		return o.directory(lock) == f.directory
	}
	return f.token.Lock() == lock
}

// claims are the resources that the operations touch, each once.
func (g *Guard) claims(ops []clientv3.Op, fences []fence) ([]claim, error) {
	var names []string
	if g.opts.Resource == nil {
		for _, f := range fences {
			names = append(names, f.token.Lock())
		}
	}
	for op := range leaves(ops) {
		if g.opts.Resource == nil {
			break
		}
		name, err := g.resource(op)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: a transaction without operations, where Options.Resource names the resource by the key", resourceguard.ErrInvalid)
	}
	slices.Sort(names)
	var result []claim
	for _, name := range slices.Compact(names) {
		c, err := g.claim(name, fences)
		if err != nil {
			return nil, err
		}
		result = append(result, c)
	}
	return result, nil
}

// resource asks Options.Resource about the key of one operation.
func (g *Guard) resource(op clientv3.Op) (string, error) {
	if key, end := op.KeyBytes(), op.RangeBytes(); len(end) > 0 {
		return "", fmt.Errorf("%w: %s: Options.Resource cannot tell which resource a range of keys is", resourceguard.ErrInvalid, describe(key, end))
	}
	name, err := g.opts.Resource(string(op.KeyBytes()))
	switch {
	case err != nil:
		return "", fmt.Errorf("the resource of %q: %w", op.KeyBytes(), err)
	case name == "":
		return "", fmt.Errorf("%w: Options.Resource names none for %q", resourceguard.ErrInvalid, op.KeyBytes())
	}
	return name, nil
}

// ownerOf takes an owner as the last segment of the lock key, however it is named.
func ownerOf(owner, directory string) string { return strings.TrimPrefix(owner, directory) }
