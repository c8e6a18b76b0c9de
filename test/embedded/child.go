//go:build unix

package embedded

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"

	"go.etcd.io/etcd/server/v3/embed"
)

// init turns a process that was started to be a member into one. It has to
// happen here: a test binary's main belongs to the testing package.
func init() {
	spec := os.Getenv(childEnv)
	if spec == "" {
		return
	}
	_ = os.Unsetenv(childEnv) // whatever the member starts is no member
	os.Exit(serveChild(spec))
}

// serveChild runs the member until the standard input ends, which it does at the
// latest with the parent. It reports when it has started, when it is ready, and
// when it has done what it was told to.
func serveChild(text string) int {
	member, err := startChild(text)
	if !say(0, err) {
		return 1
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for orders := json.NewDecoder(os.Stdin); ; {
			var order childOrder
			if err := orders.Decode(&order); err != nil {
				return
			}
			say(0, member.cut(context.Background(), order.Peer, order.Cut))
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		// Several members are ready together or not at all, so that this can end
		// with an order to stop. Then nobody reads any more.
		if err := member.ready(ctx); ctx.Err() == nil {
			say(member.id(), err)
		}
	}()
	<-ended
	cancel()
	ctx, cancel = context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := member.stop(ctx); err != nil {
		return 1
	}
	return 0
}

// say reports to the parent, and says whether there is a reason to go on.
func say(id uint64, err error) bool {
	report := childReport{ID: id}
	if err != nil {
		report = childReport{Error: err.Error(), PortTaken: portTaken(err)}
	}
	line, _ := json.Marshal(report) // a struct of plain values
	_, printErr := fmt.Printf("%s\n", line)
	return printErr == nil && err == nil
}

func startChild(text string) (*local, error) {
	var child struct {
		Spec    spec
		Changes map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &child); err != nil {
		return nil, err
	}
	config := child.Spec.config()
	fields := reflect.ValueOf(config).Elem()
	for name, value := range child.Changes {
		if err := json.Unmarshal(value, fields.FieldByName(name).Addr().Interface()); err != nil {
			return nil, fmt.Errorf("config field %s: %w", name, err)
		}
	}
	return startLocal(config, newLogger(os.Stderr).Named("member"))
}

// changedFields finds what Options.Config changes. A function or a connection
// cannot be handed to a child, and a test that believes it was would test
// something else, so changing one is an error.
func changedFields(m *Member) (map[string]any, error) {
	if m.opts.Config == nil {
		return nil, nil
	}
	before, after, err := m.configured()
	if err != nil {
		return nil, err
	}
	changes := make(map[string]any)
	was, is := reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()
	for _, field := range reflect.VisibleFields(reflect.TypeFor[embed.Config]()) {
		if !field.IsExported() || len(field.Index) != 1 {
			continue
		}
		old, now := was.FieldByIndex(field.Index).Interface(), is.FieldByIndex(field.Index).Interface()
		if reflect.DeepEqual(old, now) {
			continue
		}
		switch field.Type.Kind() {
		case reflect.Bool, reflect.String, reflect.Float64,
			reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint32, reflect.Uint64:
			changes[field.Name] = now
		default:
			return nil, fmt.Errorf("%w: Options.Config changes %s, which cannot be handed to a member in another process", ErrUnsupported, field.Name)
		}
	}
	return changes, nil
}
