package embedded

import (
	"context"
	"testing"
	"time"
)

func TestAStartIsBounded(t *testing.T) {
	ctx, cancel := boundStart(context.Background())
	defer cancel()
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > startTimeout {
		t.Errorf("without a deadline: %v, %v", deadline, ok)
	}
	long, cancelLong := context.WithTimeout(context.Background(), time.Hour)
	defer cancelLong()
	ctx, cancel = boundStart(long)
	defer cancel()
	if deadline, _ := ctx.Deadline(); time.Until(deadline) < 2*startTimeout {
		t.Errorf("the caller's deadline is shortened to %v", deadline)
	}
}
