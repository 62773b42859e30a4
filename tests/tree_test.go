package tests

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// TestTreeSums checks that with train.sums: tree, runs on drawn meshes with any number of micro-batches
// have the bits of one rank, and that these are not those of sums in order.
func TestTreeSums(t *testing.T) {
	nightly.Parallel(t)
	rng, most := rand.New(rand.NewPCG(7, 49)), 3
	if nightly.All() {
		most = 12
	}
	for n := 1; n <= 13; n++ {
		for _, precision := range []string{"fp32", "bf16"} {
			if !nightly.Every(2, n) {
				continue
			}
			sets := []string{"precision=" + precision, "train.sums=tree", fmt.Sprintf("train.batch=%d", n), "train.micro_batch=1", "model.dropout=0.1", "train.steps=3"}
			one := append(sets, "parallel.ranks=1", "zero.stage=2")
			want := zerotest.Train(t, cfg(t, one...), nil)
			if n == 13 {
				if other := zerotest.Train(t, cfg(t, append(one, "train.sums=order")...), nil); other.Norms[0] == want.Norms[0] {
					t.Error("sums in order have the bits of a tree")
				}
			}
			for range most {
				shards, stage := 1+rng.IntN(4), rng.IntN(4)
				for n%shards > 0 {
					shards--
				}
				replicas := 1 + rng.IntN(min(4, n/shards))
				mesh := []string{fmt.Sprintf("parallel.ranks=%d", shards*replicas), fmt.Sprintf("zero.stage=%d", stage), fmt.Sprintf("zero.prefetch=%d", rng.IntN(3))}
				if stage > 0 {
					mesh = append(mesh, fmt.Sprintf("parallel.shard=%d", shards), fmt.Sprintf("parallel.replicate=%d", replicas))
				}
				got := zerotest.Train(t, cfg(t, append(sets, mesh...)...), nil)
				zerotest.SameBits(t, fmt.Sprintf("%d micro-batches, %s, %s", n, precision, strings.Join(mesh, " ")), got, want)
			}
		}
	}
}

// TestTreeSumsOfEveryKind checks the same with optimizers, models and precisions that use gradients in
// ways of their own.
func TestTreeSumsOfEveryKind(t *testing.T) {
	nightly.Parallel(t)
	for _, kind := range [][]string{
		{"optimizer.type=muon"},
		{"model.family=llama", "model.tied=true", "precision=fp16"},
		{"model.family=llama", "train.freeze=[\"*.q_proj.*\"]", "zero.recompute=block", "train.loss_chunk=3"},
		{"model.family=llama", "model.experts={count: 4, per_token: 2}", "train.router_aux=0.01"},
		{"optimizer.type=adamw8bit", "zero.recompute=block"},
	} {
		t.Run(strings.Join(kind, " "), func(t *testing.T) {
			t.Parallel()
			sets := append(kind[:len(kind):len(kind)], "train.sums=tree", "train.batch=12", "train.micro_batch=1", "train.steps=3")
			want := zerotest.Train(t, cfg(t, append(sets, "parallel.ranks=1", "zero.stage=3")...), nil)
			for _, mesh := range [][]string{
				{"zero.stage=0", "parallel.ranks=5"},
				{"zero.stage=1", "parallel={ranks: 6, shard: 3, replicate: 2}"},
				{"zero.stage=2", "parallel={ranks: 6, shard: 2, replicate: 3}"},
				{"zero.stage=3", "parallel.ranks=4"},
			} {
				zerotest.SameBits(t, fmt.Sprint(mesh), zerotest.Train(t, cfg(t, append(sets, mesh...)...), nil), want)
			}
		})
	}
}

// TestTreeIsPlanned checks that a dry run counts the buffers of trees: each rank has as many sums of its
// shards as it needs at a time, memory for the parts of its shard group and, with replicas, for as many
// parts of a shard as a replica may have at the end.
func TestTreeIsPlanned(t *testing.T) {
	for _, x := range []struct {
		sets         []string
		sums, pieces int
	}{
		{[]string{"zero.stage=2", "parallel.ranks=1", "train.accumulate=8"}, 3, 1},
		{[]string{"zero.stage=3", "parallel.ranks=4", "train.accumulate=4"}, 2, 1},
		{[]string{"zero.stage=1", "parallel={ranks: 4, shard: 2, replicate: 2}", "train.accumulate=4"}, 2, 1},
		{[]string{"zero.stage=0", "parallel.ranks=3", "train.batch=8", "train.micro_batch=1"}, 2, 2},
		{[]string{"zero.stage=3", "parallel={ranks: 6, shard: 2, replicate: 3}", "train.batch=12", "train.micro_batch=1", "faults.survive=true"}, 2, 2},
	} {
		c := cfg(t, append(x.sets, "train.sums=tree")...)
		f, err := setup.DryRun(setup.Planned(c))
		if err != nil {
			t.Fatal(err)
		}
		form := formula(c, 0)
		all, longest := int64(0), int64(0)
		for _, u := range form.Units {
			whole, _ := form.pad(u)
			all, longest = all+whole, max(longest, whole)
		}
		shards, room := int64(c.Parallel.Shard), int64(0)
		if c.Zero.Stage == 0 {
			shards = 1
		}
		if c.Parallel.Ranks > int(shards) {
			room = 4 * longest / shards * int64(x.pieces)
		}
		if shards > 1 {
			room += 4*longest - min(room, 4*longest/shards)
		}
		if f.Device[device.Grads] != 4*all/shards*int64(x.sums) || f.Device[device.Staging] != room {
			t.Errorf("%q: %d bytes of sums and %d of parts, want %d sums of %d and %d", x.sets, f.Device[device.Grads], f.Device[device.Staging], x.sums, 4*all/shards, room)
		}
		ranks, err := setup.Open(setup.Local(c))
		if err != nil {
			t.Fatal(err)
		}
		steps(t, c, ranks, 2)
		for _, r := range ranks {
			sameBytes(t, fmt.Sprintf("%q: rank %d", x.sets, r.Rank), r.Device.Usage().Peak, f.Device)
		}
		zerotest.CloseAll(ranks)
	}
}
