package guardtest_test

import (
	"testing"

	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
)

// TestTheExamplePasses: what is there to be copied is right.
func TestTheExamplePasses(t *testing.T) {
	guardtest.Run(t, newShelfHarness)
}
