// Quickstart takes a lock, and reads and writes under its token.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // an etcd inside of this program, gone when it ends
	if err != nil {
		return err
	}
	defer etcd.Close()
	client := etcd.Client() // with an etcd of your own: clientv3.New

	c, err := coordinator.New(client, nil) // one for each process
	if err != nil {
		return err
	}
	defer c.Close(ctx) // frees its locks at once
	guard, err := etcdguard.New(client, nil)
	if err != nil {
		return err
	}
	if _, err := client.Put(ctx, "stock", "10"); err != nil { // no guard: no worker runs yet
		return err
	}

	var kept clientv3.KV
	sell := func(ctx context.Context, grant *coordinator.Grant) error {
		fmt.Println("holds", grant.Lock())
		kv, err := guard.KV(grant) // all that goes through it carries the grant's token
		if err != nil {
			return err
		}
		kept = kv
		stock, err := kv.Get(ctx, "stock") // read
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(stock.Kvs[0].Value))
		if err != nil {
			return err
		}
		if _, err := kv.Put(ctx, "stock", strconv.Itoa(n-1)); err != nil { // act
			return err
		}
		fmt.Println("stock:", n-1)
		return nil
	}
	raise := func(ctx context.Context, token revisionfence.Token) error { // keep older tokens out, before the read
		return guard.Advance(ctx, token.Lock(), token)
	}
	if err := c.Do(ctx, "stock/42", sell, coordinator.Raise(raise)); err != nil { // acquire, raise, sell, release
		return err
	}

	_, err = kept.Put(ctx, "stock", "5") // after the release, as from a process that was paused
	fmt.Println("late write refused:", errors.Is(err, resourceguard.ErrStale))
	return nil
}
