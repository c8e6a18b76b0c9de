package revisionfence_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

func ExampleToken_Compare() {
	a, _ := revisionfence.New("orders/42", 0, 12)
	b, _ := revisionfence.New("orders/42", 0, 15)
	order, err := a.Compare(b)
	fmt.Println(order, err)

	elsewhere, _ := revisionfence.New("orders/43", 0, 99)
	_, err = a.Compare(elsewhere)
	fmt.Println(errors.Is(err, revisionfence.ErrDifferentLocks))
	// Output:
	// -1 <nil>
	// true
}

// The lock key as etcd returned it. Its mod revision moved when its value changed;
// the token did not.
func ExampleFromKey() {
	kv := &mvccpb.KeyValue{
		Key:            []byte("/etcd-fence/locks/orders%2F42/694d8f0a1b2c3d4e-1"),
		CreateRevision: 12,
		ModRevision:    31,
	}
	token, err := revisionfence.FromKey("orders/42", 0, kv)
	fmt.Println(token, err)
	// Output: 12@orders/42 <nil>
}

func ExampleParse() {
	token, err := revisionfence.Parse("2:12@caf%C3%A9%20orders")
	fmt.Println(token.Lock(), token.Epoch(), token.Revision(), err)

	_, err = revisionfence.Parse("012@orders")
	fmt.Println(err)
	// Output:
	// café orders 2 12 <nil>
	// malformed token: "012@orders": revision: "012" is no number written plainly
}

// A resource that knows its lock can store one number, or a text that sorts.
func ExampleToken_SortKey() {
	before, _ := revisionfence.New("orders/42", 0, 999)
	after, _ := revisionfence.New("orders/42", 1, 3) // etcd was recovered from a backup
	for _, t := range []revisionfence.Token{before, after} {
		fmt.Println(t, t.Int64(), t.SortKey())
	}
	// Output:
	// 999@orders/42 999 00000000000003e7
	// 1:3@orders/42 281474976710659 0001000000000003
}

func ExampleToken_MarshalText() {
	token, _ := revisionfence.New("orders/42", 0, 12)
	text, err := json.Marshal(revisionfence.Mark{Resource: "stock", Token: token})
	fmt.Println(string(text), err)
	// Output: {"resource":"stock","token":"12@orders/42"} <nil>
}

func ExampleNewContext() {
	token, _ := revisionfence.New("orders/42", 0, 12)
	ctx := revisionfence.NewContext(context.Background(), token)

	// Further down, where the write is made:
	if t, ok := revisionfence.FromContext(ctx); ok {
		fmt.Println("write under", t)
	}
	// Output: write under 12@orders/42
}
