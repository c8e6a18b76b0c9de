package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// workerVariable in the environment makes a worker of the test binary.
const workerVariable = "COORDINATOR_TEST_WORKER"

const workerTTL = 2 * time.Second

// worker is a process that holds a lock and writes under it, without a pause and
// without asking whether it still holds it, until etcd refuses a write. It says
// what happens on its standard output, a line each: "granted KEY", "write N",
// "refused N lost REASON".
func worker(endpoint string) {
	if err := work(endpoint); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

func work(endpoint string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	c, err := coordinator.New(client, &coordinator.Options{TTL: workerTTL})
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	g, err := c.Acquire(ctx, "orders")
	if err != nil {
		return err
	}
	fmt.Println("granted", g.Key())
	for n := 1; ; n++ {
		resp, err := client.Txn(ctx).If(g.Fence()...).Then(clientv3.OpPut("stock", fmt.Sprint("A", n))).Else(clientv3.OpGet(g.Key())).Commit()
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			// By now its own clock must have told it, too.
			var lost *coordinator.LostError
			if !errors.As(g.Err(), &lost) {
				return fmt.Errorf("a write was refused, and the grant says %w", g.Err())
			}
			fmt.Println("refused", n, "lost", lost.Reason)
			return nil
		}
		fmt.Println("write", n)
	}
}
