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
  --endpoints HOST:PORT[,HOST:PORT...]
              run on this cluster instead of an etcd of the demo's own, under a
              fresh prefix that is removed again, also after Ctrl-C
  --cacert FILE, --cert FILE, --key FILE
              certificates for it, as for etcdctl
  --ttl DURATION
              lease time to ask for, 1s to 1m, in whole seconds (default 2s)
  --keep      keep the keys, or the data of the demo's own etcd, and say where
              they are
  --help      show this and exit

Exit status:
  0    every row of the closing table came out as it must
  1    a row came out wrong, or the demo could not be finished
  2    the command line was wrong
  128 and the number of the signal that ended it: 130 after Ctrl-C

Colours are used on a terminal only; NO_COLOR=1 turns them off there too.
`

// Bounds of --ttl. Longer leases are legal in etcd; nobody would watch.
const (
	defaultTTL = 2 * time.Second
	minTTL     = time.Second
	maxTTL     = time.Minute
)

type options struct {
	target target // without endpoints it is an etcd of the demo's own
	ttl    time.Duration
	keep   bool
	help   bool
}

// parseFlags reads the command line. Its errors name the flag and what is
// allowed.
func parseFlags(args []string) (options, error) {
	o := options{ttl: defaultTTL}
	fs := flag.NewFlagSet(program, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints errors, once
	fs.BoolVar(&o.keep, "keep", false, "")
	fs.StringVar(&o.target.CACert, "cacert", "", "")
	fs.StringVar(&o.target.Cert, "cert", "", "")
	fs.StringVar(&o.target.Key, "key", "", "")
	fs.Func("ttl", "", func(text string) (err error) {
		o.ttl, err = time.ParseDuration(text)
		// etcd counts leases in whole seconds.
		if err != nil || o.ttl < minTTL || o.ttl > maxTTL || o.ttl%time.Second != 0 {
			return errors.New("want whole seconds, 1s to 1m")
		}
		return nil
	})
	fs.Func("endpoints", "", func(list string) error {
		for endpoint := range strings.SplitSeq(list, ",") {
			endpoint = strings.TrimSpace(endpoint)
			if _, _, err := net.SplitHostPort(address(endpoint)); err != nil {
				return errors.New("want HOST:PORT[,HOST:PORT...], or no --endpoints for an etcd of the demo's own")
			}
			o.target.Endpoints = append(o.target.Endpoints, endpoint)
		}
		return nil
	})
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		o.help = true
		return o, nil
	case err != nil:
		return o, err
	case fs.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: there are only flags", fs.Arg(0))
	}
	secure, err := o.target.tls()
	if err == nil && secure != nil && len(o.target.Endpoints) == 0 {
		err = errors.New("flags --cacert, --cert and --key need --endpoints")
	}
	return o, err
}

// address is an endpoint without its scheme. etcd's client takes both forms.
func address(endpoint string) string {
	if _, after, found := strings.Cut(endpoint, "://"); found {
		return after
	}
	return endpoint
}
