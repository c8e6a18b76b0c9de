// Command etcd36 is etcd's own server at the newest release of its line 3.6,
// for the tests that show how the packages behave with it.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
