// Package embedded runs an etcd for tests: inside the test binary, on free
// ports of the loopback interface, ready within some tens of milliseconds.
//
//	func TestMine(t *testing.T) {
//		etcd := embedded.Start(t, nil)
//		client := etcd.Client()
//		...
//	}
//
// Everything is cleaned up when the test ends: clients, the member, its data.
// What the server logged is shown only when the test has failed.
//
// # Time
//
// The member ticks every 10 ms and elects a leader after 50 ms, so that the
// shortest lease that it grants is one second (with etcd's own defaults it
// raises that to two). It does not wait for the disk. [Cluster.Expire] ends a
// grant as the end of its lease would, without anybody waiting for a TTL.
//
// # Faults
//
// [Cluster.Stop] and [Cluster.Restart] keep the data and the port. A member in
// a process of its own (Options.Process) can be stopped with its sockets open
// ([Cluster.Pause]), continued and killed for real. [Cluster.Proxy] puts a TCP
// proxy in front of the member that can be cut and healed. Package
// [github.com/etcd-fence/etcd-fence/test/embedded/wire] counts, holds, drops
// and repeats single requests of one client.
//
// # Several members
//
// Options.Members starts a cluster of 3, 5 or 7. Stop, Kill, Restart, Pause and
// Resume take the indexes of members; [Cluster.Leader] says which one leads, and
// [Cluster.MoveLeader] makes another one do so. [Cluster.Proxies] cuts a client
// off from one member or from all, [Cluster.Isolate] a member from the others. An
// election takes 200 ms to 400 ms. Each of these is an etcd of its own size, so a
// machine that is busy with other tests may hold an election too many.
//
// # Certificates and passwords
//
// Options.TLS makes a throwaway authority and certificates for members and
// clients; [Cluster.ClientConfig] carries them, and [Cluster.CertFiles] has their
// paths for a program's flags. Options.Auth turns authentication on; the clients
// of the cluster are root then, and [Cluster.ClientAs] is anybody else.
//
// # Snapshots
//
// [Cluster.Snapshot] saves one. Package
// [github.com/etcd-fence/etcd-fence/test/embedded/snapshot], a module of its own,
// restores it under the clients of a running test or into a new directory.
//
// # Process mode
//
// The child is the running binary started again: this package's init finds an
// environment variable that [Start] has set, serves the member and exits before
// main or TestMain is reached. So it works from every test binary and from
// go run, with nothing to install. The inits of other packages may run first in
// the child; one that opens ports or files there would do it twice. The child
// ends when the parent does, however that ends. Unix only.
//
// # Other versions of etcd
//
// Options.Binary, or the environment variable ETCD_FENCE_TEST_ETCD for a whole
// test suite, runs the members from an etcd server program, 3.5 or later, with
// all that process mode can do. On a Unix other than Linux a program that is
// paused or running when the test binary is killed is left behind.
//
// The package does not import testing, so a program may link it too: see [Run].
package embedded
