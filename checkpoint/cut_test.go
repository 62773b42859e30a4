package checkpoint

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// cutTensors returns tensors with every way of dividing them among ranks: by the first dimension, by
// the second in one or three ranges, unevenly, by both, and not at all.
func cutTensors(ranks int) (ts []Tensor, part func(t Tensor, rank int) shard.Param) {
	ways := map[string]func(p shard.Param, rank int) shard.Param{
		"rows": func(p shard.Param, rank int) shard.Param {
			n := p.Shape[0] / ranks
			return p.Part(0, shard.Range{Lo: rank * n, Hi: (rank + 1) * n})
		},
		"columns": func(p shard.Param, rank int) shard.Param {
			n := p.Shape[1] / ranks
			return p.Part(1, shard.Range{Lo: rank * n, Hi: (rank + 1) * n})
		},
		"three": func(p shard.Param, rank int) shard.Param {
			third := p.Shape[1] / 3
			n, take := third/ranks, []shard.Range{}
			for i := range 3 {
				take = append(take, shard.Range{Lo: i*third + rank*n, Hi: i*third + (rank+1)*n})
			}
			return p.Part(1, take...)
		},
		"uneven": func(p shard.Param, rank int) shard.Param {
			n := (p.Shape[0] + ranks - 1) / ranks
			return p.Part(0, shard.Range{Lo: min(rank*n, p.Shape[0]), Hi: min((rank+1)*n, p.Shape[0])})
		},
		"both": func(p shard.Param, rank int) shard.Param {
			outer, n := 2*rank/ranks, p.Shape[1]/(ranks/2)
			at := rank % (ranks / 2) * n
			return p.Part(0, shard.Range{Lo: outer * p.Shape[0] / 2, Hi: (outer + 1) * p.Shape[0] / 2}).Part(1, shard.Range{Lo: at, Hi: at + n})
		},
		"vector": func(p shard.Param, rank int) shard.Param {
			n := p.Shape[0] / ranks
			return p.Part(0, shard.Range{Lo: rank * n, Hi: (rank + 1) * n})
		},
	}
	for name, shape := range map[string][]int{"rows": {24, 700}, "columns": {700, 120}, "three": {500, 360}, "uneven": {257, 96}, "both": {6, 8, 70}, "vector": {120}, "whole": {33, 7}} {
		for _, kind := range []string{Master, "m"} {
			ts = append(ts, Tensor{name, kind, F32, shape})
		}
	}
	byKey(ts)
	return ts, func(t Tensor, rank int) shard.Param {
		p := shard.Param{Name: t.Name, Shape: t.Shape}
		if way := ways[t.Name]; way != nil && ranks > 1 {
			return way(p, rank)
		}
		return p
	}
}

// elements returns the bytes of elements of a part of a tensor with numbered elements.
func elements(t Tensor, p shard.Param, r shard.Range) (b []byte) {
	for tensor := range p.Runs(r) {
		for i := tensor.Lo; i < tensor.Hi; i++ {
			b = binary.LittleEndian.AppendUint32(b, uint32(i)*2654435761>>9|0x3f000000|uint32(len(t.Kind)))
		}
	}
	return b
}

// saveCut saves numbered tensors from the given number of ranks with parts, and for each part the
// given number of shards. Whole tensors are put by the first of each.
func saveCut(t *testing.T, fsys vfs.FS, root string, ranks, shards int, opt Options) string {
	t.Helper()
	ts, _ := cutTensors(ranks)
	opt.FS = fsys
	return saveParts(t, root, ts, ranks, shards, opt)
}

// saveParts is like saveCut for tensors of other shapes.
func saveParts(t *testing.T, root string, ts []Tensor, ranks, shards int, opt Options) string {
	t.Helper()
	_, part := cutTensors(ranks)
	s, err := Begin(root, 7, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abort()
	com := Commit{Tensors: ts, State: []byte("{}")}
	for rank := range ranks {
		for i := range shards {
			w := s.Writer(rank*shards + i)
			for _, x := range ts {
				p := part(x, rank)
				if p.Cut.Full == nil && rank > 0 {
					continue
				}
				n := p.Numel()
				r := shard.Range{Lo: n * i / shards, Hi: n * (i + 1) / shards}
				if err := w.PutPart(x, p.Cut, r, elements(x, p, r), nil); err != nil {
					t.Fatal(err)
				}
			}
			f, err := w.Finish()
			if err != nil {
				t.Fatal(err)
			}
			com.Parts = append(com.Parts, f)
		}
	}
	path, err := s.Commit(com)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCutsReshard checks that every element is read back, however tensors are divided for saving
// and reading. Digests do not depend on the division, and without parts the format is 1.
func TestCutsReshard(t *testing.T) {
	nightly.Long(t)
	digests := map[string]bool{}
	for _, ranks := range []int{1, 2, 4, 8} {
		for _, compress := range []Compression{Never, Always} {
			fsys := &vfstest.Mem{}
			path := saveCut(t, fsys, "/c", ranks, 1+ranks%3, Options{Compress: compress, headerBytes: 16384})
			c, err := OpenIn(fsys, path)
			if err != nil {
				t.Fatal(err)
			}
			if want := map[bool]int{false: format, true: formatCuts}[ranks > 1]; c.man.Format != want || (len(c.man.Uses) > 0) != (ranks > 1) {
				t.Errorf("%d ranks: format %d using %q, want %d", ranks, c.man.Format, c.man.Uses, want)
			}
			if bad, err := Verify(t.Context(), path, Walk{FS: fsys}); err != nil || len(bad) > 0 {
				t.Errorf("%d ranks: %v, %v", ranks, bad, err)
			}
			d, err := c.Digest()
			if err != nil {
				t.Fatal(err)
			}
			digests[d] = true
			for _, to := range []int{1, 2, 4, 8} {
				ts, part := cutTensors(to)
				var reqs []Request
				for rank := range to {
					for _, x := range ts {
						p := part(x, rank)
						lo := rand.IntN(p.Numel() + 1)
						r := shard.Range{Lo: lo, Hi: lo + rand.IntN(p.Numel()-lo+1)}
						if rank%2 == 0 {
							r = shard.Range{Hi: p.Numel()}
						}
						reqs = append(reqs, Request{x.Name, x.Kind, p.Cut, r, make([]byte, 4*r.Len())})
					}
				}
				if err := c.ReadAll(reqs, 3); err != nil {
					t.Fatal(err)
				}
				for i, q := range reqs {
					rank, x := i/len(ts), ts[i%len(ts)]
					if want := elements(x, part(x, rank), q.Range); !bytes.Equal(q.Into, want) {
						t.Errorf("%d ranks to %d: %v of rank %d, elements %v differ", ranks, to, x, rank, q.Range)
					}
				}
			}
		}
	}
	if len(digests) != 1 {
		t.Errorf("%d different digests of the same tensors", len(digests))
	}
}

// TestCutsRefused checks that parts that do not fit a tensor are refused.
func TestCutsRefused(t *testing.T) {
	x := Tensor{"w", Master, F32, []int{6, 4}}
	for want, c := range map[string]*cut{
		"invalid part: dimension 2":            {Dim: 2, Take: [][2]int{{0, 1}}},
		"invalid part: dimension -1":           {Dim: -1, Take: [][2]int{{0, 1}}},
		"invalid part: range [3, 5) of 4":      {Dim: 1, Take: [][2]int{{3, 5}}},
		"invalid part: range [1, 3) of 4":      {Dim: 1, Take: [][2]int{{0, 2}, {1, 3}}},
		"invalid part: range [3, 2) of 4":      {Dim: 1, Take: [][2]int{{3, 2}}},
		"invalid part: dimension 0, 17 ranges": {Dim: 0, Take: make([][2]int, 17)},
	} {
		if _, err := c.param(x); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", c, err, want)
		}
	}
	rows := func(lo, hi int) *cut { return &cut{Dim: 0, Take: [][2]int{{lo, hi}}} }
	for want, parts := range map[string][]*cut{
		"whole and in parts":                    {nil, rows(0, 6)},
		"divide dimensions 1 and 0":             {rows(0, 6), {Dim: 1, Take: [][2]int{{0, 4}}}},
		"elements [2, 3) of 6 are missing":      {rows(0, 2), rows(3, 6)},
		"elements [2, 4) of 6 are stored twice": {rows(0, 4), rows(2, 6)},
		"elements [5, 6) of 6 are missing":      {rows(0, 5)},
	} {
		if err := checkDivided(x, parts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", parts, err, want)
		}
	}
	fsys := &vfstest.Mem{}
	path := saveCut(t, fsys, "/c", 2, 1, Options{})
	c, err := OpenIn(fsys, path)
	if err != nil {
		t.Fatal(err)
	}
	other := shard.Param{Shape: []int{24, 701}}.Part(0, shard.Range{Hi: 3})
	if err := c.ReadAll([]Request{{"rows", Master, other.Cut, shard.Range{}, nil}}, 1); err == nil || !strings.Contains(err.Error(), "a part of a tensor of shape [24 701] was requested") {
		t.Error(err)
	}
}

// TestCutsDamaged checks that a flipped bit in a part is found, with an error that names a range
// of elements that contains it.
func TestCutsDamaged(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		dir := t.TempDir()
		path := saveCut(t, vfs.OS{}, dir, ranks, 1, Options{})
		c, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		p := c.Pieces("three", Master)[1]
		c.Close()
		flipBit(t, filepath.Join(path, p.File), p.Offset+40)
		bad, err := Verify(t.Context(), path, Walk{})
		if err != nil || len(bad) != 1 || bad[0].Name != "three" {
			t.Fatalf("%v, %v", bad, err)
		}
		_, part := cutTensors(ranks)
		x := Tensor{"three", Master, F32, []int{500, 360}}
		mine := part(x, p.Writer)
		for tensor := range mine.Runs(shard.Range{Lo: 10, Hi: 11}) {
			if r := bad[0].Range; r.Lo > tensor.Lo || r.Hi < tensor.Hi || r.Lo < mine.Cut.Take[0].Lo {
				t.Errorf("elements %v are lost, want some with %v", r, tensor)
			}
		}
		if c, err = Open(path); err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		into := make([]byte, 4*x.Numel())
		if err := c.Read("three", Master, shard.Range{Hi: x.Numel()}, into); err == nil || !strings.Contains(err.Error(), "CRC32C") {
			t.Error(err)
		}
	}
}

// TestCutsForged checks that changing any number in a part file with cuts is refused, or changes
// no element.
func TestCutsForged(t *testing.T) {
	fsys := &vfstest.Mem{}
	path := saveCut(t, fsys, "/c", 2, 1, Options{})
	b, err := vfs.ReadFile(fsys, filepath.Join(path, partName(1)), maxJSON)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		`"take":[[12,24]]`: `"take":[[11,23]]`, `"dim":1`: `"dim":0`, `"take":[[60,120]]`: `"take":[[60,121]]`, `"cut":{`: `"cut":{"cut":1,`, `"format":2`: `"format":1`,
		`"first":[3,6]`: `"first":[2,6]`, `"cut":{"first":[3,6],`: `"cut":{`, `[60,120],[180,240]`: `[180,240],[60,120]`, `[[12,24]]`: `[[12,24,25]]`, `[[129,257]]`: `[[129]]`,
	} {
		forged := strings.Replace(string(b), from, to, 1)
		if forged == string(b) {
			t.Fatalf("%s does not occur", from)
		}
		p, err := parsePart([]byte(forged))
		if err != nil {
			continue
		}
		first, err := vfs.ReadFile(fsys, filepath.Join(path, partName(0)), maxJSON)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := parsePart(first)
		if err != nil {
			t.Fatal(err)
		}
		ts, _ := cutTensors(2)
		if err := checkComplete(ts, []*part{whole, p}); err == nil {
			t.Errorf("%s instead of %s is accepted", to, from)
		}
	}
}

// flipBit flips a bit of a file.
func flipBit(t *testing.T, file string, at int64) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 4
	if err := os.WriteFile(file, b, 0o666); err != nil {
		t.Fatal(err)
	}
}
