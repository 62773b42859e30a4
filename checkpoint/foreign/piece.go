package foreign

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"sort"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/torchfile"
	"zeroth/shard"
)

// tensor is a logical tensor that consists of pieces.
type tensor struct {
	checkpoint.Tensor
	grid   []int // shape in which pieces count: the tensor's, or its number of elements if flattened
	pieces []piece
}

// piece is a box of elements.
type piece struct {
	start, size []int // in the tensor's grid
	from        []int // position of the first element in the file's tensor
	open        func() (*torchfile.Tensor, error)
}

// whole returns a tensor that is stored in one piece.
func whole(name, kind string, t *torchfile.Tensor) *tensor {
	zero := make([]int, len(t.Shape))
	return &tensor{
		Tensor: checkpoint.Tensor{Name: name, Kind: kind, DType: t.DType, Shape: t.Shape},
		grid:   t.Shape, pieces: []piece{{zero, t.Shape, zero, already(t)}},
	}
}

func already(t *torchfile.Tensor) func() (*torchfile.Tensor, error) {
	return func() (*torchfile.Tensor, error) { return t, nil }
}

// flat returns a tensor without pieces, to which add adds pieces of its flattened elements.
func flat(name, kind string, t checkpoint.DType, shape []int) (*tensor, error) {
	x := &tensor{Tensor: checkpoint.Tensor{Name: name, Kind: kind, DType: t, Shape: shape}}
	n, ok := numel(shape)
	if !ok {
		return nil, fmt.Errorf("%s has shape %v", checkpoint.Plain(name), shape)
	}
	x.grid = []int{n}
	return x, nil
}

// add adds a piece: n elements from element at of the flattened tensor, which begin at element from
// of the vector t.
func (x *tensor) add(at, n, from int, t *torchfile.Tensor) {
	if n > 0 {
		x.pieces = append(x.pieces, piece{[]int{at}, []int{n}, []int{from}, already(t)})
	}
}

// covered checks that the pieces contain every element exactly once, and sorts them. They do exactly
// if the corners of all boxes, each with the sign of its box's inclusion-exclusion, are those of the
// grid. The corners are compared by the sum of their hashes, which a file cannot foresee.
func (x *tensor) covered() error {
	total, _ := numel(x.grid)
	have := 0
	x.pieces = slices.DeleteFunc(x.pieces, func(p piece) bool { n, _ := numel(p.size); return n == 0 })
	sort.SliceStable(x.pieces, func(i, j int) bool { return slices.Compare(x.pieces[i].start, x.pieces[j].start) < 0 })
	var cut []int // dimensions along which pieces are shorter than the grid
	for d := range x.grid {
		if slices.ContainsFunc(x.pieces, func(p piece) bool { return len(p.size) > d && p.size[d] != x.grid[d] }) {
			cut = append(cut, d)
		}
	}
	if len(cut) > maxCut {
		return fmt.Errorf("%v is cut along %d dimensions; at most %d expected", x.Tensor, len(cut), maxCut)
	}
	seed := maphash.MakeSeed()
	corners := -cornerSum(seed, make([]int, len(x.grid)), x.grid, cut)
	for _, p := range x.pieces {
		n, ok := numel(p.size)
		if !ok || len(p.start) != len(x.grid) || len(p.size) != len(x.grid) {
			return fmt.Errorf("%v: a piece of size %v at %v of %v", x.Tensor, p.size, p.start, x.grid)
		}
		for d := range x.grid {
			if p.start[d] < 0 || p.size[d] > x.grid[d] || p.start[d] > x.grid[d]-p.size[d] {
				return fmt.Errorf("%v: a piece of size %v at %v of %v", x.Tensor, p.size, p.start, x.grid)
			}
		}
		if have += n; have > total {
			break
		}
		corners += cornerSum(seed, p.start, p.size, cut)
	}
	if have > total || have == total && total > 0 && corners != 0 {
		return fmt.Errorf("%v: pieces overlap (strided shards of FSDP with tensor parallelism are not supported)", x.Tensor)
	}
	if have != total {
		return fmt.Errorf("%v: %d of %d elements are in the checkpoint: files of some ranks are missing, or belong to another", x.Tensor, have, total)
	}
	return nil
}

// maxCut is the maximum number of dimensions along which a tensor is cut.
const maxCut = 8

// cornerSum returns the sum of the signed hashes of a box's corners in the dimensions of cut.
func cornerSum(seed maphash.Seed, start, size, cut []int) (sum uint64) {
	at := make([]byte, 0, 8*maxCut)
	for corner := range 1 << len(cut) {
		at = at[:0]
		for i, d := range cut {
			at = binary.LittleEndian.AppendUint64(at, uint64(start[d]+size[d]*(corner>>i&1)))
		}
		h := maphash.Bytes(seed, at)
		if bits.OnesCount(uint(corner))%2 == 1 {
			h = -h
		}
		sum += h
	}
	return sum
}

// read reads the elements r of the flattened tensor as stored.
func (x *tensor) read(r shard.Range, dst []byte) error {
	return boxes(x.grid, r.Lo, r.Hi, nil, func(start, size []int) error {
		for _, p := range x.pieces {
			if len(start) > 0 && p.start[0] >= start[0]+size[0] {
				break // sorted
			}
			if err := x.readPiece(p, start, size, r.Lo, dst); err != nil {
				return fmt.Errorf("%v: %w", x.Tensor, err)
			}
		}
		return nil
	})
}

// readF32 is like read, widened to float32.
func (x *tensor) readF32(r shard.Range, into []float32) error {
	if b, ok := safetensors.Bytes(into); ok && x.DType == checkpoint.F32 {
		return x.read(r, b)
	}
	b := make([]byte, r.Len()*x.DType.Size())
	if err := x.read(r, b); err != nil {
		return err
	}
	safetensors.Decode(into, b, x.DType)
	return nil
}

// readPiece reads the part of a piece that lies in a box; dst begins at element lo of the tensor.
func (x *tensor) readPiece(p piece, start, size []int, lo int, dst []byte) error {
	from, n := make([]int, len(start)), make([]int, len(start))
	at, stride := 0, torchfile.Strides(x.grid)
	for d := range start {
		a, b := max(start[d], p.start[d]), min(start[d]+size[d], p.start[d]+p.size[d])
		if a >= b {
			return nil
		}
		from[d], n[d] = p.from[d]+a-p.start[d], b-a
		at += a * stride[d]
	}
	t, err := p.open()
	if err != nil {
		return err
	}
	return t.ReadBox(from, n, dst[(at-lo)*x.DType.Size():], stride)
}

// boxes divides the elements [lo, hi) of a flattened grid into boxes and calls f for each, in order.
func boxes(grid []int, lo, hi int, prefix []int, f func(start, size []int) error) error {
	if lo >= hi {
		return nil
	}
	if len(grid) == 0 { // a scalar in an empty grid, or one element of a longer one
		return f(prefix, ones(len(prefix)))
	}
	row, _ := numel(grid[1:])
	first, last := lo/row, hi/row // rows [first, last) are whole if lo begins one
	at := func(i int) []int { return append(slices.Clone(prefix), i) }
	if lo%row != 0 {
		end := min(hi, (first+1)*row)
		if err := boxes(grid[1:], lo-first*row, end-first*row, at(first), f); err != nil {
			return err
		}
		first++
	}
	if first < last {
		start := append(at(first), make([]int, len(grid)-1)...)
		size := append(append(ones(len(prefix)), last-first), grid[1:]...)
		if err := f(start, size); err != nil {
			return err
		}
	}
	if hi%row != 0 && last >= first {
		return boxes(grid[1:], 0, hi-last*row, at(last), f)
	}
	return nil
}

func ones(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = 1
	}
	return s
}
