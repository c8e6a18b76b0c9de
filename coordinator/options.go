package coordinator

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of the options.
const (
	// DefaultPrefix is where everything of this package lives in etcd.
	DefaultPrefix = "/etcd-fence/"
	// DefaultTTL is how long a holder that says nothing more keeps its locks.
	DefaultTTL = 10 * time.Second
	// MinTTL is the shortest TTL: leases count whole seconds. Servers raise it
	// to one and a half election time-outs, which is 2 s as etcd comes.
	MinTTL = time.Second
	// MaxTTL is the longest TTL.
	MaxTTL = 24 * time.Hour
	// DefaultCleanupTimeout bounds what a call still does after its context ended.
	DefaultCleanupTimeout = time.Second

	maxPrefix   = 1024
	maxIdentity = 256
	maxReason   = 1024
)

// Options adjust a [Coordinator]. The zero value of each field is its default.
type Options struct {
	// Prefix is where locks, sessions and marks live in etcd. Two coordinators
	// exclude each other only under the same prefix of the same cluster. It must
	// end in "/", and not lie among the locks, sessions or marks of another: then
	// no session opens, with [ErrInvalidOption]. That is seen only if the outer
	// prefix was used first and its epoch record can be read; else nothing tells.
	// Defaults to [DefaultPrefix].
	Prefix string

	// Directory puts the queue of a lock where another program has it: that of
	// concurrency.NewMutex(session, "/jobs") and of "etcdctl lock /jobs" is
	// "/jobs/". It is used as it is, must end in "/", and must not lie below or
	// above that of another lock. Two names may share one; then they are one lock.
	// [Coordinator.List] is not available. Defaults to a directory for each name
	// below Prefix.
	Directory func(lock string) string

	// TTL is how long the locks of a process that died, or that nobody hears of,
	// stay taken: [MinTTL] to [MaxTTL], rounded up to whole seconds. A server may
	// grant more than it was asked for; what it granted counts, and
	// [Grant.TTL] says what that is. Defaults to [DefaultTTL].
	TTL time.Duration

	// DrainMargin is how little trusted time may be left before
	// [Grant.Draining] asks to stop starting work. Above 0, and less than what is
	// left each time when the next proof is due: 7 s with the default TTL, about
	// two thirds of a shorter one. Defaults to a third of the TTL.
	DrainMargin time.Duration

	// CleanupTimeout bounds how long a call whose context has ended waits for
	// its own cleaning up before it returns; what is not finished by then goes
	// on in the background. At most a minute. Defaults to
	// [DefaultCleanupTimeout].
	CleanupTimeout time.Duration

	// Identity names this process to people who ask who holds a lock: at most
	// 256 bytes of UTF-8 without control characters. It need not be unique, and
	// nothing is decided by it. Defaults to "HOST:PID".
	Identity string

	// Registerer gets the metrics that the package comment lists. Several
	// coordinators may share one; their numbers add up. Defaults to none.
	Registerer prometheus.Registerer

	// Hooks are called when something happens.
	Hooks Hooks

	// Logger is told what no caller is there to be told: sessions that begin
	// and end, grants that are lost, cleaning up that takes long. Defaults to
	// none.
	Logger *slog.Logger
}

// withDefaults returns the options completed and checked.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.DrainMargin == 0 {
		c.DrainMargin = c.TTL / 3
	}
	if c.CleanupTimeout == 0 {
		c.CleanupTimeout = DefaultCleanupTimeout
	}
	if c.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		c.Identity = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case !strings.HasSuffix(c.Prefix, "/") || len(c.Prefix) > maxPrefix:
		return c, fmt.Errorf("%w: Prefix %q: must end in \"/\" and be at most %d bytes long", ErrInvalidOption, c.Prefix, maxPrefix)
	case c.TTL < MinTTL || c.TTL > MaxTTL:
		return c, fmt.Errorf("%w: TTL %v: must be %v to %v", ErrInvalidOption, c.TTL, MinTTL, MaxTTL)
	case c.DrainMargin < 0 || c.DrainMargin >= dueAt(c.TTL):
		return c, fmt.Errorf("%w: DrainMargin %v: must be above 0 and below %v, which is what a TTL of %v leaves", ErrInvalidOption, c.DrainMargin, dueAt(c.TTL), c.TTL)
	case c.CleanupTimeout < 0 || c.CleanupTimeout > time.Minute:
		return c, fmt.Errorf("%w: CleanupTimeout %v: must be above 0 and at most %v", ErrInvalidOption, c.CleanupTimeout, time.Minute)
	}
	if err := checkText("Identity", c.Identity, maxIdentity); err != nil {
		return c, err
	}
	c.TTL = (c.TTL + time.Second - 1).Truncate(time.Second)
	return c, nil
}

// checkText refuses what would break a line of somebody's log or table.
func checkText(field, text string, most int) error {
	if len(text) > most || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Errorf("%w: %s %.80q: must be at most %d bytes of UTF-8 without control characters", ErrInvalidOption, field, text, most)
	}
	return nil
}
