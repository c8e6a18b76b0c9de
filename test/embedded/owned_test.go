package embedded_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

func TestChangeOfWhatThePackageOwnsIsRefused(t *testing.T) {
	elsewhere := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	changes := map[string]func(*embed.Config){
		"Name":                func(c *embed.Config) { c.Name = "other" },
		"Dir":                 func(c *embed.Config) { c.Dir += "-other" },
		"InitialCluster":      func(c *embed.Config) { c.InitialCluster += ",x=http://127.0.0.1:1" },
		"InitialClusterToken": func(c *embed.Config) { c.InitialClusterToken = "other" },
		"ListenClientUrls":    func(c *embed.Config) { c.ListenClientUrls = elsewhere },
		"AdvertiseClientUrls": func(c *embed.Config) { c.AdvertiseClientUrls = nil },
		"ListenPeerUrls":      func(c *embed.Config) { c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}} },
		"AdvertisePeerUrls":   func(c *embed.Config) { c.AdvertisePeerUrls[0].Host = "127.0.0.1:1" },
	}
	modes(t, func(t *testing.T, opts *embedded.Options) {
		for field, change := range changes {
			opts.Config = change
			etcd, err := embedded.Run(bounded(t), opts)
			if etcd != nil {
				_ = etcd.Close()
			}
			// AdvertisePeerUrls shares its array with ListenPeerUrls.
			if named := err != nil && (strings.Contains(err.Error(), "changes "+field+",") || field == "AdvertisePeerUrls" && strings.Contains(err.Error(), "PeerUrls")); !errors.Is(err, embedded.ErrUnsupported) || !named {
				t.Errorf("%s: %v", field, err)
			}
		}
	})
}

func TestMemberThatDoesNotExistIsNamed(t *testing.T) {
	etcd := embedded.Start(t, nil)
	for _, i := range []int{-1, 1, 5} {
		want := fmt.Sprintf("there is no member %d, there are 1", i)
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("Member(%d): %s", i, got)
				}
			}()
			etcd.Member(i)
		}()
		for name, use := range map[string]func(embedded.TB){
			"Stop": func(tb embedded.TB) { etcd.Stop(tb, i) }, "Kill": func(tb embedded.TB) { etcd.Kill(tb, i) },
			"Restart": func(tb embedded.TB) { etcd.Restart(tb, i) }, "Pause": func(tb embedded.TB) { etcd.Pause(tb, i) },
			"Resume": func(tb embedded.TB) { etcd.Resume(tb, i) }, "Isolate": func(tb embedded.TB) { etcd.Isolate(tb, i) },
			"Rejoin": func(tb embedded.TB) { etcd.Rejoin(tb, i) }, "MoveLeader": func(tb embedded.TB) { etcd.MoveLeader(tb, i) },
			"Proxy": func(tb embedded.TB) { etcd.Proxy(tb, i) },
		} {
			tb := new(fakeTB)
			tb.run(func() { use(tb) })
			if !tb.failed || !strings.Contains(tb.output.String(), want) {
				t.Errorf("%s of %d: %s", name, i, tb.output.String())
			}
		}
	}
}
