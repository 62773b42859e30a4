package tests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"zeroth/device"
	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// drawnMaster returns a random job of stage 0.
func drawnMaster(rng *rand.Rand, folder string, ranks int) (sets []string) {
	pick := func(values ...string) {
		if v := values[rng.IntN(len(values))]; v != "" {
			sets = append(sets, strings.Split(v, " ")...)
		}
	}
	sets = append(sets, "zero.stage=0", "device=cpu", fmt.Sprint("parallel.ranks=", ranks), "train.steps=3")
	pick("precision=fp32", "precision=bf16", "precision=fp16")
	pick("train.accumulate=1", "train.accumulate=3")
	pick("optimizer.type=adamw", "optimizer.type=adamw8bit", "optimizer.type=muon", "optimizer.type=lion", "optimizer.type=sgd")
	pick("model.family=gpt2", "model.family=llama", "model.family=llama model.tied=true")
	pick("", "model.dropout=0.1 model.attention_dropout=0.1")
	pick("zero.recompute=none", "zero.recompute=elementwise", "zero.recompute=mlp", "zero.recompute=linear", "zero.recompute=block")
	pick("zero.prefetch=0", "zero.prefetch=1", "zero.prefetch=3")
	pick("train.clip=0", "train.clip=0.1")
	pick("", "train.lora.rank=2 train.lora.targets=[all-linear]", "train.freeze=[\"*.mlp.*\"]")
	pick("", "data.text= data.documents=[testdata/documents.jsonl] data.pack=true")
	pick("", "zero.offload.optimizer=host", "zero.offload.optimizer=host zero.offload.ratio=0.5", "zero.offload.optimizer=disk zero.offload.path="+folder)
	if !slices.ContainsFunc(sets, func(s string) bool {
		return slices.Contains([]string{"precision=fp16", "optimizer.type=muon", "zero.offload.optimizer=disk"}, s)
	}) {
		pick("", "train.delayed_update=true")
	}
	return sets
}

// TestMasterAgreesToTheBit checks that a master agrees to the bit with stage 0 in losses, norms
// and state, for random jobs, and that every rank allocates the planned memory.
func TestMasterAgreesToTheBit(t *testing.T) {
	nightly.Parallel(t)
	draws := nightly.Of(1, 8)
	for ranks := 1; ranks <= 8; ranks++ {
		for i := range draws {
			sets := drawnMaster(rand.New(rand.NewPCG(uint64(ranks), uint64(i))), t.TempDir(), ranks)
			t.Run(strings.Join(sets[2:], " "), func(t *testing.T) {
				t.Parallel()
				want, c := zerotest.Train(t, cfg(t, sets...), nil), cfg(t, append(sets, "parallel.master=true")...)
				zerotest.SameBits(t, "master", zerotest.Train(t, c, nil), want)
				allocatesAsPlanned(t, c, strings.Join(sets, " "))
			})
		}
	}
}

// TestMasterAloneHasState checks that a master allocates as much as a single rank, and that the
// others allocate the same without optimizer states and master copies.
func TestMasterAloneHasState(t *testing.T) {
	for _, rule := range []string{"adamw", "adamw8bit", "muon"} {
		sets := []string{"zero.stage=0", "precision=bf16", "device=cpu", "optimizer.type=" + rule}
		alone, err := setup.DryRun(setup.Planned(cfg(t, append(sets, "parallel.ranks=1")...)))
		if err != nil {
			t.Fatal(err)
		}
		all, err := setup.DryRuns(setup.Planned(cfg(t, append(sets, "parallel.ranks=3", "parallel.master=true")...)))
		if err != nil || len(all) != 2 {
			t.Fatalf("%d kinds of ranks (%v)", len(all), err)
		}
		want := alone.Device
		for _, use := range []device.Use{device.Stats, device.Workspace} { // these depend on the number of ranks, or on the processors per rank
			want[use] = all[0].Device[use]
		}
		sameBytes(t, rule+": the master", all[0].Device, want)
		for _, use := range []device.Use{device.Master, device.States, device.Updates} {
			want[use] = 0
		}
		sameBytes(t, rule+": another rank", all[1].Device, want)
	}
}

// TestMasterBetweenProcesses checks the same between processes, whose plans include bounce
// memory.
func TestMasterBetweenProcesses(t *testing.T) {
	nightly.Parallel(t)
	for _, hosts := range [][]int{{0, 0}, {0, 1}, {0, 0, 1}} {
		for _, ways := range [][]string{{"precision=fp32", "train.accumulate=2"}, {"precision=bf16", "model.vocab=20000", "zero.offload.optimizer=host"}, {"precision=fp16", "optimizer.type=adamw8bit", "device=cpu"}} {
			sets := append([]string{"parallel.ranks=6", "zero.stage=0"}, ways...)
			want, c := zerotest.Train(t, cfg(t, sets...), nil), cfg(t, append(sets, "parallel.master=true")...)
			got := zerotest.Outcome{State: map[string][]float32{}}
			turn := make(chan struct{}, 1)
			var done sync.WaitGroup
			for _, l := range processes(t, spec.Mesh(c), hosts) {
				done.Go(func() {
					ranks, err := setup.Open(setup.InWorld(c, l, setup.Hooks{}))
					if err != nil {
						t.Error(err)
						return
					}
					defer zerotest.CloseAll(ranks)
					if err := zerotest.TrainInto(c, ranks, &got, turn); err != nil {
						t.Error(err)
					}
					for _, r := range ranks {
						sameBytes(t, fmt.Sprintf("%v on %v: rank %d", ways, hosts, r.Rank), r.Device.Usage().Peak, r.Planned.Device)
						if r.Host != nil {
							sameBytes(t, fmt.Sprintf("%v on %v: host of rank %d", ways, hosts, r.Rank), r.Host.Usage().Peak, r.Planned.Host)
						}
						if b := wired(r.Groups.Shard).Bounce(); (b > 0) != (r.Rank == 0) {
							t.Errorf("%v on %v: rank %d has %d bytes of bounce memory", ways, hosts, r.Rank, b)
						}
					}
				})
			}
			done.Wait()
			zerotest.SameBits(t, fmt.Sprint(ways, hosts), got, want)
		}
	}
}

// TestMasterResumes checks that a master's checkpoint resumes on any mesh, and any mesh's
// checkpoint on a master.
func TestMasterResumes(t *testing.T) {
	nightly.Parallel(t)
	resumeOn(t, [][]string{
		{"parallel.ranks=3", "parallel.master=true"},
		{"parallel.ranks=1", "parallel.master=true", "precision=fp32"},
		{"parallel.ranks=4", "zero.stage=3", "parallel.replicate=2"},
		{"parallel.ranks=2", "zero.stage=0"},
		{"parallel.ranks=4", "parallel.pipeline=2", "zero.stage=2", "train.accumulate=2"},
		{"parallel.ranks=2", "parallel.tensor=2", "zero.stage=1"},
		{"parallel.ranks=2", "parallel.master=true", "zero.offload.optimizer=host", "train.accumulate=2"},
	})
}

// TestMasterSends checks that per step the master sends (N-1)pΨ bytes and receives (N-1)4Ψ, and
// that the others forward 4Ψ to it.
func TestMasterSends(t *testing.T) {
	for _, ranks := range []int{1, 2, 5} {
		c := cfg(t, "parallel.master=true", "precision=bf16", "train.accumulate=2", fmt.Sprint("parallel.ranks=", ranks))
		p, err := forecast.NewPlan(c, forecast.Machine{})
		if err != nil {
			t.Fatal(err)
		}
		dry, err := setup.OpenDry(setup.Planned(c), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		elements := 0
		for _, u := range dry.Trainer.Units() {
			elements += u.Layout.Len()
		}
		if ranks == 1 {
			if p.Sent != 0 || p.Kinds != nil {
				t.Errorf("a master alone sends %d bytes", p.Sent)
			}
			continue
		}
		for i, want := range []int{(ranks - 1) * 2 * elements, 4 * elements} {
			if got := p.Kinds[i].Sent; got != int64(want) {
				t.Errorf("%d ranks: place %d sends %d bytes, want %d", ranks, i, got, want)
			}
		}
	}
}

// TestMasterRefusals checks that all incompatible settings are reported at once.
func TestMasterRefusals(t *testing.T) {
	sets := []string{"zero.stage=2", "parallel={master: true, ranks: 8, replicate: 2, pipeline: 2, tensor: 2}", "data.validation=null", "train.eval_every=null"}
	_, err := setup.ThisMachine(1, 0).Draft("", slices.Concat(zerotest.Small, sets))
	for _, want := range []string{
		"zero.stage: stage 2 shards the state, but only the master stores it; want stage: 0, or parallel.master: false",
		"parallel.replicate: replicas store and update state, but only the master does; want replicate: 1, or parallel.master: false",
		"parallel.pipeline: pipeline stages have only some layers, but the master has the whole model; want pipeline: 1, or parallel.master: false",
		"parallel.tensor: ranks have parts of matrices, but the master has the whole model; want tensor: 1, or parallel.master: false",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	if c := cfg(t, "parallel.master=true"); c.Zero.Stage != 0 {
		t.Errorf("a master is at stage %d where none is given", c.Zero.Stage)
	}
}
