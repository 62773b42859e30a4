package foreign

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/torchfile"
	"zeroth/tests/nightly"
)

// saved writes a file of torch.save whose pickle has no tensors.
func saved(t *testing.T, path string, p *torchfile.Pickler) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateHeader(&zip.FileHeader{Name: "archive/data.pkl", Method: zip.Store})
	if err == nil {
		_, err = w.Write(p.Bytes())
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, b.Bytes())
}

// Values of the wrong type where keys, numbers and steps are expected are refused, without a panic
// or a message that prints a tuple nested in itself.
func TestWrongValues(t *testing.T) {
	nested := func(p *torchfile.Pickler) {
		p.Op(")")
		for range 8 {
			p.Op("q\x00h\x00\x86")
		}
	}
	for name, test := range map[string]struct {
		want string
		fill func(p *torchfile.Pickler)
	}{
		"a tuple as the number of a parameter": {"state of parameter a tuple", func(p *torchfile.Pickler) {
			p.Text("optimizer")
			p.Op("}(")
			p.Text("state")
			p.Op("}(")
			nested(p)
			p.Op("}uu")
		}},
		"a tuple as the step": {"it has no tensors of floats", func(p *torchfile.Pickler) {
			p.Text("global_steps")
			nested(p)
		}},
	} {
		folder := t.TempDir()
		p := torchfile.NewPickler()
		p.Op("}(")
		p.Text("module")
		p.Op("}")
		test.fill(p)
		p.Op("u")
		saved(t, filepath.Join(folder, "mp_rank_00_model_states.pt"), p)
		if _, err := Open(folder); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLeftOut checks that everything in a file other than parameters is listed, whatever its key,
// and that a part of a tensor is not taken for a tensor.
func TestLeftOut(t *testing.T) {
	object := func(class string) func(p *torchfile.Pickler) {
		return func(p *torchfile.Pickler) {
			p.Global("torch.distributed.tensor", class)
			p.Op(")\x81")
		}
	}
	for want, value := range map[string]func(p *torchfile.Pickler){
		"only optimizer, 5, a, 7": func(p *torchfile.Pickler) { p.Int(1) },
		"a\" is a rank's part of a DTensor: want the folder with the files of all ranks": object("DTensor"),
	} {
		path := filepath.Join(t.TempDir(), "x.pt")
		p := torchfile.NewPickler()
		p.Op("}(")
		p.Text("model")
		p.Op("}(")
		p.Text("a")
		value(p)
		p.Int(7)
		p.Int(1)
		p.Op("u")
		p.Text("optimizer")
		p.Op("}")
		p.Int(5)
		p.Op("Nu")
		saved(t, path, p)
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestUnusedState checks that optimizer state of unknown kinds is listed.
func TestUnusedState(t *testing.T) {
	x := &torchfile.Tensor{Shape: []int{2}}
	c := &Checkpoint{}
	c.unused("w", &torchfile.Dict{Keys: []any{"step", "exp_avg", "max_exp_avg_sq", 3, "lr"}, Values: []any{x, x, x, x, 0.1}})
	folder := t.TempDir()
	for _, kind := range []string{"exp_avg", "sum", "step"} {
		write(t, filepath.Join(folder, kind+".pt"), nil)
	}
	if err := c.addUniversal(folder, "v", []int{2}); err == nil {
		t.Error("there is no fp32.pt")
	}
	if got := strings.Join(c.LeftOut, " "); got != "w.max_exp_avg_sq v.sum" {
		t.Errorf("left out: %s", got)
	}
}

// TestStep checks that a step must be a whole number.
func TestStep(t *testing.T) {
	for bits, want := range map[uint32]string{0x40400000: "3 <nil>", 0x406ccccd: "0 a step of 3.7", 0x7fc00000: "0 a step of NaN", 0x7f800000: "0 a step of +Inf", 0x7149f2ca: "0 a step of 1.0000000150474662e+30"} {
		x, err := torchfile.Raw("x", bytes.NewReader(binary.LittleEndian.AppendUint32(nil, bits)), 0, "F32", nil)
		if err != nil {
			t.Fatal(err)
		}
		n, err := step(x)
		if got := fmt.Sprint(n, " ", err); !strings.HasPrefix(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestShardOffsets checks that the offsets of a file need no more memory than its tensors.
func TestShardOffsets(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": {"saved_offsets": [3, 0]}}`:               "map[a:[3 0]] <nil>",
		`{"a": {"saved_offsets": []}, "b": {}, "c": {}}`: "map[] DCP_SHARDING_INFO: line 1, column 39: more than the 2 tensors",
		`{"a": {}, "a": {}}`:                             "duplicate key",
		`{"a": {"saved_offsets": [0.5]}}`:                "0.5 where a whole number",
		``:                                               "DCP_SHARDING_INFO",
	} {
		offsets, err := shardOffsets(text, 2)
		if got := fmt.Sprint(offsets, " ", err); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestNumbered checks that the parameters behind an optimizer's numbers follow from shapes, or that
// the checkpoint is refused.
func TestNumbered(t *testing.T) {
	matrix, vector := []int{4, 4}, []int{4}
	for name, test := range map[string]struct {
		params [][]int       // shapes in the model's order, named a, b, c, …
		groups [][]int64     // their numbers
		state  map[int64]int // positions in params of the numbers that have state
		want   string        // the names of all numbers, or an error
	}{
		"one group":            {[][]int{matrix, vector, matrix}, [][]int64{{0, 1, 2}}, map[int64]int{0: 0, 1: 1, 2: 2}, "a b c"},
		"two groups":           {[][]int{matrix, vector, matrix}, [][]int64{{0, 1}, {2}}, map[int64]int{0: 0, 1: 2, 2: 1}, "a c b"},
		"one without state":    {[][]int{matrix, matrix, matrix}, [][]int64{{0, 1, 2}}, map[int64]int{0: 0, 2: 2}, "a b c"},
		"groups, no state":     {[][]int{matrix, matrix, vector}, [][]int64{{0, 1}, {2}}, map[int64]int{1: 1, 2: 2}, "number 0 of group 0 has no state"},
		"a frozen parameter":   {[][]int{matrix, matrix, matrix}, [][]int64{{0, 1}}, map[int64]int{0: 1, 1: 2}, "it has state for only 2 of 3"},
		"layers in two groups": {[][]int{matrix, matrix}, [][]int64{{0}, {1}}, map[int64]int{0: 1, 1: 0}, "so it is unknown which is which"},
		"other shapes":         {[][]int{matrix, vector}, [][]int64{{0, 1}}, map[int64]int{0: 1, 1: 0}, "has shape [4], but a, which is next, [4 4]"},
		"too many":             {[][]int{matrix}, [][]int64{{0, 1}}, map[int64]int{0: 0, 1: 0}, "none is left for number 1"},
	} {
		p := torchfile.NewPickler()
		p.Op("}(")
		p.Text("param_groups")
		p.Op("](")
		var all []int64
		for _, g := range test.groups {
			p.Op("}(")
			p.Text("params")
			p.Op("](")
			for _, n := range g {
				p.Int(n)
			}
			p.Op("eu")
			all = append(all, g...)
		}
		p.Op("eu")
		path := filepath.Join(t.TempDir(), "o")
		write(t, path, p.Bytes())
		o, err := torchfile.Pickle(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		var params []param
		for i, shape := range test.params {
			params = append(params, param{name: string(rune('a' + i)), shape: shape})
		}
		names, err := numbered(o.(*torchfile.Dict), params, func(_, _ string, n any) (*tensor, error) {
			at, ok := test.state[n.(int64)]
			if !ok {
				return nil, nil
			}
			return &tensor{Tensor: checkpoint.Tensor{Shape: test.params[at]}}, nil
		})
		got := fmt.Sprint(err)
		if err == nil {
			var list []string
			for _, n := range all {
				list = append(list, names[n])
			}
			got = strings.Join(list, " ")
		}
		if !strings.Contains(got, test.want) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// Two tensors are the same parameter only if they are the same view of the same memory.
func TestAliases(t *testing.T) {
	s := &torchfile.Storage{DType: "F32", Bytes: 16}
	view := func(strides ...int) *torchfile.Tensor {
		return &torchfile.Tensor{Storage: s, Shape: []int{2, 2}, Stride: strides, DType: "F32"}
	}
	var seen aliases
	for i, test := range []struct {
		t    *torchfile.Tensor
		want string
	}{{view(2, 1), ""}, {view(2, 1), "0"}, {view(1, 2), ""}} {
		if got := seen.owner(fmt.Sprint(i), test.t); got != test.want {
			t.Errorf("view %d is an alias of %q, want %q", i, got, test.want)
		}
	}
}

// A vector longer than its parameters and their padding is refused: it contains others, too.
func TestSurplusElementsAreRefused(t *testing.T) {
	for have, ok := range map[int]bool{9: false, 10: true, 14: true, 15: false, 1000: false} {
		x, err := torchfile.Raw("x", nil, 0, "F32", []int{have - 5})
		if err != nil {
			t.Fatal(err)
		}
		y, _ := torchfile.Raw("y", nil, 0, "F32", []int{5})
		z := &zeroFiles{c: &Checkpoint{index: map[[2]string]*tensor{}}, optim: make([]*torchfile.Dict, 2)}
		err = z.cutGroup(0, checkpoint.Master, []param{{"a", []int{2, 3}, 6}, {"b", []int{4}, 4}}, []*torchfile.Tensor{x, y})
		if (err == nil) != ok {
			t.Errorf("%d elements for 10: %v", have, err)
		}
	}
}

// TestRename checks that names may be swapped, and that aliases of shared parameters follow.
func TestRename(t *testing.T) {
	c, err := Open("testdata/dcp/plain/pytorch_model.bin")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const a, b, words = "transformer.h.0.ln_1.weight", "transformer.h.1.ln_1.weight", "transformer.wte.weight"
	at := func(name string) *tensor { return c.index[[2]string{name, checkpoint.Master}] }
	x, y := at(a), at(b)
	if err := c.Rename(map[string]string{a: b, b: a, words: "words"}); err != nil {
		t.Fatal(err)
	}
	if at(a) != y || at(b) != x || at("words") == nil {
		t.Error("the names are not exchanged")
	}
	for alias, owner := range c.Same {
		if at(owner) == nil {
			t.Errorf("%s is %s, which is not there", alias, owner)
		}
	}
	if err := c.Rename(map[string]string{words: "x"}); err == nil || !strings.Contains(err.Error(), "no parameter "+words) {
		t.Errorf("a name that is gone: %v", err)
	}
	if err := c.Rename(map[string]string{a: ""}); err == nil || !strings.Contains(err.Error(), "the new name of "+a+" is empty") {
		t.Errorf("an empty name: %v", err)
	}
}

// TestMostMemory checks that a file made to exhaust memory gets only the memory that any file may
// use.
func TestMostMemory(t *testing.T) {
	nightly.Long(t)
	for name, ops := range map[string]string{
		"lists": strings.Repeat("]", 1<<20), "dictionaries": strings.Repeat("}K\x01K\x01s", 1<<20), "numbers": "](" + strings.Repeat("J\x00\x00\x01\x00", 1<<20),
		"tuples": ")" + strings.Repeat("\x85", 1<<20), "marks": strings.Repeat("(", 1<<21), "a long memo": "N" + strings.Repeat("\x94", 1<<20),
	} {
		path := filepath.Join(t.TempDir(), "x.pt")
		p := torchfile.NewPickler()
		p.Op(ops)
		saved(t, path, p)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		peak := peakHeap()
		_, err = Open(path)
		took := peak()
		if err == nil || !strings.Contains(err.Error(), "need more memory") {
			t.Errorf("%s: %v", name, err)
		}
		if took < 4<<20 || took > info.Size()+64<<20 {
			t.Errorf("%s: %d bytes of memory for a file of %d; want 4 MiB to the file's size and 64 MiB", name, took, info.Size())
		}
		t.Logf("%s: %d KiB for %d KiB", name, took>>10, info.Size()>>10)
	}
}

// Whether pieces cover a grid exactly once is what counting says, for drawn boxes.
func TestCovered(t *testing.T) {
	r, yes := rand.New(rand.NewPCG(5, 6)), 0
	for range nightly.Of(2000, 100000) {
		grid := make([]int, r.IntN(4))
		for d := range grid {
			grid[d] = 1 + r.IntN(4)
		}
		x := &tensor{Tensor: checkpoint.Tensor{Name: "w", Shape: grid}, grid: grid, pieces: []piece{{start: make([]int, len(grid)), size: slices.Clone(grid)}}}
		for range r.IntN(6) * min(1, len(grid)) { // cut a piece in two
			p, d := x.pieces[r.IntN(len(x.pieces))], r.IntN(len(grid))
			if n := r.IntN(p.size[d]); n > 0 {
				q := piece{start: slices.Clone(p.start), size: slices.Clone(p.size)}
				p.size[d], q.size[d], q.start[d] = n, q.size[d]-n, q.start[d]+n
				x.pieces = append(x.pieces, q)
			}
		}
		if p := x.pieces[r.IntN(len(x.pieces))]; len(grid) > 0 && r.IntN(2) == 0 {
			d := r.IntN(len(grid))
			p.start[d] = r.IntN(grid[d])
			p.size[d] = r.IntN(grid[d] - p.start[d] + 1)
		}
		count, once := map[string]int{}, true
		for _, p := range x.pieces {
			n, _ := numel(p.size)
			for i := range n {
				at := slices.Clone(p.start)
				for d := len(grid) - 1; d >= 0; d-- {
					at[d] += i % p.size[d]
					i /= p.size[d]
				}
				count[fmt.Sprint(at)]++
				once = once && count[fmt.Sprint(at)] == 1
			}
		}
		n, _ := numel(grid)
		if once = once && len(count) == n; once {
			yes++
		}
		if err := x.covered(); (err == nil) != once {
			t.Fatalf("%v of %v: %v, want %v", x.pieces, grid, err, once)
		}
	}
	if yes < 100 {
		t.Errorf("only %d are covered", yes)
	}
}
