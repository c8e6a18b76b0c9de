package main

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// workerCommand is the argument that turns the program into a worker. It is not
// for people: a worker does what its standard input says.
const workerCommand = "worker"

// order is a line of JSON that the parent writes to a worker. The end of the
// input is an order too: to leave.
type order struct {
	Do verb `json:"do"`

	// For start.
	Target target        `json:"target"`
	Prefix string        `json:"prefix,omitempty"`
	TTL    time.Duration `json:"ttl_ns,omitempty"`
	Name   string        `json:"name,omitempty"`

	// For the writes.
	Key    string `json:"key,omitempty"`
	Value  string `json:"value,omitempty"`
	Fenced bool   `json:"fenced,omitempty"` // through the guard, or with a plain client
}

type verb string

const (
	doStart   verb = "start"   // connect; answer: ready
	doAsk     verb = "ask"     // for the lock, without waiting; answer: granted or busy
	doAcquire verb = "acquire" // wait for the lock; answer: granted
	doWrite   verb = "write"   // answer: written or refused
	doPrepare verb = "prepare" // do everything before a write; answer: ready, then wait for doGo
	doGo      verb = "go"      // make the prepared write; answer: written or refused
	doRelease verb = "release" // answer: released or not held
)

// answer is a line of JSON that a worker writes: one for each order.
type answer struct {
	Got result `json:"got"`

	// Token, Key, Lease and TTL are those of the worker's grant; or Token is that
	// of the Holder who made the answer "busy".
	Token  revisionfence.Token `json:"token,omitzero"`
	Key    string              `json:"key,omitempty"`
	Lease  clientv3.LeaseID    `json:"lease,omitempty"`
	TTL    time.Duration       `json:"ttl_ns,omitempty"`
	Holder string              `json:"holder,omitempty"`

	Read       string        `json:"read,omitempty"`       // what a prepared write found
	TrustedFor time.Duration `json:"trusted_ns,omitempty"` // and how long its grant was good for
	Revision   int64         `json:"revision,omitempty"`   // of what was written

	// Of a refused write.
	Presented revisionfence.Token `json:"presented,omitzero"`
	Accepted  revisionfence.Token `json:"accepted,omitzero"`

	Error string `json:"error,omitempty"` // the error, in words
	Lost  string `json:"lost,omitempty"`  // why the grant has ended, as the worker knows after the order
}

type result string

const (
	gotReady    result = "ready"
	gotGranted  result = "granted"
	gotBusy     result = "busy"
	gotWritten  result = "written"
	gotRefused  result = "refused"
	gotReleased result = "released"
	gotNotHeld  result = "not held"
	gotFailed   result = "failed"
)
