package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/store"
	"zeroth/internal/input/s3"
	"zeroth/internal/input/s3/s3test"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

const remoteRoot = "s3://" + s3test.Bucket + "/run"

// content is the tensor of a step.
func content(step, n int) []byte {
	b := make([]byte, n)
	draw := rand.New(rand.NewPCG(uint64(step), 1))
	for i := 0; i < n; i += 64 {
		b[i] = byte(draw.Uint32())
	}
	return b
}

// saveRemote saves a checkpoint of a tensor of n bytes.
func saveRemote(h *Hold, step, n int) error {
	s, err := Begin(remoteRoot, int64(step), Options{Hold: h})
	if err != nil {
		return err
	}
	defer s.Abort()
	w := s.Writer(0)
	tensor := Tensor{Name: "x", Kind: Master, DType: safetensors.U8, Shape: []int{n}}
	if err := w.Put(tensor, shard.Range{Hi: n}, content(step, n), nil); err != nil {
		return errors.Join(err, w.Abort())
	}
	p, err := w.Finish()
	if err == nil {
		_, err = s.Commit(Commit{Parts: []PartFile{p}, State: []byte("{}")})
	}
	return err
}

// TestRemoteFaults checks that while requests fail, checkpoints are saved, pruned and, by the runs
// after crashes, uploaded: no half checkpoint is ever visible, and in the end object storage
// contains the newest, with their bytes.
func TestRemoteFaults(t *testing.T) {
	nightly.Long(t)
	for i := range nightly.Of(1, 100) {
		kind := s3test.Kinds[i%len(s3test.Kinds)]
		t.Run(fmt.Sprintf("%d-%s", i, kind), func(t *testing.T) { remoteFaults(t, kind, uint64(i)) })
	}
}

func remoteFaults(t *testing.T, kind string, seed uint64) {
	server := s3test.Serve(t)
	f := server.Disturb(kind, seed)
	defer server.Watch(t)()
	dir, draw := t.TempDir(), rand.New(rand.NewPCG(seed, 3))
	step := 0
	for life := range 3 {
		h, m := openRemote(t, dir)
		for range 3 {
			step++
			n := 1000
			if draw.IntN(4) == 0 {
				n = s3.PartBytes + 1000
			}
			if err := saveRemote(h, step, n); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Prune(Keep{Last: 2}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(draw.IntN(20)) * time.Millisecond)
		}
		if life == 2 {
			f.End()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := m.Flush(ctx); err != nil {
				t.Error(err)
			}
			cancel()
		}
		if err := errors.Join(h.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	}
	list, err := List(remoteRoot)
	if err != nil {
		t.Fatal(err)
	}
	list = slices.DeleteFunc(list, func(e Entry) bool { return e.Status != Complete })
	if len(list) != 2 || list[0].Step != 8 || list[1].Step != 9 {
		t.Fatalf("%+v", list)
	}
	for _, e := range list {
		c, err := Open(e.Path)
		if err != nil {
			t.Fatal(err)
		}
		n := c.Tensors[0].Shape[0]
		got := make([]byte, n)
		if err := c.Read("x", Master, shard.Range{Hi: n}, got); err != nil || !bytes.Equal(got, content(int(e.Step), n)) {
			t.Errorf("step %d: other bytes, %v", e.Step, err)
		}
		c.Close()
	}
}

// openRemote opens the folder of a run, again if the start fails, as a supervisor would.
func openRemote(t *testing.T, dir string) (*Hold, *store.Mirror) {
	t.Helper()
	for {
		m, err := store.Use(remoteRoot, store.Options{Local: dir})
		if err != nil {
			t.Fatal(err)
		}
		h, err := HoldFolder(store.Files{}, remoteRoot)
		if err == nil {
			return h, m
		}
		t.Log(err)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}
