package embedded

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Layout is what the members of a cluster have agreed on from their first start.
// Their IDs and that of the cluster come from it: the same Layout gives the same
// IDs, and an etcd restored from a snapshot with the Layout that it had before is
// the same one to its clients.
type Layout struct {
	// Token keeps clusters of the same addresses apart.
	Token string

	// Peers are the addresses of the members' peer ports, as host:port. It is
	// empty for an only member, which needs none.
	Peers []string `json:",omitempty"`
}

// layoutFile lies beside the data of the members.
const layoutFile = "cluster.json"

const defaultToken = "etcd-cluster"

// NewLayout returns a Layout that no other cluster has, with peer ports that are
// free now. The number of members is 1, 3, 5 or 7.
func NewLayout(members int) (Layout, error) {
	if !possible(members) {
		return Layout{}, fmt.Errorf("embedded: a layout of %d members: it must be 1, 3, 5 or 7", members)
	}
	l := Layout{Token: "embedded-" + rand.Text()}
	if members == 1 {
		return l, nil
	}
	var err error
	if l.Peers, err = freePorts(members); err != nil {
		return Layout{}, fmt.Errorf("embedded: %w", err)
	}
	return l, nil
}

// Members returns the number of members.
func (l Layout) Members() int { return max(len(l.Peers), 1) }

// Layout returns that of the cluster. It stays the same for the life of the
// cluster, and of its data when Options.Dir says where to keep it.
func (c *Cluster) Layout() Layout {
	return Layout{Token: c.layout.Token, Peers: slices.Clone(c.layout.Peers)}
}

// Save writes the Layout into a directory that has data of members, so that
// Options.Dir finds it there. The data of the first is in member0, and so on.
func (l Layout) Save(dir string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("embedded: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, layoutFile), text, 0o600); err != nil {
		return fmt.Errorf("embedded: %w", err)
	}
	return nil
}

// load reads the layout of data that is there already, and says whether it is.
func (l *Layout) load(dir string, members int) (bool, error) {
	l.Token = defaultToken
	text, err := os.ReadFile(filepath.Join(dir, layoutFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(text, l); err != nil {
		return false, fmt.Errorf("%s in %s: %w", layoutFile, dir, err)
	}
	if n := l.Members(); n != members {
		return false, fmt.Errorf("the data in %s is of %d members, Options.Members asks for %d", dir, n, members)
	}
	return true, nil
}
