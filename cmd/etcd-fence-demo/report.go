package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// report is what --output json prints: one object, when all is over. Numbers of 64
// bits are strings, since JSON readers that use doubles round them from 2^53 on.
type report struct {
	OK   bool       `json:"ok"` // every row is right
	Etcd reportEtcd `json:"etcd"`
	Lock string     `json:"lock"`
	TTL  int64      `json:"lease_seconds,string"` // as asked for
	Acts []told     `json:"acts"`
	Rows []judged   `json:"rows"`
}

type reportEtcd struct {
	Version   string   `json:"version"`
	Endpoints []string `json:"endpoints"`
	Own       bool     `json:"own"` // it was started for this run
	Prefix    string   `json:"prefix"`
	// With --keep.
	Kept          bool   `json:"kept"`
	DataDirectory string `json:"data_directory,omitempty"` // of an etcd of our own
}

// told is one telling of the story.
type told struct {
	Fenced      bool                `json:"fenced"`
	Key         string              `json:"key"`
	TokenA      revisionfence.Token `json:"token_a"`
	TokenB      revisionfence.Token `json:"token_b"`
	LateWrite   result              `json:"late_write"`   // "written" or "refused"
	LateRelease result              `json:"late_release"` // "released" or "not held"
	Error       string              `json:"late_write_error,omitempty"`
	// The revisions at which etcd stood after these steps.
	AfterSeed  int64 `json:"revision_at_first,string"`
	AfterB     int64 `json:"revision_after_b,string"`
	AfterLate  int64 `json:"revision_after_late_write,string"`
	AfterAgain int64 `json:"revision_after_b_again,string"`
}

// judged is a row of the table.
type judged struct {
	Part string `json:"part"`
	Row  string `json:"row"`
	Want string `json:"expected"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
}

func newReport(g *ground, o options, acts []*act, t *table) report {
	r := report{
		OK:   t.right(),
		Etcd: reportEtcd{Version: g.version, Endpoints: g.target.Endpoints, Own: g.own != nil, Prefix: g.prefix, Kept: o.keep, DataDirectory: g.data()},
		Lock: lockName, TTL: int64(o.ttl.Seconds()),
	}
	for _, a := range acts {
		r.Acts = append(r.Acts, told{
			Fenced: a.fenced, Key: a.key, TokenA: a.grantA.token, TokenB: a.grantB.token,
			LateWrite: a.late.Got, LateRelease: a.lateRelease.Got, Error: a.late.Error,
			AfterSeed: a.afterSeed, AfterB: a.afterB, AfterLate: a.afterLate, AfterAgain: a.afterAgain,
		})
	}
	for _, p := range t.parts {
		for _, row := range p.rows {
			r.Rows = append(r.Rows, judged{p.title, row.what, row.want, row.got, row.right})
		}
	}
	return r
}

func (r report) print(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
