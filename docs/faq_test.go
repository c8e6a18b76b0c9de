package docs

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

func Example_permits() {
	ctx, client, stop := example()
	defer stop()
	c := must(coordinator.New(client, nil))
	defer c.Close(ctx)

	// docs begin
	permits := []string{"import/1", "import/2", "import/3"} // three at a time
	for range 4 {
		permit, err := c.TryAcquireAny(ctx, slices.Values(permits))
		if errors.Is(err, coordinator.ErrBusy) {
			fmt.Println("busy")
			continue
		}
		defer permit.Release(ctx)
		fmt.Println(permit.Lock(), err)
	}
	// docs end

	// Output:
	// import/1 <nil>
	// import/2 <nil>
	// import/3 <nil>
	// busy
}

func Example_twoTTLs() {
	ctx, client, stop := example()
	defer stop()

	// docs begin
	quick, err := coordinator.New(client, &coordinator.Options{TTL: 3 * time.Second})
	if err != nil {
		fmt.Println(err)
	}
	patient, err := coordinator.New(client, &coordinator.Options{TTL: time.Minute})
	if err != nil {
		fmt.Println(err)
	}
	// docs end
	defer quick.Close(ctx)
	defer patient.Close(ctx)
	for _, c := range []*coordinator.Coordinator{quick, patient} {
		g := must(c.Acquire(ctx, "leader"))
		fmt.Println(g.TTL(), must(c.IsCurrent(ctx, g.Token())), g.Release(ctx))
	}

	// Output:
	// 3s true <nil>
	// 1m0s true <nil>
}
