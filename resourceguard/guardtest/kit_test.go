package guardtest_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
)

// broken is every defect that the kit must find, and the property that must name
// it. No other property finds those that are marked alone, which is why the
// property is there.
var broken = []defect{
	{fault: "tokens are compared for equality", property: "AcceptsNewerAfterGap"},
	{fault: "equal is refused", property: "AcceptsEqualToken"},
	{fault: "stale is swallowed", property: "RejectsStaleToken"},
	{fault: "stale is a time-out", property: "RejectsStaleToken"},
	{fault: "stale does not say who won", property: "RejectsStaleToken"},
	{fault: "tokens are compared as text", property: "RejectsStaleToken"},
	{fault: "the epoch is ignored", property: "RejectsStaleToken"},
	{fault: "marks are rounded to doubles", property: "RejectsStaleToken"},
	{fault: "stale is applied", property: "StaleLeavesResourceUnchanged"},
	{fault: "no token is accepted", property: "RejectsZeroToken"},
	{fault: "another lock is accepted", property: "RejectsOtherLockEvenIfLarger"},
	{fault: "the first token binds the resource", property: "RejectsOtherLockEvenIfLarger"},
	{fault: "the ceiling is ignored", property: "RejectsImplausible"},
	{fault: "the ceiling is looked at too late", property: "RejectsImplausible"},
	{fault: "an ended grant is refused now and then", property: "EndedGrantAsDeclared"},
	{fault: "the authority is asked for newer owners only", property: "EndedGrantAsDeclared", form: modelHarness{authority: true}},
	{fault: "reads are not checked", property: "StaleReadRefused"},
	{fault: "the mark is deleted with the value", property: "MarkSurvivesDelete"},
	{fault: "a refused token becomes the mark", property: "MarkNeverLowered"},
	{fault: "a barrier lowers the mark", property: "MarkNeverLowered"},
	{fault: "a barrier does nothing", property: "AdvanceFencesBeforeFirstWrite"},
	{fault: "an unreadable mark counts as none", property: "UnreadableMarkRefusesWrites"},
	{fault: "an unreadable mark is not listed", property: "MarksListsAll"},
	{fault: "a list that was cut off looks complete", property: "MarksListsAll"},
	{fault: "marks are kept in the process", property: "ReopenKeepsMarks"},
	{fault: "names are folded", property: "ResourcesAreIndependent"},
	{fault: "equal is accepted against the policy", property: "RejectsEqualTokenByPolicy"},
	{fault: "a barrier spends the write", property: "AdvanceLeavesTheOneWrite"},
	{fault: "the owner is ignored", property: "OwnerMismatch"},
	{fault: "operations are not looked up", property: "RepeatedOperationAppliesOnce"},
	{fault: "operations share one name space", property: "RepeatedOperationAppliesOnce"},
	{fault: "digests are ignored", property: "OperationWithOtherDigestRefused"},
	{fault: "a known operation opens the door", property: "OperationNeverAdmitsOldToken"},
	{fault: "a stale repetition says nothing", property: "StaleRepeatSaysApplied"},
	{fault: "a replay holds nobody off", property: "RepeatByNewerOwnerFencesOlder"},
	{fault: "a floor lowers the mark", property: "FloorRaisesAndIsAudited"},
	{fault: "a floor does nothing", property: "FloorRaisesAndIsAudited"},
	{fault: "a floor leaves no trace", property: "FloorRaisesAndIsAudited"},
	{fault: "a floor needs no reason", property: "FloorRaisesAndIsAudited"},
	{fault: "a poisoned mark stays", property: "FloorRepairsPoisonedMark"},
	{fault: "the check is outside of the write", property: "CheckAndEffectAreOneStep"},
	{fault: "the check is outside of the write", property: "CheckAndEffectAreOneStep", form: modelHarness{fast: true}},
	{fault: "the check is outside of the write", property: "CheckAndEffectAreOneStep", form: modelHarness{authority: true}},
	{fault: "deleting is not the one write", property: "RejectsEqualTokenByPolicy", alone: true},
	{fault: "the one write is counted afterwards", property: "OneWriteAmongCompetitors", alone: true},
	{fault: "operation IDs are folded", property: "OperationIDsAreDistinct", alone: true},
	{fault: "operation IDs are cut", property: "OperationIDsAreDistinct", alone: true},
	{fault: "operations are filed under resource/ID", property: "OperationIDsAreDistinct", alone: true},
	{fault: "deletions have no operations", property: "RepeatedDeleteAppliesOnce", alone: true},
	{fault: "a known operation asks for the age only", property: "OperationAdmitsNoOtherToken", alone: true},
	{fault: "a replay does not look at the owner", property: "OperationAdmitsNoOtherOwner", alone: true},
	{fault: "a barrier holds in its own process only", property: "AdvanceHoldsOtherProcessesOff", alone: true},
	{fault: "a barrier overtakes a write", property: "AdvanceSettlesWhatIsRead", alone: true},
	{fault: "a barrier overtakes a write", property: "AdvanceSettlesWhatIsRead", form: modelHarness{fast: true}},
	{fault: "a read overtakes a write", property: "FencedReadSettlesWhatIsRead", alone: true},
	{fault: "a read overtakes a write", property: "FencedReadSettlesWhatIsRead", form: modelHarness{fast: true}},
	{fault: "a barrier is two steps", property: "AdvanceIsOneStep", alone: true},
	{fault: "floors are kept in the process", property: "FloorRaisesAndIsAudited", alone: true},
	{fault: "a read needs no token", property: "RejectsZeroToken", alone: true},
	{fault: "a read takes a token of any lock", property: "RejectsOtherLockEvenIfLarger", alone: true},
	{fault: "a read has no ceiling", property: "RejectsImplausible", alone: true},
	{fault: "a read does without a mark", property: "UnreadableMarkRefusesWrites", alone: true},
	{fault: "the check of a deletion is outside of it", property: "CheckAndDeletionAreOneStep", alone: true},
	{fault: "the check of a deletion is outside of it", property: "CheckAndDeletionAreOneStep", form: modelHarness{fast: true}},
	{fault: "the context is not looked at", property: "CancelledContext"},
	{fault: "the outcome is not said", property: "OutcomeClassified"},
	{fault: "a lost answer counts as not applied", property: "OutcomeClassified"},
}

type defect struct {
	fault    fault
	property string
	form     modelHarness
	alone    bool
}

func (f modelHarness) String() string {
	name := strings.ReplaceAll(string(f.fault), " ", "_")
	if f.fast {
		name += ",races_only"
	}
	if f.authority {
		name += ",authority_checked"
	}
	return name
}

func TestEachDefectFailsItsProperty(t *testing.T) {
	for _, tt := range broken {
		form := tt.form
		form.fault = tt.fault
		t.Run(form.String(), func(t *testing.T) {
			findings := guardtest.Examine(t, func(*testing.T) guardtest.Harness { return form.new() }, tt.property)
			if len(findings) != 1 {
				t.Fatalf("there are %d properties called %s", len(findings), tt.property)
			}
			if len(findings[0].Failures) == 0 {
				t.Errorf("%s holds", tt.property)
			}
			for _, failure := range findings[0].Failures {
				t.Log(failure)
			}
		})
	}
}

// TestOnePropertyAloneFinds shows of the defects marked so that they would pass if
// their property were not there.
func TestOnePropertyAloneFinds(t *testing.T) {
	defer guardtest.Hurry()() // those that race are tried at length above
	for _, tt := range broken {
		if !tt.alone {
			continue
		}
		form := tt.form
		form.fault = tt.fault
		for _, f := range guardtest.Examine(t, func(*testing.T) guardtest.Harness { return form.new() }) {
			if f.Property != tt.property && len(f.Failures) > 0 {
				t.Errorf("%s is found by %s too: %q", tt.fault, f.Property, f.Failures)
			}
		}
	}
}

// TestSoundModelPasses shows that the defects above fail for what is broken and
// not for what the model is.
func TestSoundModelPasses(t *testing.T) {
	for _, form := range []modelHarness{{}, {fast: true}, {authority: true}} {
		t.Run("model"+form.String(), func(t *testing.T) {
			guardtest.Run(t, func(*testing.T) guardtest.Harness { return form.new() })
		})
	}
}

func TestEachPropertyHasADefect(t *testing.T) {
	for _, p := range guardtest.Properties() {
		if !slices.ContainsFunc(broken, func(b defect) bool { return b.property == p.Name }) {
			t.Errorf("no broken guard shows that %s can fail", p.Name)
		}
	}
}

func TestOnlyDeclaredLacksAreSkipped(t *testing.T) {
	const why = "there is nowhere to keep results"
	newHarness := func(*testing.T) guardtest.Harness {
		h := modelHarness{}.new()
		h.Lacks = map[guardtest.Capability]string{guardtest.Operations: why}
		return h
	}
	for _, f := range guardtest.Examine(t, newHarness) {
		about := strings.Contains(f.Property, "Operation") || strings.Contains(f.Property, "Repeat")
		switch {
		case about && !strings.Contains(f.Skipped, why):
			t.Errorf("%s is about operations and was not skipped for the declared reason: %q", f.Property, f.Skipped)
		case !about && f.Skipped != "":
			t.Errorf("%s was skipped: %s", f.Property, f.Skipped)
		}
		if len(f.Failures) > 0 {
			t.Errorf("%s: %q", f.Property, f.Failures)
		}
	}
}

func TestSkippedNamesEachReasonOnce(t *testing.T) {
	findings := []guardtest.Finding{
		{Property: "A"},
		{Property: "B", Skipped: "no marks: it keeps none"},
		{Property: "C", Skipped: "no deletes: append only"},
		{Property: "D", Skipped: "no marks: it keeps none"},
		{Property: "E", Failures: []string{"broken"}},
	}
	want := "skipped as declared, 3 of 5:\n\tno marks: it keeps none\n\t\tB, D\n\tno deletes: append only\n\t\tC"
	if got := guardtest.Skipped(findings); got != want {
		t.Errorf("Skipped:\n%s\nwant:\n%s", got, want)
	}
	if got := guardtest.Skipped(findings[:1]); got != "" {
		t.Errorf("Skipped, of nothing: %q", got)
	}
}

// misuse are uses of the kit that fail the test, and what it then says, once.
var misuse = map[string]struct {
	spoil func(*guardtest.Harness)
	names []string
	want  string
}{
	"no way to corrupt a mark":       {spoil: func(h *guardtest.Harness) { h.CorruptMark = nil }, want: "Harness.CorruptMark is required"},
	"no way to read the audit trail": {spoil: func(h *guardtest.Harness) { h.Reasons = nil }, want: "Harness.Reasons is required"},
	"no grants":                      {spoil: func(h *guardtest.Harness) { h.Grant = nil }, want: "Harness.Grant is required"},
	"authority without an end": {
		spoil: func(h *guardtest.Harness) { h.AuthorityChecked, h.EndGrant = true, nil }, want: "Harness.EndGrant is required",
	},
	"no reason given": {
		spoil: func(h *guardtest.Harness) { h.Lacks = map[guardtest.Capability]string{guardtest.Owners: ""} }, want: "has no reason",
	},
	"no such capability": {
		spoil: func(h *guardtest.Harness) { h.Lacks = map[guardtest.Capability]string{"onwers": "a typing error"} }, want: "is no capability",
	},
	"no such property": {names: []string{"AcceptsEqualToken", "AcceptsEqualTokne"}, want: `no property "AcceptsEqualTokne"; there are `},
}

const misuseEnv = "GUARDTEST_MISUSE"

// TestMisuseFailsOnce runs itself: a test that fails is what it is about.
func TestMisuseFailsOnce(t *testing.T) {
	if how := os.Getenv(misuseEnv); how != "" {
		use, name, _ := strings.Cut(how, ":")
		newHarness := func(*testing.T) guardtest.Harness {
			h := modelHarness{}.new()
			if spoil := misuse[name].spoil; spoil != nil {
				spoil(&h)
			}
			return h
		}
		if use == "Run" {
			guardtest.Run(t, newHarness)
		} else {
			guardtest.Examine(t, newHarness, misuse[name].names...)
		}
		return
	}
	for name, m := range misuse {
		for _, use := range []string{"Run", "Examine"} {
			if use == "Run" && m.names != nil {
				continue // it takes none
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMisuseFailsOnce$")
			cmd.Env = append(os.Environ(), misuseEnv+"="+use+":"+name)
			out, err := cmd.CombinedOutput()
			if err == nil || strings.Count(string(out), m.want) != 1 {
				t.Errorf("%s, %s: %v, want %q once in\n%s", use, name, err, m.want, out)
			}
			if m.names != nil && !strings.Contains(string(out), "RejectsStaleToken") {
				t.Errorf("%s, %s: the known ones are not named in\n%s", use, name, out)
			}
		}
	}
}

func TestExamineReportsAPanicAsAFailure(t *testing.T) {
	findings := guardtest.Examine(t, func(*testing.T) guardtest.Harness {
		h := modelHarness{}.new()
		h.Open = func(guardtest.TB, guardtest.Config) guardtest.Subject { panic("out of order") }
		return h
	}, "AcceptsEqualToken")
	if len(findings[0].Failures) != 1 || !strings.Contains(findings[0].Failures[0], "out of order") {
		t.Errorf("findings are %+v", findings)
	}
}
