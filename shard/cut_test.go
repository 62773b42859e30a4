package shard

import (
	"testing"

	"pgregory.net/rapid"
)

// TestRuns compares the runs of random parts of tensors with a loop over all elements.
func TestRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Param{Name: "p", Shape: rapid.SliceOfN(rapid.IntRange(1, 7), 1, 3).Draw(t, "shape")}
		dim := rapid.IntRange(0, len(p.Shape)-1).Draw(t, "dim")
		var take []Range
		for at := 0; at < p.Shape[dim]; {
			r := Range{Lo: rapid.IntRange(at, p.Shape[dim]).Draw(t, "lo")}
			r.Hi = rapid.IntRange(r.Lo, p.Shape[dim]).Draw(t, "hi")
			take, at = append(take, r), r.Hi+1
		}
		first := Range{Hi: p.Shape[0]}
		part := p
		if dim > 0 && rapid.Bool().Draw(t, "twice") {
			first.Lo = rapid.IntRange(0, p.Shape[0]-1).Draw(t, "first")
			first.Hi = rapid.IntRange(first.Lo+1, p.Shape[0]).Draw(t, "end")
			part = p.Part(0, first)
		}
		part = part.Part(dim, take...)

		taken := func(j int) bool {
			for _, r := range take {
				if r.Lo <= j && j < r.Hi {
					return true
				}
			}
			return false
		}
		inner := 1
		for _, n := range p.Shape[dim+1:] {
			inner *= n
		}
		var want []int // the tensor's elements, in the order of the part's
		for i := range p.Numel() {
			if outer := i / (p.Numel() / p.Shape[0]); first.Lo <= outer && outer < first.Hi && taken(i/inner%p.Shape[dim]) {
				want = append(want, i)
			}
		}
		if part.Numel() != len(want) {
			t.Fatalf("%d elements, want %d", part.Numel(), len(want))
		}
		of := Range{Lo: rapid.IntRange(0, len(want)).Draw(t, "of")}
		of.Hi = rapid.IntRange(of.Lo, len(want)).Draw(t, "to")
		from := rapid.IntRange(0, p.Numel()).Draw(t, "from")
		to := rapid.IntRange(from, p.Numel()).Draw(t, "until")
		for i, own := 0, part.Within(Range{from, to}); i < len(want); i++ {
			if in := own.Lo <= i && i < own.Hi; in != (from <= want[i] && want[i] < to) {
				t.Fatalf("elements %v of the part are said to be [%d, %d) of the tensor; element %d is %d", own, from, to, i, want[i])
			}
		}
		at, last := of.Lo, -1
		for tensor, own := range part.Runs(of) {
			if own.Lo != at || own.Len() < 1 || tensor.Len() != own.Len() || tensor.Lo == last {
				t.Fatalf("run %v of %v after element %d, the last ended at %d", own, tensor, at, last)
			}
			for i := range own.Len() {
				if want[own.Lo+i] != tensor.Lo+i {
					t.Fatalf("element %d is %d of the tensor, want %d", own.Lo+i, tensor.Lo+i, want[own.Lo+i])
				}
			}
			at, last = own.Hi, tensor.Hi
		}
		if at != of.Hi {
			t.Fatalf("runs end at %d, want %d", at, of.Hi)
		}
	})
}
