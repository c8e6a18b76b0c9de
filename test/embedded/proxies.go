package embedded

// Proxies is one [Proxy] in front of each member, for a client that can be cut
// off from one member or from all:
//
//	proxies := etcd.Proxies(t)
//	client := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = proxies.Endpoints() })
//	proxies.Cut()     // from all
//	proxies.Heal()
//	proxies[1].Cut()  // from member 1
type Proxies []*Proxy

// Proxies returns new proxies in front of all members, in their order. They end
// with the test.
func (c *Cluster) Proxies(t TB) Proxies {
	t.Helper()
	proxies := make(Proxies, 0, len(c.members))
	for i := range c.members {
		proxies = append(proxies, c.Proxy(t, i))
	}
	return proxies
}

// Endpoints returns the addresses of the proxies, as host:port.
func (ps Proxies) Endpoints() []string {
	endpoints := make([]string, len(ps))
	for i, p := range ps {
		endpoints[i] = p.Endpoint()
	}
	return endpoints
}

// Cut cuts all of them, see [Proxy.Cut].
func (ps Proxies) Cut() {
	for _, p := range ps {
		p.Cut()
	}
}

// Heal ends a Cut of all of them.
func (ps Proxies) Heal() {
	for _, p := range ps {
		p.Heal()
	}
}

// Reset closes the connections of all of them, see [Proxy.Reset].
func (ps Proxies) Reset() {
	for _, p := range ps {
		p.Reset()
	}
}
