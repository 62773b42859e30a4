package job

import (
	"context"
	"strings"
	"testing"

	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/internal/setup"
	"zeroth/job/jobtest"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
)

// stating keeps what its process states.
type stating struct {
	setup.Alone
	facts *[]rendezvous.Fact
}

func (s stating) Agree(_ context.Context, facts []rendezvous.Fact) error {
	*s.facts = facts
	return nil
}

// onHosts is a world whose ranks have a host each, though all are of this process.
type onHosts struct{ setup.Alone }

func (onHosts) Self() setup.Self {
	return setup.Self{At: collective.Placement{Local: []int{0, 1, 2}, HostRanks: 1}}
}

// TestAccountIsOfThisLaunch checks that the final account compares with the plan of this launch:
// ranks on separate hosts have more processors than ranks that share one, and so more work space.
func TestAccountIsOfThisLaunch(t *testing.T) {
	jobtest.InTinyFolder(t)
	h := &heard{}
	if err := Run(t.Context(), spectest.MustLoad(t, "parallel.ranks=3"), Options{Out: "run", Observer: quiet{h}, World: onHosts{}}); err != nil {
		t.Fatal(err)
	}
	if s := h.sums[0].Memory.String(); !strings.Contains(s, "exactly as planned") {
		t.Error(s)
	}
}

// TestAddressesPerHost checks that hosts may have their own addresses and token files, but must
// agree on all other keys of the job.
func TestAddressesPerHost(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	state := func(set string) map[string]string {
		c, err := spec.Load("job.yaml", []string{set})
		if err != nil {
			t.Fatal(err)
		}
		var facts []rendezvous.Fact
		r := newRun(c, Options{World: stating{facts: &facts}})
		if err := r.agreeOnJob(t.Context()); err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, f := range facts {
			all[f.Name] = f.Value
		}
		return all
	}
	was := state("train.seed=1")
	for set, differs := range map[string]bool{"parallel.bind=10.0.0.7": false, "parallel.token_file=/run/token": false, "parallel.tls={cert: a, key: b, ca: c}": false, "train.seed=2": true, "parallel.join=2m": true} {
		now := state(set)
		different := len(now) != len(was)
		for name, value := range now {
			different = different || was[name] != value
		}
		if different != differs {
			t.Errorf("%s: other facts: %v, want %v", set, different, differs)
		}
	}
}

// dated is a world in which process 0 began on another day.
type dated struct{ setup.Alone }

func (dated) Share(context.Context, string) (string, error) { return "2020-02-03", nil }

// TestDateOfProcess0 checks that the default of data.date is that of process 0, and that a given date stays.
func TestDateOfProcess0(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	jobtest.Write(t, "a.jsonl", `{"messages": []}`)
	for set, want := range map[string]string{"": "2020-02-03", ", date: 2021-05-06": "2021-05-06"} {
		c := spectest.MustLoad(t, "data={documents: [a.jsonl], format: chat, tokenizer: bytes"+set+"}")
		r := newRun(c, Options{World: dated{}})
		if err := r.shareDate(t.Context()); err != nil || r.given.Data.Date != want {
			t.Errorf("%s: %s, %v; want %s", set, r.given.Data.Date, err, want)
		}
		if next, err := r.given.WithContext(7); err != nil || next.Data.Date != want {
			t.Errorf("%s: with a context it is %v, %v", set, next, err)
		}
	}
	c := spectest.MustLoad(t)
	if r := newRun(c, Options{World: dated{}}); r.shareDate(t.Context()) != nil || r.given.Data.Date != "" {
		t.Errorf("without chats: %q", r.given.Data.Date)
	}
}
