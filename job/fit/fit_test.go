package fit

import (
	"math"
	"slices"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/dry"
	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/config/configtest"
	"zeroth/job/machine"
	"zeroth/job/plan"
	"zeroth/job/setup"
	"zeroth/job/show"
	"zeroth/job/sim"
	"zeroth/zero"
)

// TestFitIsTheBestOfAll checks that Search returns the same as an exhaustive search over dry runs:
// no fitting choice is before the fastest, and every choice can be set with its sets and then has
// the stated needs.
func TestFitIsTheBestOfAll(t *testing.T) {
	for _, memory := range []int64{1 << 20, 2 << 20, 3 << 20, 5 << 20, 1 << 30} {
		for _, host := range []int64{0, 200 << 10, 16 << 20} {
			c := configtest.Fitted(t, "zero.stage=1")
			l := Limits{Ranks: 4, Memory: memory, Host: host, Disk: 100 * host, Rates: roughRates}
			f, err := Search(c, l)
			if err != nil {
				t.Fatal(err)
			}
			least := map[way]int64{}
			for _, x := range searched(t, c, l).all {
				n := x.Needs
				if fits := n.Device.Total() <= memory && n.Host.Total() <= host && n.Disk <= 100*host; fits != x.Fits() {
					t.Errorf("%v: fits %v", x.Sets, x.Fits())
				}
				lacks := max(n.Device.Total()-memory, n.Host.Total()-host, n.Disk-100*host)
				if was, ok := least[x.way()]; !ok || lacks < was {
					least[x.way()] = lacks
				}
				if x.Fits() && (len(f.Fits) == 0 || order(x, f.Fits[0]) < 0) {
					t.Errorf("%d bytes: %v is better than what fit found", memory, x.Sets)
				}
				if !x.Fits() && host == 0 && x.Config.Zero.Offload.Any() {
					t.Errorf("%v without host memory", x.Sets)
				}
			}
			for _, x := range f.Others {
				if lacks := x.over(); lacks != least[x.way()] {
					t.Errorf("%v lacks %d bytes, another of its way %d", x.Sets, lacks, least[x.way()])
				}
			}
			for _, x := range slices.Concat(f.Fits, f.Others) {
				needs, err := setup.DryRun(setup.Planned(configtest.Fitted(t, append([]string{"zero.stage=1"}, x.Sets...)...)))
				if needs != x.Needs || err != nil || !x.Exact {
					t.Errorf("%v: needs %+v (%v), fit says %+v", x.Sets, needs, err, x.Needs)
				}
				fits := needs.Device.Total() <= memory && needs.Host.Total() <= host && needs.Disk <= 100*host
				if fits != slices.Contains(f.Fits, x) {
					t.Errorf("%v of %d bytes in %d: fits %v", x.Sets, needs.Device.Total(), memory, !fits)
				}
			}
			if n := len(f.Fits) + len(f.Others); n < 8 || n > 2*listed {
				t.Errorf("%d answers", n)
			}
		}
	}
}

// TestFitOnOtherRanks checks a search on another number of ranks than the job's: the sequences per
// step stay the same if possible.
func TestFitOnOtherRanks(t *testing.T) {
	for _, test := range []struct{ ranks, batch, perRank int }{{8, 16, 2}, {2, 16, 8}, {3, 12, 4}, {16, 16, 1}, {32, 128, 4}} {
		f, err := Search(configtest.Fitted(t), Limits{Ranks: test.ranks, Memory: 1 << 30, GPU: true, Rates: roughRates})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range append(f.Fits, f.Job) {
			tr := x.Config.Train
			if tr.Batch != test.batch || tr.MicroBatch*tr.Accumulate != test.perRank || tr.MicroBatch*tr.Accumulate*x.Config.Parallel.Ranks != tr.Batch {
				t.Errorf("%d ranks: %+v", test.ranks, tr)
			}
		}
	}
}

// TestLargest checks that the largest value fits and the next one does not.
func TestLargest(t *testing.T) {
	if cpu.Separate {
		t.Skip("what crosses takes host memory of every job there, and these machines have none")
	}
	for _, family := range []string{"gpt2", "llama"} {
		for _, of := range Quantities {
			c := configtest.Fitted(t, "device=cpu", "model.family="+family)
			l := Limits{Ranks: 4, Memory: 8 << 20, Rates: roughRates}
			r, err := FindLargest(c, of, l)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range []*Answer{r.As, r.Any} {
				if a == nil || !a.Choice.Fits() || !a.Choice.Exact {
					t.Fatalf("%s: %+v", of, a)
				}
			}
			if r.Any.Value < r.As.Value {
				t.Errorf("%s: %d with any settings, %d with the job's", of, r.Any.Value, r.As.Value)
			}
			grown := map[string]func(*config.Config, int) (*config.Config, string){"model": grownModel, "seq": grownContext, "micro_batch": grownMicroBatch}[of]
			if more, _ := grown(c, r.As.Value+1); one(t, more, l).Fits() {
				t.Errorf("%s: %d fits too", of, r.As.Value+1)
			}
			if none, err := FindLargest(c, of, Limits{Ranks: 4, Memory: 1000, Rates: roughRates}); err != nil || none.As != nil || none.Any != nil {
				t.Errorf("%s in 1000 bytes: %+v, %v", of, none, err)
			}
		}
	}
	if _, err := FindLargest(configtest.Fitted(t), "head", Limits{Ranks: 4, Memory: 1, Rates: roughRates}); err == nil || !input.IsInput(err) {
		t.Errorf("the largest head: %v", err)
	}
}

// TestOverBudget checks that a job over its budget is rejected with its largest categories and
// with settings that really fit.
func TestOverBudget(t *testing.T) {
	c := configtest.Fitted(t, "device=cpu", "zero.stage=0", "parallel.memory=100GB")
	needs, err := setup.DryRun(setup.Planned(c))
	if err != nil {
		t.Fatal(err)
	}
	if err := budget(c, needs); err != nil {
		t.Errorf("a job within its budget: %v", err)
	}
	c.Parallel.Memory = needs.Device.Total() * 2 / 3
	err = budget(c, needs)
	if err == nil || !input.IsInput(err) {
		t.Fatalf("a job over its budget: %v", err)
	}
	for _, want := range []string{"--set parallel.memory=100GB: parallel.memory: ", show.ByteSize(needs.Device.Total()), show.ByteSize(c.Parallel.Memory), " activations", "what fits: --set "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	few := 100 // fewest sets of a fitting choice
	for _, x := range searched(t, c, Limits{Ranks: 4, Memory: c.Parallel.Memory, Host: 1 << 40, Rates: roughRates}).all {
		if x.Fits() {
			few = min(few, len(x.Sets))
		}
	}
	_, ways, _ := strings.Cut(err.Error(), "what fits: ")
	if first, _, _ := strings.Cut(ways, ", or "); strings.Count(first, "--set") != few {
		t.Errorf("the first way is %s, but %d sets will do", first, few)
	}
	for _, way := range strings.Split(ways, ", or ") {
		way, _, _ = strings.Cut(way, " (")
		sets := append([]string{"device=cpu", "zero.stage=0"}, strings.Split(strings.TrimPrefix(way, "--set "), " --set ")...)
		if got, err := setup.DryRun(setup.Planned(configtest.Fitted(t, sets...))); err != nil || got.Device.Total() > c.Parallel.Memory {
			t.Errorf("%s: %d bytes, budget %d: %v", way, got.Device.Total(), c.Parallel.Memory, err)
		}
	}
	c.Parallel.Memory = 100_000
	if err := budget(c, needs); err == nil || !strings.Contains(err.Error(), "no other settings fit; the smallest needs ") {
		t.Errorf("a budget nothing fits: %v", err)
	}
}

// TestMoreThanThereIs checks that a job is rejected if its ranks together need more memory than
// the machine has, including host memory. The error has the limit and settings that really fit.
func TestMoreThanThereIs(t *testing.T) {
	for _, sets := range [][]string{{"device=cpu", "zero.stage=0"}, {"device=cpu", "zero.stage=2", "zero.offload.optimizer=host"}} {
		c := configtest.Fitted(t, sets...)
		f, err := setup.DryRun(setup.Planned(c))
		if err != nil {
			t.Fatal(err)
		}
		each := f.Device.Total() + f.Host.Total()
		enough := machine.Memory{Free: 4 * each, Total: 4 * each, Limit: "this machine"}
		if err := affords(setup.Local(c), f, enough); err != nil {
			t.Errorf("%v: enough is refused: %v", sets, err)
		}
		little := machine.Memory{Free: 4*each*2/3 + 3, Total: 8 * each, Limit: "the control group x"}
		err = affords(setup.Local(c), f, little)
		if err == nil || !input.IsInput(err) {
			t.Fatalf("%v: more than there is: %v", sets, err)
		}
		for _, want := range []string{": parallel.memory: 4 ranks need ", show.ByteSize(4 * each), show.ByteSize(each) + " each: ", "; but the control group x has " + show.ByteSize(little.Free) + " free; what fits: --set "} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: no %q in: %v", sets, want, err)
			}
		}
		_, ways, _ := strings.Cut(err.Error(), "what fits: ")
		for _, way := range strings.Split(ways, ", or ") {
			way, _, _ = strings.Cut(way, " (")
			all := append(slices.Clone(sets), strings.Split(strings.TrimPrefix(way, "--set "), " --set ")...)
			if got, err := setup.DryRun(setup.Planned(configtest.Fitted(t, all...))); err != nil || 4*(got.Device.Total()+got.Host.Total()) > little.Free {
				t.Errorf("%s: %d bytes each, %d are free for four: %v", way, got.Device.Total()+got.Host.Total(), little.Free, err)
			}
		}
		c.Parallel.Memory = 2 * each
		if err := affords(setup.Local(c), f, little); err != nil {
			t.Errorf("%v: what is named and will be there: %v", sets, err)
		}
		if err := affords(setup.Local(c), f, machine.Memory{Free: each, Total: 2 * each, Limit: "this machine"}); err == nil || !strings.Contains(err.Error(), "; but this machine has "+show.ByteSize(2*each)+" in all; ") {
			t.Errorf("%v: what is named and can never be there: %v", sets, err)
		}
		if err := affords(setup.Local(c), f, machine.Memory{}); err != nil {
			t.Errorf("%v: a system that tells nothing: %v", sets, err)
		}
	}
	c := configtest.Fitted(t)
	c.Parallel.Ranks = 1 << 16
	if err := affords(setup.Planned(c), setup.Footprint{Disk: 1}, machine.Memory{Free: 1}); err != nil {
		t.Error(err)
	}
	if Product(1<<50, 1<<16) != math.MaxInt64 || Product(3, 4) != 12 {
		t.Error("a product")
	}
}

// searched returns a search that has tried everything.
func searched(t *testing.T, c *config.Config, l Limits) *search {
	t.Helper()
	s, err := newSearch(c, l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// bareOf returns a search that has tried nothing.
func bareOf(t *testing.T, c *config.Config, l Limits) *search {
	t.Helper()
	s, err := bare(c, l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// one returns the job as a weighed choice.
func one(t *testing.T, c *config.Config, l Limits) *Choice {
	t.Helper()
	s := bareOf(t, c, l)
	x, err := s.choice(c)
	if err == nil {
		err = s.weigh(x)
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// at returns a choice with another part of its optimizer state offloaded.
func at(t *testing.T, s *search, c *config.Config, part int) *Choice {
	t.Helper()
	x, err := s.choice(c)
	if err == nil {
		x, err = s.at(x, part)
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"80GiB": 80 << 30, "80GB": 80e9, "1.5 MiB": 3 << 19, "7B": 7, "4TB": 4e12, "2kB": 2000} {
		if n, err := config.ParseSize(s); err != nil || n != want {
			t.Errorf("%s is %d, %v", s, n, err)
		}
	}
	for _, s := range []string{"80", "80G", "GiB", "-1GiB", "x80GiB", "1e30TB", ""} {
		if n, err := config.ParseSize(s); err == nil {
			t.Errorf("%q is %d", s, n)
		}
	}
}

// TestOutside checks that memory outside our allocator is a range, and smaller without peers.
func TestOutside(t *testing.T) {
	var last int64
	for _, sets := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=4"}, {"parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2"}} {
		c := configtest.Fitted(t, append(sets, "train.batch=null")...)
		low, high := plan.Sum(plan.Outside(c, plan.Machine{GPU: true}))
		if low >= high || high <= last {
			t.Errorf("%v: %d to %d bytes", sets, low, high)
		}
		last = high
		if list := plan.Outside(c, plan.Machine{}); len(list) > 0 {
			t.Errorf("on this machine: %v", list)
		}
	}
}

// TestBounceIsSearched checks that bounce memory is part of the search: for exact sums between
// GPUs, and for sockets where NCCL cannot be used.
func TestBounceIsSearched(t *testing.T) {
	h, err := sim.OpenHardware("h100")
	if err != nil {
		t.Fatal(err)
	}
	l := Limits{Ranks: 16, Memory: 80 << 30, Host: 64 << 30, GPU: true, Hardware: h}
	for _, family := range []string{"gpt2", "llama"} {
		c := configtest.Fitted(t, "parallel.ranks=16", "train.batch=null", "model.family="+family, "model.width=256", "model.vocab=9000")
		l.Rates = h.Rates(c.Precision)
		bounces := func(set func(*config.Config)) (on, off int) {
			x := c.Copy()
			set(x)
			f, err := Search(x, l)
			if err != nil {
				t.Fatal(err)
			}
			for _, y := range f.Fits {
				if y.Needs.Device[device.Bounce]+y.Needs.Host[device.Bounce] > 0 {
					on++
				} else {
					off++
				}
			}
			return on, off
		}
		if on, off := bounces(func(*config.Config) {}); on > 0 || off == 0 {
			t.Errorf("%s: %d choices with and %d without bounce memory by NCCL", family, on, off)
		}
		if on, off := bounces(func(c *config.Config) { c.Parallel.Collective = "exact" }); on == 0 || off > 0 {
			t.Errorf("%s: %d choices with and %d without bounce memory where sums are exact", family, on, off)
		}
		if on, _ := bounces(func(c *config.Config) { c.Parallel.TLS.Cert = "a" }); on == 0 {
			t.Errorf("%s: no choice has bounce memory where NCCL is not to be used", family)
		}
	}
}

// TestBinding checks that the binding category is the largest one of the exceeded resource.
func TestBinding(t *testing.T) {
	c := &Choice{limits: Limits{Memory: 10, Host: 10, Disk: 10}}
	binds := func(want string) {
		t.Helper()
		if got, _ := c.Binding(); got != want {
			t.Errorf("%s binds, want %s", got, want)
		}
	}
	c.Needs.Device[device.Gathered], c.Needs.Device[device.States] = 5, 7
	binds("optimizer")
	c.Needs.Host[device.Grads], c.Needs.Host[device.Params] = 11, 3
	binds("grads in host memory")
	c.Needs.Disk = 100
	binds("the file on disk")
}

// counter counts the operations of matrix products and attention.
type counter struct {
	dry.Queue
	flops float64
}

func (q *counter) MatMul(_, a, b device.Mat, _ device.Buffer, _ bool) {
	rows, k := a.Dims()
	_, cols := b.Dims()
	q.flops += 2 * float64(rows) * float64(k) * float64(cols)
}

func (q *counter) MatMulOnto(y, x, a, b device.Mat, bias device.Buffer) {
	device.MatMulOnto(q, y, x, a, b, bias)
}

func (q *counter) MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation) {
	device.MatMulActivate(q, y, x, a, b, bias, f)
}

func (q *counter) MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation) {
	device.MatMulActivateGrad(q, dx, a, b, x, f)
}

func (q *counter) WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat) {
	device.WeightGrad(q, dw, db, dy, x)
}

// attention returns the operations of two products with the lower half of the T × T scores of a
// head.
func attention(a device.Attn) float64 { return 2 * float64(a.B*a.H*a.D) * float64(a.T) * float64(a.T) }

func (q *counter) Attention(_ device.Mat, _ device.Buffer, _, _, _ device.Mat, a device.Attn) {
	q.flops += attention(a)
}

func (q *counter) AttentionGrad(_, _, _ device.Mat, _ device.Buffer, _, _ device.Mat, _ device.Buffer, _, _, _ device.Mat, a device.Attn) {
	q.flops += 2 * attention(a) // the minimum; recomputing the scores would add half
}

// copies counts the bytes of copies.
type copies struct {
	dry.Queue
	bytes *int64
}

func (q copies) Copy(dst, _ device.Buffer) { *q.bytes += int64(dst.Bytes()) }

// TestCostCountsTheSchedule checks that a choice's weighed work and traffic equal those of the
// schedule.
func TestCostCountsTheSchedule(t *testing.T) {
	for _, sets := range [][]string{
		{"zero.stage=0", "train.loss_chunk=100"},
		{"zero.stage=3", "zero.recompute=block", "zero.prefetch=2", "train.micro_batch=1"},
		{"zero.stage=3", "model.family=llama", "model.kv_heads=1", "zero.recompute=block"},
		{"zero.stage=1", "zero.offload.optimizer=host", "model.family=llama"},
		{"zero.stage=2", "zero.offload.optimizer=host", "train.micro_batch=1"},
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host", "train.micro_batch=2"},
		{"zero.stage=3", "zero.offload.parameters=host", "precision=fp32", "zero.prefetch=0"},
		{"zero.stage=3", "zero.offload.optimizer=host", "precision=fp32", "model.family=llama", "model.tied=true"},
		{"zero.stage=2", "zero.offload.optimizer=host", "optimizer.type=muon", "device=cpu", "train.micro_batch=1"},
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host", "optimizer.type=muon", "device=cpu"},
	} {
		c := configtest.Fitted(t, sets...)
		cost := one(t, c, Limits{Ranks: 4, Rates: roughRates}).Cost
		q, moved := &counter{}, int64(0)
		r, _, _, err := setup.DryRank(setup.Planned(c), 0, func(z *zero.Config) {
			z.Compute = q
			if c.Zero.Offload.Any() {
				z.Offload.ToHost, z.Offload.ToDevice = copies{bytes: &moved}, copies{bytes: &moved}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		r.DryRun()
		if cost.Flops != q.flops {
			t.Errorf("%v: %g operations, the schedule has %g", sets, cost.Flops, q.flops)
		}
		if cost.Moved != moved {
			t.Errorf("%v: %d bytes to and from host memory, the schedule moves %d", sets, cost.Moved, moved)
		}
		c.Zero.Recompute = "none"
		if without := one(t, c, Limits{Ranks: 4, Rates: roughRates}).Cost; cost.Flops-without.Flops != cost.Again {
			t.Errorf("%v: %g operations again, but %g less without", sets, cost.Again, cost.Flops-without.Flops)
		}
	}
}

// TestExposed checks that computation hides the communication of its micro-batches as far as
// possible, and none without prefetch.
func TestExposed(t *testing.T) {
	for _, test := range []struct {
		sets            []string
		compute, expose float64 // seconds where all that is sent takes one
	}{
		{[]string{"zero.stage=0", "zero.prefetch=0", "train.micro_batch=2"}, 10, 1},
		{[]string{"zero.stage=0", "train.micro_batch=2"}, 10, 0},
		{[]string{"zero.stage=0", "train.micro_batch=2"}, 1, 0.5}, // the last of two micro-batches
		{[]string{"zero.stage=0", "train.micro_batch=4"}, 0.75, 0.25},
		{[]string{"zero.stage=3", "zero.prefetch=0"}, 10, 1},
		{[]string{"zero.stage=3", "model.family=llama"}, 10, 0},
		{[]string{"zero.stage=3", "model.family=llama"}, 0.75, 0.25},
		{[]string{"zero.stage=3", "model.family=llama", "train.micro_batch=1"}, 0.25, 0.75},
	} {
		c := configtest.Fitted(t, append(test.sets, "optimizer.type=sgd")...)
		work := one(t, c, Limits{Ranks: 4, Rates: sim.Rates{Flops: 1, Link: 1, Host: 1, Memory: 1, Disk: 1}}).Cost
		cost := one(t, c, Limits{Ranks: 4, Rates: sim.Rates{Flops: work.Flops / test.compute, Link: float64(work.Sent), Host: 1, Memory: 1, Disk: 1}}).Cost
		if math.Abs(cost.Compute-test.compute) > 1e-9 || math.Abs(cost.Exposed-test.expose) > 1e-9 {
			t.Errorf("%v: %.4f seconds computing and %.4f waiting, want %.4f and %.4f", test.sets, cost.Compute, cost.Exposed, test.compute, test.expose)
		}
	}
}

// TestUpdateOfOffloaded checks that an offloaded update takes the time of its slowest part: the
// copies to the host and back, the host's kernel, or the disk.
func TestUpdateOfOffloaded(t *testing.T) {
	for _, test := range []struct {
		sets  []string
		rates sim.Rates
		want  float64 // bytes of the slowest part per shard element
		whole float64 // additional bytes per element of a matrix that is updated whole
	}{
		{[]string{"zero.offload.optimizer=host"}, sim.Rates{Host: 1, Memory: 1e9}, (4 + 2) / 2., 0},
		{[]string{"zero.offload.optimizer=host"}, sim.Rates{Host: 1e9, Memory: 1}, 4 + 2*12 + 2, 0},
		{[]string{"zero.offload.optimizer=host", "optimizer.type=lion"}, sim.Rates{Host: 1e9, Memory: 1}, 4 + 2*8 + 2, 0},
		{[]string{"zero.offload.optimizer=disk", "zero.offload.path=."}, sim.Rates{Host: 1e9, Memory: 1e9, Disk: 1}, 2 * 12, 0},
		{[]string{"zero.offload.optimizer=host", "optimizer.type=muon", "device=cpu"}, sim.Rates{Host: 1, Memory: 1e9}, (4 + 2) / 2., 2},
		{[]string{"zero.offload.optimizer=host", "optimizer.type=muon", "device=cpu"}, sim.Rates{Host: 1e9, Memory: 1}, 4 + 2*12 + 2, 4},
	} {
		c := configtest.Fitted(t, append(test.sets, "zero.stage=2")...)
		r, _, _, err := setup.DryRank(setup.Planned(c), 0, func(*zero.Config) {})
		if err != nil {
			t.Fatal(err)
		}
		var n, whole int64
		for _, u := range r.Units() {
			n += int64(u.Layout.ShardLen())
			if u.Rule == config.MuonRule {
				whole += int64(u.Layout.ShardLen())
			}
		}
		test.rates.Flops, test.rates.Link, test.rates.Disk = math.Inf(1), 1, max(test.rates.Disk, 1e-9)
		cost := one(t, c, Limits{Ranks: 4, Rates: test.rates}).Cost
		want, blocks := test.want*float64(n)+test.whole*float64(whole), 0.0
		if c.Zero.Offload.Disk() { // each of three vectors occupies whole blocks
			blocks = 2 * 3 * 4096 * float64(len(r.Units()))
		}
		if cost.Update < want*(1-1e-9) || cost.Update > want*(1+1e-9)+blocks {
			t.Errorf("%v: %g seconds, want %g and at most %g more", test.sets, cost.Update, want, blocks)
		}
		if disk := float64(cost.Disk); blocks > 0 && disk != cost.Update || blocks == 0 && disk > 0 {
			t.Errorf("%v: %v bytes to and from the disk", test.sets, disk)
		}
	}
}

// TestMicroBatches checks that a batch with very many divisors is searched by few micro-batch
// sizes, evenly spread and including the job's own.
func TestMicroBatches(t *testing.T) {
	for n := 1; n <= 2000; n++ {
		var want []int
		for i := 1; i <= n; i++ {
			if n%i == 0 {
				want = append(want, i)
			}
		}
		if got := divisors(n); !slices.Equal(got, want) {
			t.Fatalf("divisors of %d: %v", n, got)
		}
		if got := microBatches(n, 1); len(want) <= fitMicros && !slices.Equal(got, want) {
			t.Errorf("sizes for %d: %v", n, got)
		}
	}
	const many = 735134400 // has 1344 divisors
	for _, own := range []int{1, 7, 9, 11, many / 3} {
		got := microBatches(many, own)
		if len(got) > fitMicros || !slices.Contains(got, own) || got[len(got)-1] != many {
			t.Errorf("own %d: %v", own, got)
		}
		for i, n := range got {
			if many%n != 0 || i > 0 && (n <= got[i-1] || n > 4*got[i-1]) {
				t.Errorf("own %d: %v", own, got)
			}
		}
	}
}

// TestUnsearchable checks that models beyond the limits of a search are rejected by name, but can
// be planned.
func TestUnsearchable(t *testing.T) {
	c := configtest.Fitted(t, "model.layers=1001")
	l := Limits{Ranks: 4, Memory: 1 << 40, Rates: roughRates}
	_, fit := Search(c, l)
	_, largest := FindLargest(c, "seq", l)
	for _, err := range []error{fit, largest} {
		if err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), "--set model.layers=1001: 1001 layers: fit supports at most 1000") {
			t.Errorf("%v", err)
		}
	}
	if _, err := plan.New(c, plan.Machine{}); err != nil {
		t.Error(err)
	}
	c.Parallel.Memory = 1 << 20
	needs, err := setup.DryRun(setup.Planned(c))
	if err != nil {
		t.Fatal(err)
	}
	if err := budget(c, needs); err == nil || !strings.Contains(err.Error(), "want more memory") {
		t.Errorf("%v", err)
	}
	r, err := FindLargest(configtest.Fitted(t, "model.width=4096"), "model", Limits{Ranks: 4, Memory: 1 << 55, Host: 1 << 55, Rates: roughRates})
	if err != nil || !strings.Contains(r.Any.Title, "larger ones were not searched") {
		t.Errorf("%+v, %v", r, err)
	}
}
