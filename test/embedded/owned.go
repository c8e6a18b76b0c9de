package embedded

import (
	"fmt"
	"net/url"
	"slices"

	"go.etcd.io/etcd/server/v3/embed"
)

// configured is the member's configuration before Options.Config and after it.
func (m *Member) configured() (before, after *embed.Config, err error) {
	s := m.spec()
	before, after = s.config(), s.config()
	if m.opts.Config != nil {
		m.opts.Config(after)
	}
	return before, after, checkOwned(before, after)
}

// checkOwned refuses a change of what this package has to know of a member. It
// would go on asking where nobody is, and a start would end without a reason.
func checkOwned(before, after *embed.Config) error {
	const (
		address = "at which the member is looked for; append to it to listen elsewhere as well"
		peers   = "by which the members find each other; set Options.Members"
		dir     = "which is removed, and found again by a restart; set Options.Dir"
	)
	// It is the first address that is used.
	kept := func(was, is []url.URL) bool { return len(is) > 0 && slices.Equal(was[:1], is[:1]) }
	for _, field := range []struct {
		name string
		kept bool
		why  string
	}{
		{"Name", before.Name == after.Name, peers},
		{"Dir", before.Dir == after.Dir, dir},
		{"InitialCluster", before.InitialCluster == after.InitialCluster, peers},
		{"InitialClusterToken", before.InitialClusterToken == after.InitialClusterToken, peers},
		{"ListenClientUrls", kept(before.ListenClientUrls, after.ListenClientUrls), address},
		{"AdvertiseClientUrls", kept(before.AdvertiseClientUrls, after.AdvertiseClientUrls), address},
		{"ListenPeerUrls", kept(before.ListenPeerUrls, after.ListenPeerUrls), peers},
		{"AdvertisePeerUrls", kept(before.AdvertisePeerUrls, after.AdvertisePeerUrls), peers},
	} {
		if !field.kept {
			return fmt.Errorf("%w: Options.Config changes %s, %s", ErrUnsupported, field.name, field.why)
		}
	}
	return nil
}
