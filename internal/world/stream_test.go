package world_test

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	"zeroth/internal/world"
	"zeroth/shard"
)

// TestStream checks that a stream delivers bytes in whole frames for small and odd sizes and
// through shared memory.
func TestStream(t *testing.T) {
	defer goleak.VerifyNone(t)
	worlds := enter(t, 2, 1, "unix")
	got := connect(worlds, shard.Mesh{Shard: 2, Replicate: 1})
	var ends sync.WaitGroup
	for p, w := range worlds {
		if got[p].err != nil {
			t.Fatal(got[p].err)
		}
		ends.Go(func() {
			for _, out := range [][]byte{nil, w.Shared(t, world.FrameBytes)} {
				s := world.NewStream(w.Wire(p), []int{1 - p}, out)
				for i := range s.Out() {
					s.Out()[i] = byte(i + p)
				}
				for _, bytes := range []int{1, 1000, world.FrameBytes, 3*world.FrameBytes + 2} {
					if _, err := s.Run(bytes); err != nil {
						t.Errorf("%d bytes: %v", bytes, err)
						return
					}
					frames := (bytes + world.FrameBytes - 1) / world.FrameBytes
					in := s.In(1-p, frames-1)[:bytes/frames]
					for i := range in {
						if in[i] != byte(i+1-p) {
							t.Errorf("%d bytes: byte %d of the last frame is %d", bytes, i, in[i])
							return
						}
					}
					clear(s.In(1-p, 0))
					clear(s.In(1-p, 1))
				}
			}
		})
	}
	ends.Wait()
	closeAll(worlds)
}
