package resourceguard_test

import (
	"errors"
	"fmt"
	"sync"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// counter is a resource with a guard of its own: the smallest there is.
type counter struct {
	mu    sync.Mutex
	value int
	mark  string // what a row or a file would hold; "" before the first write
}

// set is one step: the mutex covers the check, the effect and the mark.
func (c *counter) set(t revisionfence.Token, value int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	stored := resourceguard.NoMark()
	if c.mark != "" {
		stored = resourceguard.ParseMark(c.mark)
	}
	decision, err := resourceguard.Rule{Lock: "orders/42"}.Admit(stored, t)
	if err != nil {
		return resourceguard.ForResource("stock", err)
	}
	if decision == resourceguard.Raise {
		c.mark = t.String()
	}
	c.value = value
	return nil
}

// Worker A was granted the lock first and paused; B was granted it afterwards.
func ExampleRule_Admit() {
	a, _ := revisionfence.New("orders/42", 0, 12)
	b, _ := revisionfence.New("orders/42", 0, 15)

	var stock counter
	fmt.Println("B writes 8:", stock.set(b, 8))
	err := stock.set(a, 5)
	fmt.Println("A writes 5:", err)
	fmt.Println("stock is", stock.value)

	if stale, ok := errors.AsType[*resourceguard.StaleError](err); ok {
		fmt.Println(stale.Presented, "lost to", stale.Accepted)
	}
	fmt.Println("A's write was", resourceguard.OutcomeOf(err))
	// Output:
	// B writes 8: <nil>
	// A writes 5: resource "stock": token 12@orders/42 is stale: 15@orders/42 has been accepted; acquire the lock again and read before writing
	// stock is 8
	// 12@orders/42 lost to 15@orders/42
	// A's write was not applied
}

func ExampleWithOutcome() {
	// A guard's one function for its backend's errors.
	classify := func(err error) error {
		switch err.Error() {
		case "syntax error":
			return resourceguard.WithOutcome(err, resourceguard.NotApplied)
		default:
			return resourceguard.WithOutcome(err, resourceguard.Unknown)
		}
	}
	for _, err := range []error{errors.New("syntax error"), errors.New("connection reset")} {
		fmt.Printf("%v: %v\n", err, resourceguard.OutcomeOf(fmt.Errorf("put: %w", classify(err))))
	}
	// Output:
	// syntax error: not applied
	// connection reset: unknown
}
