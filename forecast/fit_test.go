package forecast

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"zeroth/config"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/internal/input"
	"zeroth/internal/machine"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// TestFitOnOtherRanks checks a search on another number of ranks than the job's: the sequences per
// step stay the same if possible.
func TestFitOnOtherRanks(t *testing.T) {
	nightly.Parallel(t)
	for _, test := range []struct{ ranks, batch, perRank int }{{8, 16, 2}, {2, 16, 8}, {3, 12, 4}, {16, 16, 1}, {32, 128, 4}} {
		f, err := Search(spectest.Fitted(t), Limits{Ranks: test.ranks, Memory: 1 << 30, GPU: true})
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

// TestFewSequences checks that a search whose batch has fewer sequences than ranks lists how the model
// is divided.
func TestFewSequences(t *testing.T) {
	c, err := spec.Environment{}.DraftDivided("", []string{"model={layers: 4, heads: 4, width: 64, vocab: 256, context: 64}", "parallel.ranks=8", "train.batch=4", "device=cpu"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := Search(c, Limits{Ranks: 8, Memory: 1 << 30, GPU: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range append(f.Fits, f.Job) {
		if x.Config.Train.Batch != 4 || !slices.Contains(x.Sets, "parallel.tensor=2") {
			t.Errorf("%v", x.Sets)
		}
	}
}

// TestLargest checks that the largest value fits and the next one does not.
func TestLargest(t *testing.T) {
	nightly.Parallel(t)
	if cpu.Separate {
		t.Skip("what crosses takes host memory of every job there, and these machines have none")
	}
	for _, family := range []string{"gpt2", "llama"} {
		for _, of := range Quantities {
			c := spectest.Fitted(t, "device=cpu", "model.family="+family)
			l := Limits{Ranks: 4, Memory: 8 << 20}
			r, err := FindLargest(c, of, l)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range []*Answer{r.As, r.Any} {
				if a == nil || !a.Choice.Fits() {
					t.Fatalf("%s: %+v", of, a)
				}
			}
			if r.Any.Value < r.As.Value {
				t.Errorf("%s: %d with any settings, %d with the job's", of, r.Any.Value, r.As.Value)
			}
			grown := map[string]func(*spec.Job, int) (*spec.Job, string){"model": grownModel, "seq": grownContext, "micro_batch": grownMicroBatch}[of]
			if more, _ := grown(c, r.As.Value+1); one(t, more, l).Fits() {
				t.Errorf("%s: %d fits too", of, r.As.Value+1)
			}
			if of == "seq" {
				growsAs(t, r.Any, l)
			}
			if none, err := FindLargest(c, of, Limits{Ranks: 4, Memory: 1000}); err != nil || none.As != nil || none.Any != nil || !strings.Contains(none.Lacks, "no other settings fit; the smallest needs ") {
				t.Errorf("%s in 1000 bytes: %+v, %v", of, none, err)
			}
		}
	}
	if _, err := FindLargest(spectest.Fitted(t), "head", Limits{Ranks: 4, Memory: 1}); err == nil || !input.IsInput(err) {
		t.Errorf("the largest head: %v", err)
	}
}

// growsAs fails unless a sequence is limited by something, and one half as long needs less by what each token needs.
// Not all that is allocated is in use at the peak.
func growsAs(t *testing.T, a *Answer, l Limits) {
	t.Helper()
	half, _ := grownContext(a.Choice.Config, a.Value/2)
	sum := 0.0
	for _, g := range a.Grows {
		sum += g.Bytes
	}
	less := float64(a.Choice.Needs.Device.Total() - one(t, half, l).Needs.Device.Total())
	if tokens := float64(seqStep * (a.Value - a.Value/2)); math.Abs(sum*tokens-less) > 0.1*less || a.Limit == "" {
		t.Errorf("limited by %s; each token needs %.0f bytes %v, but %.0f tokens less need %.0f less", a.Limit, sum, a.Grows, tokens, less)
	}
}

// TestOverBudget checks that a job over its budget is rejected with its largest categories and
// with settings that really fit.
func TestOverBudget(t *testing.T) {
	nightly.Parallel(t)
	c := spectest.Fitted(t, "device=cpu", "zero.stage=0", "parallel.memory=100GB")
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
	_, ways, _ := strings.Cut(err.Error(), "what fits: ")
	for _, way := range strings.Split(ways, ", or ") {
		way, _, _ = strings.Cut(way, " (")
		sets := append([]string{"device=cpu", "zero.stage=0"}, strings.Split(strings.TrimPrefix(way, "--set "), " --set ")...)
		if got, err := setup.DryRun(setup.Planned(spectest.Fitted(t, sets...))); err != nil || got.Device.Total() > c.Parallel.Memory {
			t.Errorf("%s: %d bytes, budget %d: %v", way, got.Device.Total(), c.Parallel.Memory, err)
		}
	}
	c.Parallel.Memory = 100_000
	err = budget(c, needs)
	if err == nil || !strings.Contains(err.Error(), "no other settings fit; the smallest needs ") {
		t.Fatalf("nothing fits: %v", err)
	}
	_, sets, _ := strings.Cut(err.Error(), ", with --set ")
	sets, _, _ = strings.Cut(sets, "; want ")
	least := spectest.Fitted(t, append([]string{"device=cpu", "zero.stage=0"}, strings.Split(sets, " --set ")...)...)
	least.Parallel.Memory = c.Parallel.Memory
	if needs, err = setup.DryRun(setup.Planned(least)); err != nil {
		t.Fatal(err)
	}
	if err := budget(least, needs); err == nil || !strings.Contains(err.Error(), "; no other settings need less; want ") {
		t.Errorf("the settings that need least: %v", err)
	}
}

// TestProposals checks that a job that does not fit is told the first of these settings that do, which cost least
// time, and how much host memory they need; the longest sequence, too, if none fits.
func TestProposals(t *testing.T) {
	sets := []string{"model.family=llama", "model.context=512", "device=cuda", "parallel.ranks=1", "train.batch=4", "train.loss_chunk=64", "precision=bf16", "zero.recompute=none"}
	needs := func(more ...string) setup.Footprint {
		f, err := setup.DryRun(setup.Planned(spectest.Fitted(t, append(slices.Clone(sets), more...)...)))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	rungs := []string{"zero.recompute=elementwise", "optimizer.type=adamw8bit", "zero.recompute=mlp", "zero.recompute=linear"}
	for _, at := range rungs {
		budget, first := needs(at).DeviceTotal(), ""
		for i := len(rungs) - 1; i >= 0; i-- {
			if needs(rungs[i]).DeviceTotal() <= budget {
				first = rungs[i]
			}
		}
		c := spectest.Fitted(t, sets...)
		got := nearby(c, unlimited(c, budget), (*Choice).over, setup.Footprint.DeviceTotal)
		if want := fmt.Sprintf("what fits: --set %s (%s)", first, show.ByteSize(needs(first).DeviceTotal())); !strings.HasPrefix(got, want) {
			t.Errorf("in the memory of %s: %s; want %s", at, got, want)
		}
	}
	sets = append(sets, "train.micro_batch=1", "zero.recompute=block", "model.layers=16", "optimizer.type=adamw8bit")
	least := needs("zero.stage=3", "zero.offload.parameters=host", "zero.offload.activations=host")
	c := spectest.Fitted(t, sets...)
	if got := nearby(c, unlimited(c, least.DeviceTotal()), (*Choice).over, setup.Footprint.DeviceTotal); !strings.Contains(got, " of host memory)") {
		t.Errorf("with host memory: %s", got)
	}
}

// TestMoreThanThereIs checks that a job is rejected if its ranks together need more memory than
// the machine has, including host memory. The error has the limit and settings that really fit.
func TestMoreThanThereIs(t *testing.T) {
	for _, sets := range [][]string{{"device=cpu", "zero.stage=0"}, {"device=cpu", "zero.stage=2", "zero.offload.optimizer=host"}} {
		c := spectest.Fitted(t, sets...)
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
		for _, want := range []string{"parallel.memory: 4 ranks need ", show.ByteSize(4 * each), show.ByteSize(each) + " each: ", "; but the control group x has " + show.ByteSize(little.Free) + " free; what fits: --set "} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: no %q in: %v", sets, want, err)
			}
		}
		_, ways, _ := strings.Cut(err.Error(), "what fits: ")
		for _, way := range strings.Split(ways, ", or ") {
			way, _, _ = strings.Cut(way, " (")
			all := append(slices.Clone(sets), strings.Split(strings.TrimPrefix(way, "--set "), " --set ")...)
			if got, err := setup.DryRun(setup.Planned(spectest.Fitted(t, all...))); err != nil || 4*(got.Device.Total()+got.Host.Total()) > little.Free {
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
	c := spectest.Fitted(t)
	c.Parallel.Ranks = 1 << 16
	if err := affords(setup.Planned(c), setup.Footprint{Disk: 1}, machine.Memory{Free: 1}); err != nil {
		t.Error(err)
	}
	if Times(1<<50, 1<<16) != math.MaxInt64 || Times(3, 4) != 12 {
		t.Error("a product")
	}
}

// one returns the job as a choice.
func one(t *testing.T, c *spec.Job, l Limits) *Choice {
	t.Helper()
	x, err := newSearch(c, l).measure(c)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"80GiB": 80 << 30, "80GB": 80e9, "1.5 MiB": 3 << 19, "7B": 7, "4TB": 4e12, "2kB": 2000, "1.5 gib": 3 << 29} {
		if n, err := config.ParseSize(s); err != nil || n != want {
			t.Errorf("%s is %d, %v", s, n, err)
		}
	}
	for _, s := range []string{"80", "80G", "GiB", "-1GiB", "x80GiB", "1e30TB", "", "0GB", "0.1B", "NaN"} {
		if n, err := config.ParseSize(s); err == nil {
			t.Errorf("%q is %d", s, n)
		}
	}
}

// TestOutside checks that memory outside our allocator is a range, and smaller without peers.
func TestOutside(t *testing.T) {
	var last int64
	for _, sets := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=4"}, {"parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2"}} {
		c := spectest.Fitted(t, append(sets, "train.batch=null")...)
		low, high := Sum(Outside(c, Machine{GPU: true}))
		if low >= high || high <= last {
			t.Errorf("%v: %d to %d bytes", sets, low, high)
		}
		last = high
		if list := Outside(c, Machine{}); len(list) > 0 {
			t.Errorf("on this machine: %v", list)
		}
	}
}

// TestBounceIsSearched checks that bounce memory is part of the search: for exact sums between
// GPUs, and for sockets where NCCL cannot be used.
func TestBounceIsSearched(t *testing.T) {
	nightly.Parallel(t)
	h, err := OpenHardware("h100")
	if err != nil {
		t.Fatal(err)
	}
	l := Limits{Ranks: 16, Memory: 80 << 30, Host: 64 << 30, GPU: true, Hardware: h}
	for _, family := range []string{"llama", "gpt2"}[:nightly.Of(1, 2)] {
		c := spectest.Fitted(t, "parallel.ranks=16", "train.batch=null", "model.family="+family, "model.width=256", "model.vocab=9000")
		bounces := func(set func(*spec.Job)) (on, off int) {
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
		if on, off := bounces(func(*spec.Job) {}); on > 0 || off == 0 {
			t.Errorf("%s: %d choices with and %d without bounce memory by NCCL", family, on, off)
		}
		if on, off := bounces(func(c *spec.Job) { c.Parallel.Collective = "exact" }); on == 0 || off > 0 {
			t.Errorf("%s: %d choices with and %d without bounce memory where sums are exact", family, on, off)
		}
		if on, _ := bounces(func(c *spec.Job) { c.Parallel.TLS.Cert = "a" }); on == 0 {
			t.Errorf("%s: no choice has bounce memory where NCCL is not to be used", family)
		}
	}
}

// TestBinding checks that the binding category is the largest one of the exceeded resource.
func TestBinding(t *testing.T) {
	c := &Choice{limits: Limits{Memory: 10, Host: 10, Disk: 10}}
	binds := func(want string) {
		t.Helper()
		if got, _ := c.binding(device.Use.String); got != want {
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
		if got := microBatches(n, 1); len(want) <= 32 && !slices.Equal(got, want) {
			t.Errorf("sizes for %d: %v", n, got)
		}
	}
	const many = 735134400 // has 1344 divisors
	for _, own := range []int{1, 7, 9, 11, many / 3} {
		got := microBatches(many, own)
		if len(got) > 32 || !slices.Contains(got, own) || got[len(got)-1] != many {
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
	nightly.Parallel(t)
	c := spectest.Fitted(t, "model.layers=1001")
	l := Limits{Ranks: 4, Memory: 1 << 40}
	_, fit := Search(c, l)
	_, largest := FindLargest(c, "seq", l)
	for _, err := range []error{fit, largest} {
		if err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), "--set model.layers=1001: 1001 layers: fit supports at most 1000") {
			t.Errorf("%v", err)
		}
	}
	if _, err := NewPlan(c, Machine{}); err != nil {
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
	r, err := FindLargest(spectest.Fitted(t, "model.width=4096"), "model", Limits{Ranks: 4, Memory: 1 << 55, Host: 1 << 55})
	if err != nil || !strings.Contains(r.Any.Title, "larger ones were not searched") {
		t.Errorf("%+v, %v", r, err)
	}
}
