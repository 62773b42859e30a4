package collective

import (
	"fmt"

	"zeroth/device"
)

// staged is a group that copies device memory through host memory.
type staged struct {
	Under
	stage device.Buffer
}

// Staged wraps g, which moves only host memory, to support any memory: buffers that the host cannot
// address are copied to stage and back, in pieces that fit it. Each piece is an operation of g. All
// ranks must use the same length of stage, which must hold an element of every part; it may be
// shared by the groups of a rank that use the same queue.
func Staged(g Group, stage device.Buffer) Group {
	if !stage.Host || stage.Bytes() < 8*g.Size() {
		panic(fmt.Sprintf("collective: %d bytes to stage operations of %d ranks", stage.Bytes(), g.Size()))
	}
	if d, ok := g.(Dry); ok {
		d.stage = stage.Bytes()
		return d
	}
	return &staged{Under{g}, stage}
}

func (g *staged) AllGather(q device.Queue, whole, own device.Buffer) {
	if whole.Host && own.Host {
		g.Group.AllGather(q, whole, own)
		return
	}
	ownPart := Own(g, whole)
	if g.alone(q, whole, AllGather) {
		if ownPart.Ptr != own.Ptr {
			q.Copy(ownPart, own)
		}
		return
	}
	g.pieces(whole, own, func(lo, hi int, stage device.Buffer) {
		q.Copy(Own(g, stage), own.Slice(lo, hi))
		AllGather(g.Group, q, stage)
		for r := range g.Size() {
			if r != g.Rank() || ownPart.Ptr != own.Ptr {
				q.Copy(Part(g, whole, r).Slice(lo, hi), Part(g, stage, r))
			}
		}
	})
}

func (g *staged) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	if whole.Host && own.Host {
		g.Group.ReduceScatter(q, own, whole)
		return
	}
	if g.alone(q, whole, ReduceScatter) {
		if ownPart := Own(g, whole); ownPart.Ptr != own.Ptr {
			q.Copy(own, ownPart)
		}
		return
	}
	g.pieces(whole, own, func(lo, hi int, stage device.Buffer) {
		for r := range g.Size() {
			q.Copy(Part(g, stage, r), Part(g, whole, r).Slice(lo, hi))
		}
		ReduceScatter(g.Group, q, stage)
		q.Copy(own.Slice(lo, hi), Own(g, stage))
	})
}

func (g *staged) Broadcast(q device.Queue, b device.Buffer) {
	g.through(q, b, g.Rank() == 0, g.Rank() > 0, g.Group.Broadcast)
}

func (g *staged) Reduce(q device.Queue, b device.Buffer) {
	g.through(q, b, true, g.Rank() == 0, g.Group.Reduce)
}

// through performs an operation on a buffer that is one part, piece by piece. gives and gets select
// the copies that this rank needs.
func (g *staged) through(q device.Queue, b device.Buffer, gives, gets bool, do func(device.Queue, device.Buffer)) {
	if b.Host {
		do(q, b)
		return
	}
	step := StagedPiece(g.stage.Bytes(), 1, b.Type)
	for lo := 0; lo == 0 || lo < b.N; lo += step {
		piece := b.Slice(lo, min(lo+step, b.N))
		stage := device.Buffer{Type: b.Type, Host: true, Use: g.stage.Use, N: piece.N, Ptr: g.stage.Ptr}
		if gives {
			q.Copy(stage, piece)
		}
		do(q, stage)
		if gets {
			q.Copy(piece, stage)
		}
	}
}

// alone reports whether the rank has no peers, so that nothing needs to pass through the host. In
// that case it issues an empty operation, which is counted, and fails if the group has ended.
func (g *staged) alone(q device.Queue, whole device.Buffer, do func(Group, device.Queue, device.Buffer)) bool {
	if g.Size() > 1 {
		return false
	}
	do(g.Group, q, device.Buffer{Type: whole.Type, Host: true, Use: g.stage.Use, Ptr: g.stage.Ptr})
	return true
}

// StagedPiece returns the number of elements of each rank's part that Staged moves at once through
// stage bytes of memory.
func StagedPiece(stage, ranks int, t device.DType) int {
	n := stage / ranks / t.Size()
	if n > 64 {
		n &^= 63 // align pieces to cache lines
	}
	return n
}

// pieces calls f for consecutive ranges [lo, hi) of the parts, at least once, with staging memory
// for that many elements of every part.
func (g *staged) pieces(whole, own device.Buffer, f func(lo, hi int, stage device.Buffer)) {
	n := PartLen(g, whole)
	if own.N != n || own.Type != whole.Type {
		panic(fmt.Sprintf("collective: %d %v as the rank's own part of %d %v", own.N, own.Type, whole.N, whole.Type))
	}
	step := StagedPiece(g.stage.Bytes(), g.Size(), whole.Type)
	for lo := 0; lo == 0 || lo < n; lo += step {
		hi := min(lo+step, n)
		f(lo, hi, device.Buffer{Type: whole.Type, Host: true, Use: g.stage.Use, N: (hi - lo) * g.Size(), Ptr: g.stage.Ptr})
	}
}
