package job

import (
	"slices"
	"strings"
	"testing"

	"zeroth/device"
)

// fitted is a job to search, on two ranks with little of everything.
func fitted(t *testing.T, sets ...string) *Config {
	t.Helper()
	base := []string{"model.layers=4", "model.heads=2", "model.width=64", "model.context=64", "model.vocab=300", "train.batch=16", "train.micro_batch=4", "parallel.ranks=4"}
	c, err := Draft("", append(base, sets...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What the search finds is what a brute search over rehearsals would: nothing
// that fits comes before the fastest; every choice can be set with the sets it
// names, and then needs what it says.
func TestFitIsTheBestOfAll(t *testing.T) {
	for _, memory := range []int64{1 << 20, 2 << 20, 3 << 20, 5 << 20, 1 << 30} {
		for _, host := range []int64{0, 2 << 20} {
			c := fitted(t, "zero.stage=1")
			l := Limits{Ranks: 4, Memory: memory, Host: host, Disk: 100 * host, Rates: here}
			f, err := c.Fit(l)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range c.search(l).all {
				if x.Fits() && (len(f.Fits) == 0 || order(x, f.Fits[0]) < 0) {
					t.Errorf("%d bytes: %v is better than what fit found", memory, x.Sets)
				}
				if !x.Fits() && host == 0 && x.Config.Zero.Offload.any() {
					t.Errorf("%v without host memory", x.Sets)
				}
			}
			for _, x := range slices.Concat(f.Fits, f.Others) {
				needs, err := fitted(t, append([]string{"zero.stage=1"}, x.Sets...)...).Footprint()
				if needs != x.Needs || err != nil || !x.Rehearsed {
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

// Closed forms and rehearsals agree on all the search can try, which panics if
// they do not, also with checkpoints, on other ranks and for a Llama.
func TestClosedFormsAreRehearsed(t *testing.T) {
	for _, sets := range [][]string{
		{"checkpoint.every=5", "precision=fp32"},
		{"checkpoint.every=5", "checkpoint.async=false", "precision=fp16"},
		{"model.family=llama", "model.kv_heads=1", "optimizer.type=lion"},
		{"model.family=llama", "model.tied=true", "precision=fp32", "parallel.shard=2", "parallel.replicate=2"},
	} {
		c := fitted(t, sets...)
		l := Limits{Ranks: c.Parallel.Ranks, Memory: 1 << 21, Host: 1 << 40, Disk: 1 << 40, Rates: here}
		for i, x := range c.search(l).all {
			if i%23 == 0 {
				if err := x.rehearse(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// The ranks there are need not be the job's: the sequences of a step stay if
// they can.
func TestFitOnOtherRanks(t *testing.T) {
	for _, test := range []struct{ ranks, batch, perRank int }{{8, 16, 2}, {2, 16, 8}, {3, 12, 4}, {16, 16, 1}, {32, 128, 4}} {
		f, err := fitted(t).Fit(Limits{Ranks: test.ranks, Memory: 1 << 30, GPU: true, Rates: here})
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

// The largest that fits does, and one more does not.
func TestLargest(t *testing.T) {
	for _, family := range []string{"gpt2", "llama"} {
		for _, of := range Quantities {
			c := fitted(t, "model.family="+family)
			l := Limits{Ranks: 4, Memory: 8 << 20, Rates: here}
			r, err := c.Largest(of, l)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range []*Answer{r.As, r.Any} {
				if a == nil || !a.Choice.Fits() || !a.Choice.Rehearsed {
					t.Fatalf("%s: %+v", of, a)
				}
			}
			if r.Any.Value < r.As.Value {
				t.Errorf("%s: %d with any settings, %d with the job's", of, r.Any.Value, r.As.Value)
			}
			grown := map[string]func(*Config, int) (*Config, string){"model": grownModel, "seq": grownContext, "micro_batch": grownMicroBatch}[of]
			if more, _ := grown(c, r.As.Value+1); more.bare(l).choice(more).Fits() {
				t.Errorf("%s: %d fits too", of, r.As.Value+1)
			}
			if none, err := c.Largest(of, Limits{Ranks: 4, Memory: 1000, Rates: here}); err != nil || none.As != nil || none.Any != nil {
				t.Errorf("%s in 1000 bytes: %+v, %v", of, none, err)
			}
		}
	}
	if _, err := fitted(t).Largest("head", Limits{Ranks: 4, Memory: 1, Rates: here}); err == nil || !IsInput(err) {
		t.Errorf("the largest head: %v", err)
	}
}

// A job over its budget is refused with its largest categories and settings
// that fit, which do.
func TestOverBudget(t *testing.T) {
	c := fitted(t, "zero.stage=0", "parallel.memory=100GB")
	needs, err := c.Footprint()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.budget(needs); err != nil {
		t.Errorf("a job within its budget: %v", err)
	}
	c.Parallel.Memory = needs.Device.Total() * 2 / 3
	err = c.budget(needs)
	if err == nil || !IsInput(err) {
		t.Fatalf("a job over its budget: %v", err)
	}
	for _, want := range []string{"--set parallel.memory=100GB: parallel.memory: ", byteSize(needs.Device.Total()), byteSize(c.Parallel.Memory), " activations", "what fits: --set "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	_, ways, _ := strings.Cut(err.Error(), "what fits: ")
	for _, way := range strings.Split(ways, ", or ") {
		way, _, _ = strings.Cut(way, " (")
		sets := append([]string{"zero.stage=0"}, strings.Split(strings.TrimPrefix(way, "--set "), " --set ")...)
		if got, err := fitted(t, sets...).Footprint(); err != nil || got.Device.Total() > c.Parallel.Memory {
			t.Errorf("%s: %d bytes, budget %d: %v", way, got.Device.Total(), c.Parallel.Memory, err)
		}
	}
	c.Parallel.Memory = 100_000
	if err := c.budget(needs); err == nil || !strings.Contains(err.Error(), "no other settings fit, the least is ") {
		t.Errorf("a budget nothing fits: %v", err)
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"80GiB": 80 << 30, "80GB": 80e9, "1.5 MiB": 3 << 19, "7B": 7, "4TB": 4e12, "2kB": 2000} {
		if n, err := ParseSize(s); err != nil || n != want {
			t.Errorf("%s is %d, %v", s, n, err)
		}
	}
	for _, s := range []string{"80", "80G", "GiB", "-1GiB", "x80GiB", "1e30TB", ""} {
		if n, err := ParseSize(s); err == nil {
			t.Errorf("%q is %d", s, n)
		}
	}
}

// What is outside our allocator is a range, and less of it without peers.
func TestOutside(t *testing.T) {
	var last int64
	for _, sets := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=4"}, {"parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2"}} {
		c := fitted(t, append(sets, "train.batch=null")...)
		low, high := sum(c.outside(Machine{GPU: true}))
		if low >= high || high <= last {
			t.Errorf("%v: %d to %d bytes", sets, low, high)
		}
		last = high
		if list := c.outside(Machine{}); len(list) > 0 {
			t.Errorf("on this machine: %v", list)
		}
	}
}

// What binds is the largest category of what there is too little of.
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
