package job

import (
	"context"
	"testing"

	"zeroth/collective/rendezvous"
	"zeroth/job/config"
	"zeroth/job/testjob"
)

// stating keeps what its process states.
type stating struct {
	alone
	facts *[]rendezvous.Fact
}

func (s stating) Agree(_ context.Context, facts []rendezvous.Fact) error {
	*s.facts = facts
	return nil
}

// Hosts may be reached at addresses of their own and have the token in files of their
// own; in all else they have one job.
func TestHostsHaveTheirOwnAddresses(t *testing.T) {
	testjob.InFolder(t, testjob.Least)
	state := func(set string) map[string]string {
		c, err := config.Load("job.yaml", []string{set})
		if err != nil {
			t.Fatal(err)
		}
		var facts []rendezvous.Fact
		r := &run{Options: Options{World: stating{facts: &facts}}, start: &beginning{}}
		if err := r.oneJob(t.Context(), c); err != nil {
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
