package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// layout is what the members of a cluster must agree on at every start: their
// data says who they are by it.
type layout struct {
	Token string
	Peers []string // host:port of each member's peer port; empty for an only member
}

// layoutFile lies beside the data of the members.
const layoutFile = "cluster.json"

const defaultToken = "etcd-cluster"

// load reads the layout of data that is there already, and says whether it is.
func (l *layout) load(dir string, members int) (bool, error) {
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
	if n := max(len(l.Peers), 1); n != members {
		return false, fmt.Errorf("the data in %s is of %d members, Options.Members asks for %d", dir, n, members)
	}
	return true, nil
}

func (l *layout) save(dir string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, layoutFile), text, 0o600)
}
