package memguard_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/memguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

func Example() {
	ctx := context.Background()
	stock, err := memguard.New(&memguard.Options{
		LockOf: func(string) (string, error) { return "orders/42", nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	// The tokens of two grants; a coordinator hands them out.
	a, _ := revisionfence.New("orders/42", 0, 12)
	b, _ := revisionfence.New("orders/42", 0, 15)

	// B has the lock now: raise, read, act.
	if err := stock.Advance(ctx, "stock", b); err != nil {
		fmt.Println(err)
		return
	}
	_, err = stock.Put(ctx, resourceguard.Write{Resource: "stock", Token: b}, []byte("8"))
	fmt.Println("B writes 8:", err)

	// A was paused, and does not know.
	_, err = stock.Put(ctx, resourceguard.Write{Resource: "stock", Token: a}, []byte("5"))
	fmt.Println("A is stale:", errors.Is(err, resourceguard.ErrStale))

	value, _, _ := stock.Store().Peek(ctx, "stock")
	fmt.Printf("stock is %s\n", value)
	// Output:
	// B writes 8: <nil>
	// A is stale: true
	// stock is 8
}

// An answer was lost, so the caller repeats under the same operation ID.
func ExampleGuard_Do() {
	ctx := context.Background()
	guard, _ := memguard.New(&memguard.Options{
		LockOf: func(string) (string, error) { return "orders/42", nil },
	})
	token, _ := revisionfence.New("orders/42", 0, 12)
	w := resourceguard.Write{
		Resource:  "stock",
		Token:     token,
		Operation: resourceguard.Operation{ID: "ship-1001"},
	}
	ship := func(c *memguard.Cell) ([]byte, error) {
		shipped, _ := c.Get()
		c.Put(append(shipped, '*'))
		return []byte("shipped"), nil
	}
	for range 2 {
		result, err := guard.Do(ctx, w, ship)
		fmt.Printf("%s, replayed: %v, %v\n", result.Value, result.Replayed, err)
	}
	value, _, _ := guard.Store().Peek(ctx, "stock")
	fmt.Printf("times: %s\n", value)
	// Output:
	// shipped, replayed: false, <nil>
	// shipped, replayed: true, <nil>
	// times: *
}
