package opentelemetry_test

import (
	"context"
	"fmt"
	"log"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/examples/opentelemetry"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	exporter := tracetest.NewInMemoryExporter() // stands for yours
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)).Tracer("shop")

	c, err := coordinator.New(etcd.Client(), &coordinator.Options{Hooks: opentelemetry.Hooks(tracer)})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := etcdguard.New(etcd.Client(), nil)
	if err != nil {
		log.Fatal(err)
	}
	barrier := func(ctx context.Context, t revisionfence.Token) error {
		ctx, span := tracer.Start(ctx, "advance")
		defer span.End()
		return guard.Advance(ctx, t.Lock(), t)
	}
	// Grant, raise, read, act.
	err = c.Do(ctx, "orders/42", func(ctx context.Context, g *coordinator.Grant) error {
		ctx, span := tracer.Start(opentelemetry.Under(ctx, g), "restock")
		defer span.End()
		kv, err := guard.KV(g)
		if err != nil {
			return err
		}
		if _, err := kv.Get(ctx, "stock/42"); err != nil {
			return err
		}
		_, err = kv.Put(ctx, "stock/42", "8")
		return err
	}, coordinator.Raise(barrier))
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Close(ctx); err != nil {
		log.Fatal(err)
	}

	names := make(map[string]string)
	for _, span := range exporter.GetSpans() {
		names[span.SpanContext.SpanID().String()] = span.Name
	}
	for _, span := range exporter.GetSpans() {
		fmt.Printf("%s", span.Name)
		if parent := names[span.Parent.SpanID().String()]; parent != "" {
			fmt.Printf(" in %s", parent)
		}
		for _, event := range span.Events {
			fmt.Printf(" | %s", event.Name)
		}
		fmt.Println()
	}
	// Output:
	// advance in etcd_fence.tenure
	// etcd_fence.acquire in etcd_fence.tenure
	// restock in etcd_fence.tenure
	// etcd_fence.tenure | waiting | held | released
	// etcd_fence.session | ended
}
