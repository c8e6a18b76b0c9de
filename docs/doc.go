// Package docs is the users' documentation, in the Markdown files beside this
// one, and the tests that run every block of it.
//
// A fenced block has a kind, and each kind is run:
//
//   - go: it is, word for word, what stands between "// docs begin" and
//     "// docs end" in the _test.go file of the page, inside of a test or of an
//     example with output. The blocks and the marked places have the same order.
//   - sh: it is run by a shell that has the real etcdctl, against an etcd of its
//     own for each page. The blocks of a page are one session, and each command
//     must succeed.
//   - sh fails: the same for one command that must fail.
//   - output: what the block before it prints. An ellipsis (…) stands for
//     anything within a line.
//
// Any other kind of block fails the tests. Links, the names of our Go
// identifiers, and the names of metrics are looked up too.
package docs
