package tests

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"zeroth/forecast"
	"zeroth/zero"

	"go.uber.org/goleak"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/collective"
	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// trainWith is like train with test hooks, and also returns the ranks' memory.
func trainWith(t *testing.T, c *spec.Job, s setup.Hooks) zerotest.Outcome {
	t.Helper()
	ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, s))
	if err != nil {
		t.Fatal(err)
	}
	defer zerotest.CloseAll(ranks)
	return zerotest.TrainOn(t, c, ranks)
}

// offloads returns all ways to offload a job at a stage.
func offloads(t *testing.T, stage int) (ways [][]string) {
	for _, optimizer := range []string{"none", "host", "disk"} {
		for _, parameters := range []string{"none", "host", "disk"} {
			if parameters != "none" && stage < 3 || optimizer == "none" && parameters == "none" {
				continue
			}
			way := []string{"zero.offload.optimizer=" + optimizer, "zero.offload.parameters=" + parameters}
			if optimizer == "disk" || parameters == "disk" {
				way = append(way, "zero.offload.path="+t.TempDir())
			}
			ways = append(ways, way)
			if optimizer != "none" {
				ways = append(ways, append(way[:len(way):len(way)], "zero.offload.ratio=0.5"))
			}
		}
	}
	return ways
}

// TestOffloadAgreesToTheBit checks that any offload, at any stage, on any number of ranks, in any
// precision and for any part of the optimizer, ends with the state of the resident run, to the
// bit. Tiles are so small that units need several, the last one shorter, and there are so few
// slots that tiles wait for each other.
func TestOffloadAgreesToTheBit(t *testing.T) {
	nightly.Parallel(t)
	worlds := []int{1, 2, 3}
	if !nightly.All() {
		worlds = []int{3}
	}
	for _, precision := range []string{"fp32", "bf16", "fp16"} {
		for _, world := range worlds {
			for stage := range 4 {
				t.Run(fmt.Sprintf("%s/ranks=%d/stage=%d", precision, world, stage), func(t *testing.T) {
					t.Parallel()
					sets := []string{"precision=" + precision, fmt.Sprintf("parallel.ranks=%d", world), fmt.Sprintf("zero.stage=%d", stage)}
					want := zerotest.Train(t, cfg(t, sets...), nil)
					for i, way := range offloads(t, stage) {
						if !nightly.Every(4, i+stage) {
							continue
						}
						c := cfg(t, append(append(sets, way...), fmt.Sprintf("zero.offload.buffers=%d", 1+i%3))...)
						zerotest.SameBits(t, fmt.Sprint(way), trainWith(t, c, setup.Hooks{Tile: 200}), want)
					}
				})
			}
		}
	}
}

// TestActivationsOnHostAgreeToTheBit checks that activations in host memory change no bit of metrics, weights
// and adapters, and that memory on the device and on the host is as planned at every event, with few and many
// blocks, several micro-batches, pipelines, divided positions and matrices, packed documents and adapters.
func TestActivationsOnHostAgreeToTheBit(t *testing.T) {
	nightly.Parallel(t)
	lora := []string{"model.from=" + familyFolders(t)[0], "model.context=24", "train.lora.rank=2", "train.lora.targets=[all-linear]"}
	small := []string{"model.heads=2", "model.width=16", "model.vocab=300", "model.context=8", "model.layers=5"}
	for i, sets := range [][]string{
		append(small, "parallel.ranks=1", "model.layers=1"),
		append(small, "parallel.ranks=1", "model.layers=2", "model.dropout=0.1", "train.accumulate=2"),
		append(small, "parallel.ranks=2", "model.family=llama", "train.accumulate=3", "precision=fp16"),
		append(small, "parallel.ranks=2", "parallel.pipeline=2", "train.accumulate=4", "pipeline.schedule=1F1B"),
		append(small, "parallel.ranks=4", "parallel.pipeline=2", "train.accumulate=4", "pipeline.schedule=GPipe", "zero.offload.parameters=host"),
		append(small, "parallel.ranks=2", "parallel.pipeline=2", "train.accumulate=4", "pipeline.schedule=Interleaved1F1B", "pipeline.virtual=2", "model.layers=7"),
		append(small, "parallel.ranks=2", "parallel.context=2", "model.family=llama"),
		append(small, "parallel.ranks=2", "parallel.tensor=2", "model.family=llama", "train.accumulate=2"),
		append(lora, "parallel.ranks=1"),
		append(lora, "parallel.ranks=2", "model.weights=nf4", "zero.offload.parameters=host", "zero.prefetch=0", "train.accumulate=2"),
	} {
		for j, recompute := range []string{"linear", "block"} {
			if !nightly.Every(2, i+j) {
				continue
			}
			t.Run(fmt.Sprint(sets, recompute), func(t *testing.T) {
				t.Parallel()
				c := drawnConfig(t, append(slices.Clone(sets), "zero.recompute="+recompute))
				want := asPlanned(t, c)
				c = drawnConfig(t, append(slices.Clone(sets), "zero.recompute="+recompute))
				c.Zero.Offload.Activations = "host" // refused on processors, but for what a GPU saves
				got := asPlanned(t, c)
				got.same(t, recompute, want)
				if h := got.sum.Memory.Ranks[0]; h.Planned.Host[device.Activations] == 0 {
					t.Error("no activations on the host")
				}
			})
		}
	}
}

// torn is a queue whose nth copy fails.
type torn struct {
	device.Queue
	nth int
}

func (q *torn) Copy(dst, src device.Buffer) {
	if q.nth--; q.nth == 0 {
		q.Do(func() error { return syscall.EIO })
	}
	q.Queue.Copy(dst, src)
}

// TestCopyOfActivationsFails checks that a copy that fails, in either direction, ends the step on every rank
// with the unit and the copy.
func TestCopyOfActivationsFails(t *testing.T) {
	for way, want := range []string{"unit h.2: activations to host: ", "unit h.1: activations from host: "} {
		c := cfg(t, "parallel.ranks=2", "model.layers=6", "zero.recompute=block")
		c.Zero.Offload.Activations = "host" // refused on processors, but for what a GPU saves
		wrap := func(rank int, z *zero.Config) {
			if o := &z.Offload; rank == 1 && way == 0 {
				o.ToHost = &torn{o.ToHost, 4}
			} else if rank == 1 {
				o.ToDevice = &torn{o.ToDevice, 2}
			}
		}
		ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{WrapTrainer: wrap}))
		if err != nil {
			t.Fatal(err)
		}
		all := make([]error, 2)
		err = setup.Together(ranks, func(r *setup.Rank) error {
			_, all[r.Rank] = r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, 0), LR: 1e-3})
			return all[r.Rank]
		})
		zerotest.CloseAll(ranks)
		if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "rank 1: "+want) || all[0] == nil {
			t.Errorf("copies fail: %v, want one with %q (ranks: %v)", err, want, all)
		}
	}
}

// TestOffloadOfOtherJobsAgreesToTheBit checks the same with several micro-batches, whose sum
// stays on the host in between; with hybrid sharding, which sums over replicas on the device;
// with update rules that have one state or none, or that orthogonalize whole matrices on the
// device; and with recompute and deeper prefetch.
func TestOffloadOfOtherJobsAgreesToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for i, sets := range [][]string{
		{"parallel.ranks=2", "zero.stage=3", "train.accumulate=3"},
		{"parallel.ranks=3", "zero.stage=2", "train.accumulate=2", "precision=fp16"},
		{"parallel.ranks=2", "zero.stage=1", "train.accumulate=2"},
		{"parallel.ranks=4", "parallel.replicate=2", "zero.stage=3", "train.accumulate=2"},
		{"parallel.ranks=4", "parallel.replicate=2", "zero.stage=1", "precision=fp32"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=lion", "zero.recompute=block"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=sgd", "zero.prefetch=3", "precision=fp32"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=sgd", "optimizer.momentum=0", "zero.prefetch=0", "precision=fp32"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=sgd", "optimizer.momentum=0"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=muon", "train.accumulate=2"},
		{"parallel.ranks=3", "zero.stage=2", "optimizer.type=muon", "precision=fp16", "optimizer.nesterov=false", "train.clip=0.1"},
		{"parallel.ranks=4", "parallel.replicate=2", "zero.stage=3", "optimizer.type=muon", "zero.prefetch=0"},
		{"parallel.ranks=3", "zero.stage=0", "optimizer.type=muon", "precision=fp32"},
		{"parallel.ranks=2", "zero.stage=1", "optimizer.type=muon", "model.layers=5"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=muon", "model.family=llama", `train.freeze=["*.layers.0.*"]`},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=muon", "model.family=llama", "train.lora.rank=3"},
	} {
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			t.Parallel()
			stage := 3
			for i := range 3 {
				if sets[1] == fmt.Sprintf("zero.stage=%d", i) || sets[2] == fmt.Sprintf("zero.stage=%d", i) {
					stage = i
				}
			}
			want := zerotest.Train(t, cfg(t, sets...), nil)
			for k, way := range offloads(t, stage) {
				if !nightly.Every(4, i+k) {
					continue
				}
				c := cfg(t, append(append(sets, way...), "zero.offload.buffers=2")...)
				zerotest.SameBits(t, fmt.Sprint(way), trainWith(t, c, setup.Hooks{Tile: 200}), want)
			}
		})
	}
}

// TestTrainsUnderABudget checks that a model whose states are four times a rank's memory is
// rejected with a suggestion, and that with offload it trains bit-identically to a run with
// enough memory, without ever exceeding the budget.
func TestTrainsUnderABudget(t *testing.T) {
	nightly.Parallel(t)
	// This runs on the CPU because cuBLAS's work space of 32 MiB alone exceeds the budget.
	shape := []string{"device=cpu", "model.layers=32", "model.width=72", "zero.stage=3", "parallel.ranks=2", "train.steps=3", "train.loss_chunk=8"}
	c := cfg(t, shape...)
	plan, err := setup.DryRun(setup.Planned(c))
	if err != nil {
		t.Fatal(err)
	}
	states := plan.Device[device.Params] + plan.Device[device.Grads] + plan.Device[device.Master] + plan.Device[device.States]
	budget := states / 4
	memory := fmt.Sprintf("parallel.memory=%dB", budget)
	_, err = forecast.OpenAffordable(setup.Local(cfg(t, append(shape, memory)...)))
	if err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), "parallel.memory: the budget is ") || !strings.Contains(err.Error(), " optimizer") || !strings.Contains(err.Error(), "zero.offload") {
		t.Errorf("a plan over the budget: %v", err)
	}
	want := zerotest.Train(t, c, nil)
	for _, way := range [][]string{
		{"zero.offload.optimizer=host", "zero.offload.parameters=host"},
		{"zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=" + t.TempDir()},
	} {
		ranks, err := forecast.OpenAffordable(setup.InWorld(cfg(t, append(append(shape, memory), way...)...), setup.Alone{}, setup.Hooks{Tile: 2048}))
		if err != nil {
			t.Fatal(err)
		}
		defer zerotest.CloseAll(ranks)
		zerotest.SameBits(t, fmt.Sprint(way), zerotest.TrainOn(t, c, ranks), want)
		for _, r := range ranks {
			if peak := r.Device.Usage().Peak.Total(); peak > budget {
				t.Errorf("%v: rank %d held %d bytes, of a budget of %d", way, r.Rank, peak, budget)
			}
		}
		t.Logf("%v: %d bytes of state, %d of budget, %d held", way, states, budget, ranks[0].Device.Usage().Peak.Total())
	}
}

// closing trains until an error of the disk ends the run, and returns the errors of all ranks and
// the one that caused the others.
func closing(t *testing.T, c *spec.Job, files vfs.ScratchFS) (all []error, first error) {
	t.Helper()
	ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{Files: files, Tile: 200}))
	if err != nil {
		return nil, err
	}
	defer zerotest.CloseAll(ranks)
	all = make([]error, len(ranks))
	first = setup.Together(ranks, func(r *setup.Rank) error {
		err := zerotest.Fresh(r)
		for step := 0; err == nil && step < 10; step++ {
			_, err = r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: 1e-3})
		}
		all[r.Rank] = err
		return err
	})
	return all, first
}

// TestDiskFails checks that a disk that fails at some read or write ends the run on every rank
// with what failed, where and why.
func TestDiskFails(t *testing.T) {
	nightly.Long(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, do := range []string{"read", "write"} {
		for _, nth := range []int64{1, 2, 7, 40, 150} {
			dir := t.TempDir()
			c := cfg(t, "parallel.ranks=3", "zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.buffers=2", "zero.offload.path="+dir)
			var n atomic.Int64
			disk := vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
				if o.Do == do && strings.HasSuffix(o.Name, "rank-1.offload") && o.Off > 0 && n.Add(1) >= nth {
					return syscall.EIO
				}
				return nil
			}}
			all, err := closing(t, c, disk)
			if err == nil || !errors.Is(err, syscall.EIO) {
				t.Fatalf("%s %d fails: %v", do, nth, err)
			}
			place := regexp.MustCompile(`unit \S+: (optimizer state|parameters): ` + regexp.QuoteMeta(dir) + `/zeroth-[0-9a-f]{8}-rank-1\.offload: ` + do + ` \d+ bytes at offset \d+: input/output error$`)
			if !place.MatchString(err.Error()) {
				t.Errorf("%s %d fails: %v", do, nth, err)
			}
			for rank, err := range all {
				if err == nil || rank != 1 && !errors.Is(err, collective.ErrClosed) {
					t.Errorf("%s %d fails: rank %d: %v", do, nth, rank, err)
				}
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%v is left on the disk (%v)", left, err)
			}
		}
	}
}

// TestDiskLies checks that a bit changed by the disk is detected by the next read.
func TestDiskLies(t *testing.T) {
	dir := t.TempDir()
	c := cfg(t, "parallel.ranks=2", "zero.stage=2", "zero.offload.optimizer=disk", "zero.offload.path="+dir)
	var n atomic.Int64
	disk := vfstest.Hook{FS: vfs.OS{}, Before: func(vfstest.Op) error { return nil }, After: func(o vfstest.Op, read []byte) {
		if strings.HasSuffix(o.Name, "rank-1.offload") && o.Off > 0 && n.Add(1) == 20 {
			read[len(read)/2] ^= 4
		}
	}}
	_, err := closing(t, c, disk)
	want := regexp.MustCompile(`unit \S+: optimizer state: \S+rank-1\.offload: the \d+ bytes at offset \d+ have checksum [0-9a-f]{8}, but [0-9a-f]{8} was written: the disk lost or changed them$`)
	if err == nil || !want.MatchString(err.Error()) {
		t.Errorf("error %v", err)
	}
}

// TestDiskUnfit checks that a full or read-only disk is detected before the first step.
func TestDiskUnfit(t *testing.T) {
	for do, c := range map[string]struct {
		err  error
		want string
	}{
		"reserve":      {syscall.ENOSPC, `rank 0: offload: reserve \d+ bytes for \S+: no space left on device$`},
		"space":        {syscall.EIO, `rank 0: offload: space in \S+: input/output error$`},
		"createlocked": {syscall.EROFS, `rank 0: offload: create \S+: read-only file system$`},
		"list":         {syscall.EIO, `rank 0: offload: list \S+: input/output error$`},
		"write":        {syscall.EIO, `rank 0: offload: \S+: write its header: input/output error$`},
	} {
		dir := t.TempDir()
		job := cfg(t, "parallel.ranks=2", "zero.stage=1", "zero.offload.optimizer=disk", "zero.offload.path="+dir)
		_, err := closing(t, job, vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
			if o.Do == do {
				return c.err
			}
			return nil
		}})
		if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) || !errors.Is(err, c.err) {
			t.Errorf("%s fails: %v, want %s", do, err, c.want)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s fails: %v is left on the disk (%v)", do, left, err)
		}
	}
}

// little is a disk with a fixed number of free bytes.
type little struct {
	vfs.ScratchFS
	free int64
}

func (l little) Space(string) (int64, error) { return l.free, nil }

// TestDiskTooSmall checks that a disk with too little space is reported with the needed and the
// free bytes.
func TestDiskTooSmall(t *testing.T) {
	dir := t.TempDir()
	c := cfg(t, "parallel.ranks=2", "zero.stage=1", "zero.offload.optimizer=disk", "zero.offload.path="+dir)
	_, err := closing(t, c, little{vfs.OS{}, 5000})
	want := regexp.MustCompile(`rank 0: offload: create \S+: needs \d+ bytes, but only 5000 are free: free some space, use another folder, or offload less`)
	if err == nil || !want.MatchString(err.Error()) {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left on the disk (%v)", left, err)
	}
}
