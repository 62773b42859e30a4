package state

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/offload"
	"zeroth/tests/nightly"
	"zeroth/zero"
)

// TestStagingHalves checks that one half of a small staging memory is filled while the other is
// written, and not before its own parts are returned.
func TestStagingHalves(t *testing.T) {
	s := &staging{buf: device.OfF32(make([]float32, 10)), halved: true}
	take := func(n int, mark float32) func() {
		memory := s.take(n)
		for i := range memory {
			memory[i] = mark
		}
		return s.giver()
	}
	first, second := take(3, 1), take(2, 2)
	third := take(4, 3) // in the other half
	if all := s.buf.F32(); all[0] != 1 || all[3] != 2 || all[5] != 3 || all[8] != 3 || all[9] != 0 {
		t.Fatalf("staged %v", all)
	}
	second()
	taken := make(chan bool)
	go func() {
		take(4, 4)
		close(taken)
	}()
	select {
	case <-taken:
		t.Fatal("memory was given of which a part is not written yet")
	case <-time.After(20 * time.Millisecond):
	}
	first()
	<-taken
	if all := s.buf.F32(); all[0] != 4 || all[3] != 4 || all[4] != 2 || all[5] != 3 {
		t.Errorf("staged %v", all)
	}
	third()
	whole := &staging{buf: device.OfF32(make([]float32, 10))}
	whole.take(6)
	whole.take(4)
	defer func() {
		if recover() == nil {
			t.Error("more was taken than there is")
		}
	}()
	whole.take(1)
}

// TestSavedFromDiskOnceAndAhead checks that state on disk is read once for all replicas together,
// apart from the chunks in which it is summed, and ahead: while a part of one tile is written, the
// next tile is read.
func TestSavedFromDiskOnceAndAhead(t *testing.T) {
	nightly.Long(t)
	var read atomic.Int64
	files := vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
		if o.Do == "read" && o.Off > 0 {
			read.Add(o.Bytes)
		}
		return nil
	}}
	dir := t.TempDir()
	file := filepath.Join(dir, "job.yaml")
	text := fmt.Sprintf("data: {text: [%q]}\nmodel: {layers: 2, heads: 8, width: 512, context: 16}\nparallel: {ranks: 2}\n"+
		"zero: {stage: 0, offload: {optimizer: disk, path: %q}}\ntrain: {micro_batch: 1}\nprecision: bf16\n", file, dir)
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	c, err := spec.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{Files: files}))
	if err != nil {
		t.Fatal(err)
	}
	defer setup.CloseAll(ranks)
	w := &hf.Weights{Seed: 1}
	if err := setup.Together(ranks, func(r *setup.Rank) error { return r.Trainer.Fill(zero.Master, w.Fill) }); err != nil {
		t.Fatal(err)
	}
	read.Store(0)
	var got atomic.Int64
	err = setup.Together(ranks, func(r *setup.Rank) error {
		return r.Trainer.EachAll(false, zero.Staging(), func(p zero.Part, src []float32) error {
			got.Add(int64(4 * len(src)))
			return nil
		}, nil)
	})
	const kinds, chunk = 3, 512 << 10
	tiles, want := int64(0), int64(0)
	for u := range ranks[0].Trainer.Units() {
		want += int64(4 * kinds * ranks[0].Trainer.Units()[u].Layout.Numel())
		tiles += int64(ranks[0].Trainer.Units()[u].Layout.ShardLen()/offload.TileLen + 1)
	}
	if most := want + 2*kinds*(tiles+2)*chunk; err != nil || got.Load() != want || read.Load() < want || read.Load() > most {
		t.Errorf("%d bytes of state are handed out, want %d; %d are read, at most %d (%v)", got.Load(), want, read.Load(), most, err)
	}

	read.Store(0)
	calls, ahead := 0, false
	err = ranks[0].Trainer.EachAll(false, zero.Staging(), func(p zero.Part, src []float32) error {
		if calls++; calls > 1 {
			return nil
		}
		for i := 0; i < 1000 && !ahead; i++ { // the first unit has a tile of its own, smaller than those of a block
			if ahead = read.Load() > 4*kinds*offload.TileLen; !ahead {
				time.Sleep(10 * time.Millisecond)
			}
		}
		return nil
	}, nil)
	if err != nil || !ahead {
		t.Errorf("the next tile is not read before the first is done (%v)", err)
	}
}
