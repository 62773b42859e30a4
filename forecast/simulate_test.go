package forecast

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"zeroth/zero"

	"zeroth/collective"
	"zeroth/config"
	"zeroth/data"
	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// paced is a group whose operations take a given time on the test clock.
type paced struct {
	collective.Group
	gather, reduce time.Duration
}

func (g paced) AllGather(q device.Queue, whole, own device.Buffer) {
	q.Do(func() error { time.Sleep(g.gather); return nil })
	g.Group.AllGather(q, whole, own)
}

func (g paced) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	q.Do(func() error { time.Sleep(g.reduce); return nil })
	g.Group.ReduceScatter(q, own, whole)
}

// lengths has the durations of some work; other work takes no time.
type lengths struct{ forward, backward, gather, reduce, apart, norm time.Duration }

// clocked returns the duration of the third step of the real schedule with the durations p, on a
// clock that only moves when all goroutines wait.
func clocked(t *testing.T, c *spec.Job, p lengths) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{WrapGroups: func(_ int, g collective.Ranks) collective.Ranks {
			g.Shard = paced{g.Shard, p.gather, p.reduce}
			g.Replica = paced{g.Replica, p.apart, p.apart}
			if g.Ends != nil {
				g.Ends = paced{g.Ends, p.apart, p.apart}
			}
			return g
		}}))
		if err != nil {
			t.Fatal(err)
		}
		defer setup.CloseAll(ranks)
		for _, r := range ranks {
			for _, q := range r.Queues.All() {
				q.Trace(func(s device.Span) { time.Sleep(p.of(s.Task)) })
			}
		}
		var ends [3]time.Time
		err = setup.Together(ranks, func(r *setup.Rank) error {
			for i := range ends {
				if _, err := r.Trainer.Step(zero.Work{Fill: func(int, []data.Values) error { return nil }, LR: 1e-4}); err != nil {
					return err
				}
				if r.Rank == 0 {
					ends[i] = time.Now()
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		took = ends[2].Sub(ends[1])
	})
	return took
}

// of returns the duration of a kernel.
func (p lengths) of(op string) time.Duration {
	switch op {
	case "attention":
		return p.forward
	case "attention gradient":
		return p.backward
	case "copy": // of activations
		return p.apart
	case "sum of squares": // ranks differ in the number of updates, because parameters are cut into different pieces
		return p.norm
	}
	return 0
}

// TestSimulatedIsTheScheduleOnAClock checks that the simulated time equals that of the real
// schedule on a clock, to the nanosecond, whatever is slow. So the simulation waits for exactly
// what a run waits for.
func TestSimulatedIsTheScheduleOnAClock(t *testing.T) {
	nightly.Parallel(t)
	const ms = time.Millisecond
	each := []lengths{
		{30 * ms, 70 * ms, 20 * ms, 20 * ms, 5 * ms, 3 * ms},
		{30 * ms, 70 * ms, 45 * ms, 90 * ms, 30 * ms, 20 * ms},
		{10 * ms, 10 * ms, 100 * ms, 10 * ms, 1 * ms, 0},
		{10 * ms, 10 * ms, 10 * ms, 200 * ms, 1 * ms, 50 * ms},
	}
	for stage := range 4 {
		for way, sets := range [][]string{
			{"parallel.ranks=2"},
			{"parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "zero.prefetch=0"},
			{"parallel.ranks=2", "zero.prefetch=2", "zero.recompute=block"},
			{"parallel.ranks=2", "model.family=llama", "model.kv_heads=1"},
			{"parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "optimizer.type=muon", "device=cpu"},
			{"parallel.ranks=4", "parallel.pipeline=2"},
			{"parallel.ranks=4", "parallel.pipeline=2", "pipeline.schedule=GPipe", "model.family=llama"},
			{"parallel.ranks=2", "zero.recompute=linear", "model.layers=6"},
			{"parallel.ranks=4", "zero.recompute=block", "model.layers=12", "parallel.pipeline=2"},
		} {
			if stage == 0 {
				sets = append(sets, "parallel.shard=-1", "parallel.replicate=1")
			}
			for j, accumulate := range []int{1, 5} {
				for i, p := range each {
					if !nightly.All() && (i != (stage+way)%len(each) || j != (stage/2+way)%2 || (stage+way/2)%2 > 0) {
						continue // by default two stages of each way
					}
					c := spectest.Fitted(t, append(sets, "device=cpu", fmt.Sprintf("zero.stage=%d", stage), fmt.Sprintf("train.accumulate=%d", accumulate), "train.micro_batch=1", "train.batch=null")...)
					if slices.Contains(config.Recomputes[3:], c.Zero.Recompute) {
						c.Zero.Offload.Activations = "host" // refused on processors, but for what a GPU saves
					}
					mesh := spec.Mesh(c)
					f, err := SimulateWith(setup.Planned(c), CostModel{There: 1, Wants: func(setup.QueueRole) float64 { return 0 }, Seconds: func(_ setup.QueueRole, k Kernel, _ Work) float64 {
						switch {
						case k.Op == "all-gather" && k.In == device.I64, k.isLink(): // of the statistics
							return 0
						case k.Group.Stride == mesh.Shard && k.Group != Group{mesh.Shard, 1}: // replicas, including those of both ends
							return p.apart.Seconds()
						case k.Op == "all-gather":
							return p.gather.Seconds()
						case k.Op == "reduce-scatter":
							return p.reduce.Seconds()
						}
						return p.of(k.Op).Seconds()
					}})
					if err != nil {
						t.Fatal(err)
					}
					if want := clocked(t, c, p).Seconds(); math.Abs(f.Seconds-want) > 1e-6 {
						t.Errorf("stage %d, %v, %d micro-batches, lengths %d: a step takes %v, simulated are %v", stage, sets, accumulate, i, want, f.Seconds)
					}
				}
			}
		}
	}
}

// crossing returns a recording in which the compute queue runs two kernels, the comm queue runs one after the first of
// them, and the host waits for that before it issues the last one.
func crossing() *Recording {
	l := newRecording()
	for _, q := range []setup.QueueRole{setup.Compute, setup.Comm} {
		l.Queues = append(l.Queues, &recordedQueue{Role: q})
	}
	l.Kernels = make([]Kernel, 4)
	l.Queues[0].Tasks = []task{{Kernel: 0, host: -1}, {Kernel: 1, host: -1}, {Kernel: 3, host: 0}}
	l.Queues[1].Tasks = []task{{Kernel: -1, on: 0, until: 1, host: -1}, {Kernel: 2, host: -1}}
	l.waits = []hostWait{{1, 2}}
	return l
}

// TestSimulationSharesProcessors checks that tasks slow down proportionally if they need more
// processors than there are.
func TestSimulationSharesProcessors(t *testing.T) {
	seconds := []float64{1, 2, 4, 3, 1, 2, 4, 3}
	for _, test := range []struct {
		there float64
		wants []float64
		want  float64 // end of the host's wait; the last task takes 3 more if alone
	}{
		{2, []float64{1, 1}, 5},
		{1, []float64{1, 1}, 7},   // from 1 on both run at half speed: a ends at 5, b has 2 left
		{1, []float64{0, 1}, 5},   // a needs none
		{0.5, []float64{0, 1}, 9}, // b alone needs twice what there is
	} {
		r := &pipelineRank{Recording: crossing(), seconds: seconds, wants: test.wants, there: test.there}
		(&simulation{ranks: []*pipelineRank{r}}).run(true)
		ends, a := r.waited, r.tracks[0].All()
		if math.Abs(ends[0]-test.want) > 1e-9 || len(a) != 3 || a[2].Start != int64(1e9*test.want) {
			t.Errorf("%+v: the host's wait ended at %v, the last task began at %v", test, ends[0], a[len(a)-1].Start)
		}
	}
}

// TestKernelSeconds checks that a kernel takes the maximum of its arithmetic and its traffic.
func TestKernelSeconds(t *testing.T) {
	h := &Hardware{Flops: map[string]float64{"bf16": 100, "fp32": 25}, Attention: 50, Memory: 10, Launch: 0.5, HostLink: 4, HostMemory: 2, Disk: 5, Links: []Link{{0, 100, 0}}}
	m := h.moving(setup.Planned(ranked(2)))
	mm, at := Kernel{Op: "matmul", In: device.BF16}, Kernel{Op: "attention gradient", In: device.BF16, K: 64}
	capped, wide, odd, exact, loss := at, at, at, at, Kernel{Op: "cross entropy", In: device.BF16, Form: Capped}
	capped.Form, wide.K, odd.K, exact.In = Capped, 136, 60, device.F32
	for _, test := range []struct {
		queue setup.QueueRole
		k     Kernel
		w     Work
		want  float64
	}{
		{setup.Compute, mm, Work{1000, 10, 0}, 10}, {setup.Compute, mm, Work{1000, 200, 0}, 20}, {setup.Compute, mm, Work{1, 1, 0}, 0.5}, {setup.Compute, at, Work{1000, 10, 0}, 20},
		// Kernels that do not use tensor cores, and operations other than products.
		{setup.Compute, capped, Work{1000, 10, 500}, 60}, {setup.Compute, wide, Work{1000, 10, 0}, 40}, {setup.Compute, odd, Work{1000, 10, 0}, 40},
		{setup.Compute, exact, Work{1000, 10, 0}, 40}, {setup.Compute, loss, Work{0, 100, 1000}, 40}, {setup.Compute, loss, Work{0, 100, 100}, 10},
		{setup.Update, Kernel{Op: "adamw"}, Work{0, 100, 0}, 10}, {setup.HostUpdate, Kernel{Op: "adamw"}, Work{0, 100, 0}, 50}, {setup.ToHost, Kernel{Op: "copy"}, Work{0, 80, 0}, 10},
		{setup.Read, Kernel{Op: "read"}, Work{0, 100, 0}, 20}, {setup.Write, Kernel{Op: "write"}, Work{0, 50, 0}, 10},
		// 2 ranks send half of it. A part that is not in place is copied meanwhile, and without
		// other ranks only copied.
		{setup.Comm, Kernel{N: 250, Group: Group{2, 1}}, Work{0, 1000, 0}, 5}, {setup.Comm, Kernel{N: 250, Group: Group{2, 1}, Form: Separate}, Work{0, 1000, 0}, 100},
		{setup.Comm, Kernel{Group: Group{2, 1}, Form: Separate}, Work{0, 10, 0}, 1}, {setup.Comm, Kernel{Group: Group{1, 1}}, Work{0, 1000, 0}, 0},
		{setup.Comm, Kernel{Group: Group{1, 1}, Form: Separate}, Work{0, 1000, 0}, 200},
	} {
		if got := m.seconds(test.queue, test.k, test.w); got != test.want {
			t.Errorf("%+v takes %v", test, got)
		}
	}
	phi := at
	phi.K = 96
	for _, test := range []struct {
		k           Kernel
		mma, hopper float64
	}{{at, 20, 1000 / 90.}, {phi, 20, 20}, {capped, 20, 20}, {wide, 1000 / 45., 1000 / 45.}, {odd, 40, 40}, {exact, 40, 40}} {
		for choice, want := range map[string]float64{"mma": test.mma, "wgmma": test.hopper} {
			m.job.Parallel.Attention, m.Source = choice, "measured"
			if got := m.source(); got != "measured; attention by "+choice+" predicted" {
				t.Error(got)
			}
			if got := m.seconds(setup.Compute, test.k, Work{1000, 10, 0}); got != want {
				t.Errorf("with parallel.attention %s, %+v takes %v", choice, test.k, got)
			}
		}
	}
}

// TestStepsAreAlike checks that later steps take as long as the second.
func TestStepsAreAlike(t *testing.T) {
	var jobs [][]string
	for _, stage := range []string{"zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"} {
		for _, more := range []string{"", "zero.prefetch=0", "zero.recompute=block", "model.family=llama model.kv_heads=1", "optimizer.type=muon", "train.loss_chunk=8"} {
			for _, micros := range []string{"train.accumulate=1", "train.accumulate=3"} {
				jobs = append(jobs, append(strings.Fields(more), stage, micros))
			}
		}
		for _, off := range []string{
			"zero.offload.optimizer=host", "zero.offload.optimizer=disk zero.offload.path=.", "zero.offload.optimizer=host zero.offload.ratio=0.4",
			"zero.offload.optimizer=disk zero.offload.path=. zero.offload.ratio=0.7 zero.offload.buffers=3", "zero.offload.optimizer=host optimizer.type=muon",
		} {
			jobs = append(jobs, append(strings.Fields(off), stage, "train.accumulate=2"))
		}
	}
	for _, off := range []string{"zero.offload.parameters=host", "zero.offload.parameters=disk zero.offload.path=.", "zero.offload.parameters=disk zero.offload.path=. zero.offload.optimizer=disk zero.offload.ratio=0.5 zero.prefetch=3"} {
		jobs = append(jobs, append(strings.Fields(off), "zero.stage=3", "train.accumulate=2"))
	}
	for _, schedule := range []string{"GPipe", "1F1B", "Interleaved1F1B"} {
		jobs = append(jobs, []string{"parallel.pipeline=2", "zero.stage=1", "train.accumulate=6", "pipeline.schedule=" + schedule})
	}
	for _, job := range jobs {
		sets := append([]string{"parallel.ranks=4", "model.layers=5", "train.batch=null"}, job...)
		if !slices.Contains(job, "zero.stage=0") && !slices.Contains(job, "parallel.pipeline=2") {
			sets = append(sets, "parallel.shard=2", "parallel.replicate=2")
		}
		c := spectest.Fitted(t, sets...)
		h, err := OpenHardware("../examples/machine.json")
		if err != nil {
			t.Fatal(err)
		}
		places, err := Recorded(setup.Planned(c), 4)
		if err != nil {
			t.Fatal(err)
		}
		m, r := h.moving(setup.Planned(c)), &simulation{}
		for _, l := range places {
			r.ranks = append(r.ranks, newPlace(l, m.costs()))
		}
		r.run(false)
		for _, l := range r.ranks {
			second := l.ended[1] - l.ended[0]
			for i, end := range l.ended[2:] {
				if took := end - l.ended[i+1]; math.Abs(took-second) > 1e-6*second {
					t.Errorf("%v: step %d takes %v s, the second %v", job, i+3, took, second)
				}
			}
		}
	}
}

// TestPlaceInSharedSlots checks that a rank's own part is not in place if units share slots: a gathered
// shard that is not cast into its slot, and a reduced gradient.
func TestPlaceInSharedSlots(t *testing.T) {
	for sets, want := range map[string][2]bool{ // parameters gathered, gradients reduced
		"zero.stage=3 precision=fp32": {true, true}, "zero.stage=3": {false, true}, "zero.stage=2": {false, true}, "zero.stage=1": {false, false},
	} {
		places, err := Recorded(setup.Planned(spectest.Fitted(t, append(strings.Fields(sets), "parallel.ranks=2")...)), 1)
		if err != nil {
			t.Fatal(err)
		}
		var got [2]bool
		for _, k := range places[0].Kernels {
			if k.Form == Separate {
				got[0], got[1] = got[0] || k.Op == "all-gather", got[1] || k.Op == "reduce-scatter"
			}
		}
		if got != want {
			t.Errorf("%s: gathers and reductions apart %v, want %v", sets, got, want)
		}
	}
}

// TestRecordedDisk checks that disk reads and writes are recorded with their bytes, in order. A
// step writes the rank's whole file, each tile after its update.
func TestRecordedDisk(t *testing.T) {
	for _, sets := range [][]string{
		{"zero.offload.parameters=disk"}, {"zero.offload.parameters=host"}, {"zero.stage=2"}, {"zero.offload.parameters=disk", "zero.offload.ratio=0.5"},
	} {
		c := spectest.Fitted(t, append([]string{"zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.path=.", "model.width=256", "model.vocab=9000"}, sets...)...)
		need, err := setup.DryRun(setup.Planned(c))
		if err != nil {
			t.Fatal(err)
		}
		places, err := Recorded(setup.Planned(c), 1)
		if err != nil {
			t.Fatal(err)
		}
		l := places[0]
		bytes, sizes := map[setup.QueueRole]int64{}, map[float64]bool{}
		for _, q := range l.Queues {
			for _, task := range q.Tasks {
				if task.Kernel < 0 || q.Role != setup.Read && q.Role != setup.Write {
					continue
				}
				k, w := l.Kernels[task.Kernel], l.Work[task.Kernel]
				if k.Op != q.Role.String() || w.Bytes <= 0 {
					t.Errorf("%v: %+v of %+v on queue %s", sets, k, w, q.Role)
				}
				bytes[q.Role] += int64(w.Bytes)
				sizes[w.Bytes] = true
			}
		}
		if bytes[setup.Write] != need.Disk-4096 || bytes[setup.Read] == 0 || len(sizes) < 2 {
			t.Errorf("%v: %v bytes, want %d written; sizes %v", sets, bytes, need.Disk-4096, sizes)
		}
	}
}

// TestHardwareFile checks that all errors in a machine file are reported at once.
func TestHardwareFile(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "m.json")
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	h, err := OpenHardware(write(`{"flops": {"fp32": 1e12}, "memory": 1e11, "launch": 0, "links": [{"ranks": 0, "bandwidth": 1e9, "latency": 1e-5}]}`))
	if err != nil || h.Flops["fp32"] != 1e12 || h.Links[0].Bandwidth != 1e9 {
		t.Fatalf("%+v, %v", h, err)
	}
	if _, err := Simulate(setup.Planned(spectest.Fitted(t, "precision=bf16")), h); err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), "has no rate for products in bf16") {
		t.Errorf("a precision that is not there: %v", err)
	}
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, `"%d": 1,`, i)
	}
	for _, text := range []string{
		`{"flop": {}, "ranks": 1}`,
		`{"links": [{"rank": 8}]}`,
		"{\"memory\": 1,\n\"links\": [{\"ranks\": 1.5}]}",
		`{"memory": "a"}`,
		`{"flops": {"bf16": "fast"}}`,
		`{"gpu": 1, "x": 1}`,
		`{"links": {}}`,
		"",
		`{`,
		`{"memory": 1,`,
		`{"flops": {"fp8": 1, "bf16": -1}, "memory": 0, "disk": -1, "links": [{"ranks": 0, "bandwidth": 0, "latency": 0}, {"ranks": 8, "bandwidth": 1, "latency": -1}]}`,
		`{"memory": 1, "memory": 2}`,
		`{"memory": 1} {}`,
		`{"name": "\u001b[31m", "source": "\u202e"}`,
		`{"flops": {"bf16": 1e-9, "\u001b": 1}, "memory": 1e25, "launch": 1001, "disk": 0.5}`,
		`{"links": [` + strings.Repeat(`{"ranks": 0},`, 50) + `{"ranks": 0}]}`,
		`{"flops": {` + many.String() + `"x": 1}}`,
		`{"memory": 1` + strings.Repeat(" ", hardwareBytes) + `}`,
		strings.Repeat("[", hardwareBytes),
	} {
		_, err := OpenHardware(write(text))
		if said.Same(t, text, err); !input.IsInput(err) {
			t.Errorf("%.100s: %v", text, err)
		}
	}
	slow := presets[0]
	slow.Name, slow.Memory = "slow", 1
	if _, err := Simulate(setup.Planned(spectest.Fitted(t, "model.width=4096", "model.context=1024")), &slow); err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), "want faster hardware") {
		t.Errorf("a step of years: %v", err)
	}
	for _, text := range []string{
		`{"Flops": {"fp32": 1e12}, "memory": 1e11, "links": []}`,
		`{"flops": {"fp32": 1e12}, "memory": 1e11, "links": [{"Ranks": 0, "bandwidth": 1e9}]}`,
		`{"flops": {"fp32": 1e12}, "memory": 1e11, "MEMORY": 1, "links": [{"ranks":0,"bandwidth":1e9}]}`,
	} {
		_, err := OpenHardware(write(text))
		said.Same(t, text, err)
	}
	if _, err := OpenHardware("h900"); err == nil || !strings.Contains(err.Error(), "h100") {
		t.Errorf("a machine nobody knows: %v", err)
	}
	for _, name := range HardwareNames() {
		if h, err := OpenHardware(name); err != nil || h.check() != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestModelFlops checks that a run counts the same operations for MFU as a simulation.
func TestModelFlops(t *testing.T) {
	for _, sets := range [][]string{{"train.batch=null", "train.accumulate=11"}, {"parallel.pipeline=2", "train.batch=null", "train.accumulate=37"}, {"zero.recompute=block"}} {
		c := setup.Planned(spectest.Fitted(t, sets...))
		want, err := Simulate(c, &Hardware{Name: "x", Flops: map[string]float64{"fp32": 1e12, "bf16": 1e12}, Memory: 1e11, Links: []Link{{0, 1e9, 0}}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := ModelFlops(c)
		if err != nil || math.Abs(got/want.Flops-1) > 1e-12 || got == 0 {
			t.Errorf("%v: %g operations, a simulation has %g: %v", sets, got, want.Flops, err)
		}
	}
	for gpu, want := range map[string]string{"cuda: GPU 0 (NVIDIA H200)": "h200", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H100 PCIe": "",
		"NVIDIA A100-SXM4-80GB": "a100", "NVIDIA B200": "b200", "NVIDIA GB200": "", "NVIDIA L40S": "l40s", "NVIDIA L40": "",
		"cuda: GPU 1 (NVIDIA GeForce RTX 4090)": "rtx4090", "NVIDIA GeForce RTX 4090 D": "", "NVIDIA GeForce RTX 4090 Laptop GPU": ""} {
		got := ""
		if h := PresetOf(gpu); h != nil {
			got = h.Name
		}
		if got != want {
			t.Errorf("%s is %q, want %q", gpu, got, want)
		}
	}
}
