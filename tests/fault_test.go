package tests

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/data"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/shard"
	"zeroth/tests/nightly"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// These tests use a fake clock, which advances when every goroutine of a run waits. So deadlines
// are exact to the nanosecond, and a run that leaks a goroutine or hangs fails its test.

// limit is the jobs' parallel.timeout.
const limit = 2 * time.Second

var errLink = errors.New("link down")

// rep records how and when a rank ended.
type rep struct {
	err   error
	after time.Duration
}

// trained trains for some steps, with parameters that are zero, and returns how every rank ended
// and the error that Together derives from that.
func trained(t *testing.T, c *spec.Job, steps int, wrap func(int, collective.Ranks) collective.Ranks) ([]rep, error) {
	t.Helper()
	return running(t, c, wrap, func(r *setup.Rank) error {
		for step := range steps {
			if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: c.Optimizer.LR}); err != nil {
				return err
			}
		}
		return nil
	})
}

// running is like trained for ranks that run f.
func running(t *testing.T, c *spec.Job, wrap func(int, collective.Ranks) collective.Ranks, f func(*setup.Rank) error) (reports []rep, cause error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{WrapGroups: wrap}))
		if err != nil {
			t.Fatal(err)
		}
		defer zerotest.CloseAll(ranks)
		start := time.Now()
		reports = make([]rep, len(ranks))
		cause = setup.Together(ranks, func(r *setup.Rank) error {
			err := f(r)
			reports[r.Rank] = rep{err, time.Since(start)}
			return err
		})
	})
	return reports, cause
}

var groupNames = []string{"world", "shard", "replica", "tensor", "joint", "context", "experts", "expert shard", "expert replica", "expert joint", "to next", "from next"}

// peersNames maps the name of a link in the first stage to its name in the second.
var peersNames = map[string]string{"to next": "from previous", "from next": "to previous"}

func groupOf(g *collective.Ranks, name string) *collective.Group {
	return map[string]*collective.Group{"world": &g.World, "shard": &g.Shard, "replica": &g.Replica, "tensor": &g.Tensor, "joint": &g.Joint, "context": &g.Context,
		"experts": &g.Experts, "expert shard": &g.ExpertShard, "expert replica": &g.ExpertReplica, "expert joint": &g.ExpertJoint, "to next": &g.Links[collective.ToNext],
		"from next": &g.Links[collective.FromNext], "from previous": &g.Links[collective.FromPrevious], "to previous": &g.Links[collective.ToPrevious]}[name]
}

// site identifies an operation: number n of one of a rank's groups.
type site struct {
	rank  int
	group string
	n     int
	step  int // in which it occurs, counted from 1
}

// befalls returns a wrapper that injects a fault at the site.
func (s site) befalls(f collectivetest.Fault) func(int, collective.Ranks) collective.Ranks {
	return func(rank int, g collective.Ranks) collective.Ranks {
		if rank == s.rank {
			at := groupOf(&g, s.group)
			*at = collectivetest.Faulty(*at, collectivetest.At(s.n, f))
		}
		return g
	}
}

// sites returns all operations of the first two steps, cycling through the ranks.
func sites(t *testing.T, c *spec.Job) (out []site) {
	t.Helper()
	issued := map[string]int{} // operations issued so far by rank 0
	done := map[string][]int{} // the same before each step
	count := func(rank int, g collective.Ranks) collective.Ranks {
		for _, name := range groupNames {
			if at := groupOf(&g, name); rank == 0 && *at != nil {
				*at = collectivetest.Faulty(*at, func(int) collectivetest.Fault { issued[name]++; return collectivetest.Fault{} })
			}
		}
		return g
	}
	_, err := running(t, c, count, func(r *setup.Rank) error {
		for step := range 3 {
			for _, name := range groupNames {
				if r.Rank == 0 {
					done[name] = append(done[name], issued[name])
				}
			}
			if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: c.Optimizer.LR}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range groupNames {
		for n := done[name][0]; n < done[name][2]; n++ {
			s := site{rank: n % c.Parallel.Ranks, group: name, n: n, step: 1}
			if name != "world" {
				s.rank = n % (c.Parallel.Ranks / c.Parallel.Pipeline) // other stages have other operations
			}
			if there := peersNames[name]; there != "" { // the group of the first rank, or of its peer
				if s.rank = n % 2 * c.Parallel.Ranks / c.Parallel.Pipeline; s.rank > 0 {
					s.group = there
				}
			}
			if n >= done[name][1] {
				s.step = 2
			}
			out = append(out, s)
		}
	}
	return out
}

var faultJobs = [][]string{
	{"zero.stage=0", "parallel.ranks=3"},
	{"zero.stage=1", "parallel.ranks=3", "train.accumulate=2"},
	{"zero.stage=2", "parallel.ranks=2", "zero.prefetch=0"},
	{"zero.stage=3", "parallel.ranks=4"},
	{"zero.stage=3", "parallel.ranks=2", "train.accumulate=2", "zero.recompute=block"},
	{"zero.stage=2", "parallel.ranks=6", "parallel.shard=2", "parallel.replicate=3"},
	{"zero.stage=3", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "zero.prefetch=2"},
	{"zero.stage=1", "parallel.ranks=4", "parallel.pipeline=2", "train.accumulate=3"},
	{"zero.stage=3", "parallel.ranks=4", "parallel.pipeline=2", "train.accumulate=3", "model.family=llama", "pipeline.schedule=ZBH1"},
	{"zero.stage=3", "parallel.ranks=4", "parallel.tensor=2"},
	{"parallel.master=true", "parallel.ranks=3", "train.accumulate=2"},
	{"zero.stage=0", "parallel.ranks=4", "parallel.tensor=2", "model.family=llama", "train.accumulate=2"},
	{"zero.stage=3", "parallel.ranks=4", "parallel.context=2", "model.family=llama"},
	{"zero.stage=0", "parallel.ranks=4", "parallel.context=4", "model.context=8"},
	{"zero.stage=3", "parallel.ranks=4", "parallel.expert=2", "model.family=llama", "model.experts={count: 4, width: 4}"},
	{"zero.stage=2", "parallel.ranks=8", "parallel.expert=2", "parallel.replicate=2", "parallel.tensor=2", "train.accumulate=2", "model.family=llama", "model.experts={count: 2, width: 4}", "train.router_aux=0.1"},
	{"zero.stage=0", "parallel.ranks=4", "parallel.expert=2", "parallel.pipeline=2", "train.accumulate=3", "model.family=llama", "model.experts={count: 2, width: 4}", "train.router_aux=0.1"},
}

// everywhere runs f for every site of every job.
func everywhere(t *testing.T, f func(t *testing.T, c *spec.Job, s site)) {
	for _, sets := range faultJobs {
		t.Run(strings.Join(sets, " "), func(t *testing.T) {
			t.Parallel()
			c := cfg(t, append([]string{"model.layers=2", "model.width=4", "model.context=4", "parallel.timeout=" + limit.String()}, sets...)...)
			for i, s := range sites(t, c) {
				if !nightly.Every(24, i) {
					continue
				}
				f(t, c, s)
				if t.Failed() {
					t.Fatalf("at operation %d of group %s on rank %d, in step %d", s.n, s.group, s.rank, s.step)
				}
			}
		})
	}
}

// TestRankDiesAtAnyOperation checks that an operation that fails on one rank ends all ranks at
// once, in the same step, and that every rank's error names the failed rank and the operation.
func TestRankDiesAtAnyOperation(t *testing.T) {
	nightly.Parallel(t)
	everywhere(t, func(t *testing.T, c *spec.Job, s site) {
		reports, cause := trained(t, c, 3, s.befalls(collectivetest.Fault{Err: errLink}))
		for r, got := range reports {
			var lost collective.ErrPeerLost
			if r == s.rank && !errors.Is(got.err, errLink) || r != s.rank && (!errors.As(got.err, &lost) || lost.Rank != s.rank) {
				t.Errorf("rank %d: error %v", r, got.err)
			}
			if got.after != 0 {
				t.Errorf("rank %d hears of it after %v", r, got.after)
			}
			located(t, got.err, r, s.step)
		}
		if cause != reports[s.rank].err {
			t.Errorf("cause %v, want %v", cause, reports[s.rank].err)
		}
	})
}

// TestRankStallsAtAnyOperation checks that an operation that a rank never reaches ends all ranks
// when the deadline passes. Every error names the rank, including those of ranks that share no
// group with it and wait for a rank that waits for it.
func TestRankStallsAtAnyOperation(t *testing.T) {
	nightly.Parallel(t)
	everywhere(t, func(t *testing.T, c *spec.Job, s site) {
		const stall = 3 * limit / 2 // shorter than the time after which a rank is abandoned
		reports, cause := trained(t, c, 3, s.befalls(collectivetest.Fault{Delay: stall}))
		for r, got := range reports {
			late(t, r, got.err, s.rank)
			if link := s.group == "from previous" || s.group == "to previous" || peersNames[s.group] != ""; link && r == s.rank && got.after == limit {
				continue // nothing waits for the queue of a sending link
			}
			if want := map[bool]time.Duration{true: stall, false: limit}[r == s.rank]; got.after != want {
				t.Errorf("rank %d returns after %v, want %v", r, got.after, want)
			}
			located(t, got.err, r, s.step)
		}
		late(t, 0, cause, s.rank)
	})
}

// TestRankDivergesAtAnyOperation checks that all ranks that communicate with a rank detect,
// within the deadline, that it skipped an operation, and that the errors name the rank.
func TestRankDivergesAtAnyOperation(t *testing.T) {
	nightly.Parallel(t)
	everywhere(t, func(t *testing.T, c *spec.Job, s site) {
		m := spec.Mesh(c)
		share, same := m.Holders()
		experts, equals := m.ExpertHolders()
		size := map[string]int{"world": c.Parallel.Ranks, "shard": m.Size(share...), "replica": m.Size(same...), "tensor": m.Tensor, "expert shard": m.Size(experts...), "expert replica": m.Size(equals...)}
		if size[s.group] == 1 {
			return // the rank is alone in the group
		}
		reports, cause := trained(t, c, 4, s.befalls(collectivetest.Fault{Drop: true}))
		for r, got := range reports {
			if got.err == nil || !slices.Contains(named(got.err), s.rank) {
				t.Errorf("rank %d: error %v", r, got.err)
			}
			if got.after > limit {
				t.Errorf("rank %d returns after %v", r, got.after)
			}
		}
		if !slices.ContainsFunc(reports, func(r rep) bool { return r.err == cause }) {
			t.Errorf("cause %v is no rank's error", cause)
		}
	})
}

// late fails unless err comes from a rank that ultimately waited only for the victim.
func late(t *testing.T, rank int, err error, victim int) {
	t.Helper()
	var e collective.ErrLate
	ends := fmt.Sprintf("root cause: rank %d has not reached ", victim)
	if !errors.As(err, &e) || !strings.HasPrefix(e.Stuck, ends) || strings.Contains(e.Stuck, "; ") || e.Limit != limit {
		t.Errorf("rank %d: error %v", rank, err)
	}
}

// located fails unless the error begins with its coordinates.
func located(t *testing.T, err error, rank, step int) {
	t.Helper()
	where := regexp.MustCompile(fmt.Sprintf(`^step %d: rank %d: (unit (root|embed|head|h\.\d|layers\.\d)( \((whole|experts)\))?: (all-gather|reduce-scatter|all-reduce|forward|recompute|backward)|statistics: all-gather|routers: all-reduce|micro-batch \d: (activations|gradients) for stage \d): `, step, rank))
	if err == nil || !where.MatchString(err.Error()) {
		t.Errorf("error %v, want %v", err, where)
	}
}

var ranksIn = regexp.MustCompile(`(?:ranks?|peer) (\d+(?:,\d+)*)`)

// named returns the ranks mentioned in an error, except the one that returned it.
func named(err error) (ranks []int) {
	text := err.Error()
	text = text[strings.Index(text, "rank")+len("rank"):]
	for _, m := range ranksIn.FindAllStringSubmatch(text, -1) {
		for n := range strings.SplitSeq(m[1], ",") {
			r, err := strconv.Atoi(n)
			if err != nil {
				panic(err)
			}
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// TestFaultMessages checks the messages when rank 2 never reaches the gather of h.1 in step 2.
func TestFaultMessages(t *testing.T) {
	c := cfg(t, "zero.stage=3", "parallel.ranks=3", "parallel.timeout="+limit.String())
	at := site{rank: 2, group: "shard", n: 11}
	const inTheEnd = "; root cause: rank 2 has not reached operation 11 of shard (all-gather of 1920 bf16, unit h.1: all-gather, step 0), in which ranks 0,1 wait: its last was operation 1 of world (all-gather of 135 int64, statistics: all-gather, step 0), issued 2s ago"
	for fault, want := range map[collectivetest.Fault][]string{
		{Err: errLink}: {
			"step 2: rank 0: unit h.1: all-gather: peer 2 lost",
			"step 2: rank 2: unit h.1: all-gather: link down",
		},
		{Delay: 3 * limit / 2}: {
			"step 2: rank 0: unit h.1: all-gather: operation 11 (all-gather of 1920 bf16): rank 0 waited 2s for rank 2" + inTheEnd,
			"step 2: rank 2: unit h.1: all-gather: operation 11 (all-gather of 1920 bf16): rank 0 waited 2s for rank 2" + inTheEnd,
		},
		{Drop: true}: {
			"step 2: rank 0: unit h.1: all-gather: operation 11: rank 2 calls all-gather of 1920 bf16 (unit h.2: all-gather), ranks 0,1 all-gather of 1920 bf16 (unit h.1: all-gather)",
			"step 2: rank 2: unit h.2: all-gather: operation 11: rank 2 calls all-gather of 1920 bf16 (unit h.2: all-gather), ranks 0,1 all-gather of 1920 bf16 (unit h.1: all-gather)",
		},
	} {
		reports, _ := trained(t, c, 2, at.befalls(fault))
		for i, rank := range []int{0, 2} {
			got := strings.ReplaceAll(fmt.Sprint(reports[rank].err), "rank 1 waited", "rank 0 waited") // which timer fires first is random
			if got != want[i] {
				t.Errorf("%+v: error %s\nwant %s", fault, got, want[i])
			}
		}
	}
}

// TestRankQuits checks that the others detect a rank that silently stops training.
func TestRankQuits(t *testing.T) {
	c := cfg(t, "zero.stage=3", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "parallel.timeout="+limit.String())
	for quitter := range c.Parallel.Ranks {
		reports, cause := running(t, c, nil, func(r *setup.Rank) error {
			for step := range 3 {
				if r.Rank == quitter && step == 2 {
					return nil
				}
				if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: c.Optimizer.LR}); err != nil {
					return err
				}
			}
			return nil
		})
		for r, got := range reports {
			if r == quitter {
				continue
			}
			late(t, r, got.err, quitter)
			located(t, got.err, r, 3)
		}
		late(t, 0, cause, quitter)
	}
}

// TestDataFailsOnOneRank checks that data that one rank cannot read ends all ranks.
func TestDataFailsOnOneRank(t *testing.T) {
	errDisk := errors.New("samples 48 to 50: input/output error")
	for _, stage := range []string{"zero.stage=0", "zero.stage=3"} {
		c := cfg(t, stage, "parallel.ranks=3", "train.accumulate=2", "parallel.timeout="+limit.String())
		for _, eval := range []bool{false, true} {
			reports, cause := running(t, c, nil, func(r *setup.Rank) error {
				fill := zerotest.Tokens(c, r.Rank, 0)
				broken := func(micro int, into []data.Values) error {
					if r.Rank == 1 && micro == 1 {
						return errDisk
					}
					return fill(micro, into)
				}
				if _, err := r.Trainer.Step(zero.Work{Fill: fill, LR: c.Optimizer.LR}); err != nil {
					return err
				}
				var err error
				if eval {
					_, err = r.Trainer.Eval(2, zero.Work{Fill: broken})
				} else {
					_, err = r.Trainer.Step(zero.Work{Fill: broken, LR: c.Optimizer.LR})
				}
				if r.Rank == 1 {
					time.Sleep(limit / 2) // the others do not wait for the rank's error handling
				}
				return err
			})
			where := map[bool]string{false: "step 2: ", true: "evaluation after step 1: "}[eval]
			for r, got := range reports {
				want := collective.ErrPeerLost{Rank: 1}.Error()
				if r == 1 {
					want = where + "rank 1: " + errDisk.Error()
				}
				if got.err == nil || !strings.HasPrefix(got.err.Error(), fmt.Sprintf("%srank %d: ", where, r)) || !strings.HasSuffix(got.err.Error(), want) || r != 1 && got.after != 0 {
					t.Errorf("%s: rank %d: error %v after %v, want …%s", stage, r, got.err, got.after, want)
				}
			}
			if cause != reports[1].err {
				t.Errorf("%s: cause %v", stage, cause)
			}
		}
	}
}

// TestQueueFailsOnOneRank checks that work that fails on one of a rank's queues ends all ranks,
// whether it is issued during a step, after it, or between a step and an evaluation.
func TestQueueFailsOnOneRank(t *testing.T) {
	nightly.Parallel(t)
	errWork := errors.New("no space left on device")
	fail := func(q setup.Queue) {
		q.Label("unit h.1: write")
		q.Do(func() error { return errWork })
	}
	type trouble struct {
		stage int
		queue setup.QueueRole
		when  string
	}
	for stage := range zero.Stages {
		for _, queue := range []setup.QueueRole{setup.Compute, setup.Comm, setup.Update} {
			for _, when := range []string{"step", "after", "evaluation"} {
				c := cfg(t, fmt.Sprintf("zero.stage=%d", stage), "parallel.ranks=2", "parallel.timeout="+limit.String())
				reports, cause := running(t, c, nil, func(r *setup.Rank) error {
					fill := zerotest.Tokens(c, r.Rank, 0)
					second := func(micro int, into []data.Values) error {
						if r.Rank == 1 && when == "step" {
							fail(r.Queues[queue])
						}
						return fill(micro, into)
					}
					if _, err := r.Trainer.Step(zero.Work{Fill: fill, LR: c.Optimizer.LR}); err != nil {
						return err
					}
					if r.Rank == 1 && when != "step" {
						fail(r.Queues[queue])
					}
					if when == "evaluation" {
						_, err := r.Trainer.Eval(1, zero.Work{Fill: fill})
						return err
					}
					_, err := r.Trainer.Step(zero.Work{Fill: second, LR: c.Optimizer.LR})
					return err
				})
				what, where := trouble{stage, queue, when}, map[bool]string{false: "step 2", true: "evaluation after step 1"}[when == "evaluation"]
				if err := reports[1].err; !errors.Is(err, errWork) || err.Error() != where+": rank 1: unit h.1: write: "+errWork.Error() || cause != err {
					t.Errorf("%+v: error %v, cause %v", what, err, cause)
				}
				if err := reports[0].err; !errors.Is(err, collective.ErrPeerLost{Rank: 1}) || reports[0].after != 0 {
					t.Errorf("%+v: rank 0: error %v after %v", what, err, reports[0].after)
				}
			}
		}
	}
}

// TestLastUpdateFails checks that a failed update after the last step is reported and that the
// state is not returned.
func TestLastUpdateFails(t *testing.T) {
	errWork := errors.New("no space left on device")
	c := cfg(t, "parallel.ranks=2")
	_, cause := running(t, c, nil, func(r *setup.Rank) error {
		if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, 0), LR: c.Optimizer.LR}); err != nil {
			return err
		}
		if r.Rank == 1 {
			r.Queues[setup.Update].Do(func() error { return errWork })
		}
		return zerotest.Collect(r, map[string][]float32{})
	})
	if !errors.Is(cause, errWork) {
		t.Errorf("error %v", cause)
	}
}

// TestTogetherReportsCause checks that of several ranks' errors, the one that explains the
// others is returned.
func TestTogetherReportsCause(t *testing.T) {
	inOrder := []error{
		fmt.Errorf("step 1: rank 0: %w", errLink),
		fmt.Errorf("step 1: rank 1: %w", collective.ErrLate{Wait: collective.Wait{Rank: 1, For: []int{2}}, Limit: limit}),
		fmt.Errorf("step 1: rank 2: %w", collective.ErrPeerLost{Rank: 0}),
		fmt.Errorf("step 1: rank 3: %w", collective.ErrClosed),
		nil,
	}
	for first, want := range inOrder {
		have := inOrder[first:]
		for turn := range have {
			var ranks []*setup.Rank
			for r, g := range collective.LocalWorld(shard.Mesh{Shard: len(have), Replicate: 1}) {
				ranks = append(ranks, &setup.Rank{Rank: r, Groups: g})
			}
			if got := setup.Together(ranks, func(r *setup.Rank) error { return have[(r.Rank+turn)%len(have)] }); got != want {
				t.Errorf("%v of %v, want %v", got, have, want)
			}
		}
	}
}

// TestStuckRankIsAbandoned checks that a rank that closing its groups cannot interrupt, as in a
// system call, is abandoned and named after the timeout, counted from the first failure. Closing
// the ranks does not wait for it.
func TestStuckRankIsAbandoned(t *testing.T) {
	c := cfg(t, "zero.stage=3", "parallel.ranks=3", "parallel.timeout=7s")
	synctest.Test(t, func(t *testing.T) {
		ranks, err := setup.Open(setup.Local(c))
		if err != nil {
			t.Fatal(err)
		}
		answer, done := make(chan struct{}), make(chan struct{})
		start := time.Now()
		err = setup.Together(ranks, func(r *setup.Rank) error {
			switch r.Rank {
			case 0:
				time.Sleep(2 * time.Second)
				return errLink
			case 1:
				defer close(done)
				<-answer
			}
			_, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, 0), LR: 1e-3})
			return err
		})
		const want = "; rank 1 has still not ended after 7s: not waiting any longer"
		if took := time.Since(start); !errors.Is(err, errLink) || !strings.HasSuffix(err.Error(), want) || took != 9*time.Second {
			t.Errorf("after %v: %v\nwant %s", took, err, want)
		}
		zerotest.CloseAll(ranks)
		if ranks[1].Device.Usage().Live.Total() == 0 || ranks[2].Device.Usage().Live.Total() != 0 {
			t.Error("memory of the rank that is left behind is given back, or that of another is not")
		}
		close(answer) // from here on its memory can be returned
		<-done
		for _, q := range ranks[1].Queues.All() {
			q.Close()
		}
		ranks[1].Trainer.Free()
		ranks[1].Device.Close()
	})
}
