package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

const program = "etcd-fence-demo"

const usage = `Usage: etcd-fence-demo [flags]

Shows what a fencing token is for, with two worker processes on a real etcd.
Worker A is stopped (SIGSTOP) for longer than its lease, between its last check
and its write, while worker B is granted the lock and writes. The story is told
twice: without a fence, where A's old value wins, and through the guard, where
etcd refuses it. A table read back from etcd closes it.

Flags:
  --ttl DURATION
              lease time to ask for, 1s to 1m, in whole seconds (default 2s)
  --keep      keep the keys, or the data of the demo's own etcd, and say where
              they are
  -o, --output FORMAT
              "table" (default): the story as it goes, and the table
              "json": what came out, as one JSON object; 64-bit numbers are
              strings
  --help      show this and exit

Flags for a cluster, as those of etcdctl:
  --endpoints HOST:PORT[,HOST:PORT...]
              run on this cluster instead of an etcd of the demo's own, under a
              fresh prefix that is removed again, also after Ctrl-C
  --cacert FILE, --cert FILE, --key FILE
              certificate of the authority to trust; the client's own, and its
              key
  --insecure-skip-tls-verify
              do not look who the server is
  --insecure-transport=false
              use TLS without any of the flags above; the default is that the
              scheme of an endpoint decides
  --user NAME[:PASSWORD], --password PASSWORD
              as whom to log in, if the cluster has authentication on; without a
              password the terminal is asked for it
  --dial-timeout DURATION
              for logging in (default 2s)
  --command-timeout DURATION
              for each request (default 5s)
  --keepalive-time DURATION, --keepalive-timeout DURATION
              when a silent connection is tried, and when it is given up
              (defaults 2s and 6s)

Each of them can be given as a variable too: ETCDCTL_ENDPOINTS, ETCDCTL_CACERT,
ETCDCTL_PASSWORD and so on. A flag wins over its variable, and an empty variable
is none.

On a cluster with authentication the user needs a role with readwrite on the
prefix /etcd-fence-demo/.

Exit status:
  0    every row of the closing table came out as it must
  1    a row came out wrong, or the demo could not be finished
  2    the command line, or a variable, was wrong
  128 and the number of the signal that ended it: 130 after Ctrl-C

Colours are used on a terminal only; NO_COLOR=1 turns them off there too.
`

// Bounds of --ttl. Longer leases are legal in etcd; nobody would watch.
const (
	defaultTTL = 2 * time.Second
	minTTL     = time.Second
	maxTTL     = time.Minute
)

// maxTimeout bounds the timeouts; a longer one is a mistake in the unit.
const maxTimeout = time.Hour

type options struct {
	target target // without endpoints it is an etcd of the demo's own
	ttl    time.Duration
	keep   bool
	json   bool
	help   bool
}

// parseFlags reads the command line and the environment. Its errors name the flag
// or the variable and what is allowed; its warnings are about variables.
func parseFlags(args, environ []string) (o options, warnings []string, err error) {
	o = options{target: defaultTarget(), ttl: defaultTTL}
	fs := flag.NewFlagSet(program, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints errors, once
	fs.BoolVar(&o.keep, "keep", false, "")
	format := func(text string) error {
		o.json = text == "json"
		if !o.json && text != "table" {
			return errors.New("want table or json")
		}
		return nil
	}
	fs.Func("o", "", format)
	fs.Func("output", "", format)
	fs.Func("ttl", "", func(text string) (err error) {
		o.ttl, err = time.ParseDuration(text)
		// etcd counts leases in whole seconds.
		if err != nil || o.ttl < minTTL || o.ttl > maxTTL || o.ttl%time.Second != 0 {
			return errors.New("want whole seconds, 1s to 1m")
		}
		return nil
	})
	cluster := clusterFlags(&o.target)
	cluster.VisitAll(func(f *flag.Flag) { fs.Var(f.Value, f.Name, "") })

	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		o.help = true
		return o, nil, nil
	case err != nil:
		return o, nil, errors.New(inWords(err.Error()))
	case fs.NArg() > 0:
		return o, nil, fmt.Errorf("unexpected argument %q: there are only flags", fs.Arg(0))
	}
	given := make(map[string]bool)
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if warnings, err = fromEnvironment(cluster, given, environ); err != nil {
		return o, nil, err
	}
	if len(o.target.Endpoints) == 0 {
		// What variables say about clusters does not concern an etcd of our own.
		cluster.VisitAll(func(f *flag.Flag) {
			if err == nil && given[f.Name] {
				err = fmt.Errorf("flag --%s needs --endpoints, or ETCDCTL_ENDPOINTS", f.Name)
			}
		})
		o.target = defaultTarget()
		return o, warnings, err
	}
	return o, warnings, o.target.check()
}

// inWords makes of what package flag says what --help says: two dashes, and the
// values that a switch takes. Only switches are left to its own parser.
func inWords(text string) string {
	for _, before := range []string{"for flag -", "for -", "an argument: -", "not defined: -"} {
		if at := strings.LastIndex(text, before); at >= 0 {
			at += len(before)
			name, _, _ := strings.Cut(text[at:], ":")
			if len(name) > 1 {
				text = text[:at] + "-" + text[at:]
			}
			break
		}
	}
	if rest, found := strings.CutSuffix(text, "parse error"); found {
		return rest + "want true or false"
	}
	return text
}

// clusterFlags are those that etcdctl has too. Each sets a field of the target.
func clusterFlags(t *target) *flag.FlagSet {
	fs := flag.NewFlagSet("cluster", flag.ContinueOnError)
	fs.Func("endpoints", "", t.setEndpoints)
	fs.StringVar(&t.CACert, "cacert", t.CACert, "")
	fs.StringVar(&t.Cert, "cert", t.Cert, "")
	fs.StringVar(&t.Key, "key", t.Key, "")
	fs.BoolVar(&t.SkipVerify, "insecure-skip-tls-verify", t.SkipVerify, "")
	fs.BoolVar(&t.InsecureTransport, "insecure-transport", t.InsecureTransport, "")
	fs.StringVar(&t.User, "user", t.User, "")
	fs.StringVar(&t.Password, "password", t.Password, "")
	for name, field := range map[string]*time.Duration{
		"dial-timeout": &t.DialTimeout, "command-timeout": &t.CommandTimeout,
		"keepalive-time": &t.KeepAliveTime, "keepalive-timeout": &t.KeepAliveTimeout,
	} {
		fs.Func(name, "", func(text string) error {
			d, err := time.ParseDuration(text)
			if err != nil || d <= 0 || d > maxTimeout {
				return errors.New("want a duration above 0s, up to 1h, such as 5s")
			}
			*field = d
			return nil
		})
	}
	return fs
}

func (t *target) setEndpoints(list string) error {
	t.Endpoints = nil
	for endpoint := range strings.SplitSeq(list, ",") {
		endpoint = strings.TrimSpace(endpoint)
		if _, _, err := net.SplitHostPort(address(endpoint)); err != nil {
			return errors.New("want HOST:PORT[,HOST:PORT...], or no endpoints for an etcd of the demo's own")
		}
		t.Endpoints = append(t.Endpoints, endpoint)
	}
	return nil
}

// address is an endpoint without its scheme. etcd's client takes both forms.
func address(endpoint string) string {
	if _, after, found := strings.Cut(endpoint, "://"); found {
		return after
	}
	return endpoint
}

// variables is what the names of etcdctl's variables begin with.
const variables = "ETCDCTL_"

// harmless are variables of etcdctl that mean nothing here: they say what it
// prints, or how much a request may carry.
var harmless = map[string]bool{
	"API": true, "DEBUG": true, "HEX": true, "WRITE_OUT": true, "WATCH_KEY": true, "WATCH_RANGE_END": true,
	"MAX_REQUEST_BYTES": true, "MAX_RECV_BYTES": true, "INSECURE_DISCOVERY": true,
}

// fromEnvironment sets the flags that were not given from their variables. The
// warnings are about variables that were set for something and do nothing. Values
// are in no message: one of them is a password.
func fromEnvironment(fs *flag.FlagSet, given map[string]bool, environ []string) (warnings []string, err error) {
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		rest, ours := strings.CutPrefix(name, variables)
		if !ours || value == "" || harmless[rest] {
			continue
		}
		name = strings.ToLower(strings.ReplaceAll(rest, "_", "-"))
		switch f := fs.Lookup(name); {
		case f == nil:
			warnings = append(warnings, variables+rest+" is set and not used here")
		case !given[name]:
			if err := f.Value.Set(value); err != nil {
				return nil, fmt.Errorf("invalid value in the variable %s%s: %s", variables, rest, inWords(err.Error()))
			}
		}
	}
	return warnings, nil
}
