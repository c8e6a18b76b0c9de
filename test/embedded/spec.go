package embedded

import (
	"fmt"
	"net/url"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
)

// spec is what a member is started with, in whichever process it runs. It is
// handed to a child as JSON.
type spec struct {
	Name     string
	Dir      string
	Endpoint string   // of clients, host:port
	Peers    []string // host:port of each member's peer port, in the order of the members; empty for an only member
	Index    int      // of the member in Peers
	Behind   bool     // a proxy has the address in Peers, so the member listens elsewhere
	Token    string   // of the cluster
	Certs    string   // directory of the certificates; empty without TLS
	Auth     string   // --auth-token; empty without authentication
	AuthTTL  uint     // seconds
	Fsync    bool
}

// anyPeerPort is the peer address of an only member. Nobody talks to it, so any
// will do, and it need not be the same after a restart.
const anyPeerPort = "127.0.0.1:0"

// bcryptCost is the least that there is. Nobody attacks these passwords, and
// etcd's default makes each of them cost a tenth of a second.
const bcryptCost = 4

func memberName(i int) string { return fmt.Sprintf("member%d", i) }

// config is etcd's configuration before Options.Config has seen it.
func (s *spec) config() *embed.Config {
	config := embed.NewConfig()
	config.Name = s.Name
	config.Dir = s.Dir
	config.LogLevel = "info"
	config.InitialClusterToken = s.Token

	client := []url.URL{{Scheme: "http", Host: s.Endpoint}}
	if s.Certs != "" {
		client[0].Scheme = "https"
		files := certs{s.Certs}
		config.ClientTLSInfo.CertFile, config.ClientTLSInfo.KeyFile = files.file("server"), files.file("server-key")
		config.ClientTLSInfo.TrustedCAFile, config.ClientTLSInfo.ClientCertAuth = files.file("ca"), true
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	peers := s.Peers
	if len(peers) == 0 {
		peers = []string{anyPeerPort}
	}
	peer := []url.URL{{Scheme: "http", Host: peers[s.Index]}}
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	if s.Behind {
		config.ListenPeerUrls = []url.URL{{Scheme: "http", Host: anyPeerPort}}
	}
	var initial []string
	for i, p := range peers {
		initial = append(initial, memberName(i)+"=http://"+p)
	}
	config.InitialCluster = strings.Join(initial, ",")

	// The shortest lease is one and a half elections, in whole seconds. Several
	// members need more time than one: on a loaded machine a heartbeat is late
	// more often than the leader is gone.
	config.TickMs, config.ElectionMs = 10, 50
	if len(peers) > 1 {
		config.ElectionMs = 200
	}
	if s.Auth != "" {
		config.AuthToken, config.AuthTokenTTL = s.Auth, s.AuthTTL
	}
	config.BcryptCost = bcryptCost
	config.UnsafeNoFsync = !s.Fsync
	// The gateway is a client of its own, with connections and goroutines.
	config.EnableGRPCGateway = false
	return config
}
