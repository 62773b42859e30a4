package kernel

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/device"
)

// TestPTXMatchesSources compares the hashes of every source and of the PTX and cubins that
// scripts/build-ptx built from them with kernels.sha256. It needs no tools.
func TestPTXMatchesSources(t *testing.T) {
	f, err := os.Open("kernels.sha256")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	listed := map[string]bool{}
	ptx := map[string]string{}
	for _, f := range Families() {
		ptx["ptx "+f.Name] = f.ptx
	}
	for s := bufio.NewScanner(f); s.Scan(); {
		sum, name, _ := strings.Cut(s.Text(), "  ")
		data := []byte(ptx[name])
		if len(data) == 0 {
			if data, err = os.ReadFile(name); err != nil {
				t.Fatal(err)
			}
		}
		if have := sha256.Sum256(data); hex.EncodeToString(have[:]) != sum {
			t.Errorf("%s is not what kernels.sha256 was made of: run scripts/build-ptx", name)
		}
		listed[name] = true
	}
	names := slices.Collect(maps.Keys(ptx))
	for _, pattern := range []string{"*.cu", "*.cuh", "kernels.sm_*.zst"} {
		sources, _ := filepath.Glob(pattern)
		if len(sources) == 0 {
			t.Errorf("no %s", pattern)
		}
		names = append(names, sources...)
	}
	for _, name := range names {
		if !listed[name] {
			t.Errorf("%s is not in kernels.sha256: run scripts/build-ptx", name)
		}
	}
}

func TestTable(t *testing.T) {
	want := map[string][]Param{
		"fill":      {{0, 16}, {16, 8}, {24, 4}},
		"sum_parts": {{0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 4}, {36, 4}},
		"row_norm":  {{0, 16}, {16, 8}, {24, 8}, {32, 16}, {48, 16}, {64, 16}, {80, 4}, {84, 4}, {88, 4}},
	}
	for i, k := range Table() {
		if k.Index != i || len(k.Params) == 0 {
			t.Errorf("%s is number %d with %d parameters, at %d", k.Name, k.Index, len(k.Params), i)
		}
		last := k.Params[len(k.Params)-1]
		if end := last.Offset + last.Bytes; end > maxArgs {
			t.Errorf("the parameters of %s have %d bytes; a call has room for %d", k.Name, end, maxArgs)
		}
		for j, p := range want[k.Name] {
			if k.Params[j] != p {
				t.Errorf("parameter %d of %s is at %v, want %v", j, k.Name, k.Params[j], p)
			}
		}
		delete(want, k.Name)
	}
	if len(want) > 0 {
		t.Errorf("not in the table: %v", want)
	}
}

// TestFamilies checks that each family is a separate text with exactly the kernels that a job
// needs together.
func TestFamilies(t *testing.T) {
	count := 0
	for i, f := range Families() {
		target := ".target sm_80\n"
		if strings.HasPrefix(f.Name, "wgmma") {
			target = ".target sm_90a\n"
		}
		if text := f.PTX(); text[len(text)-1] != 0 || !strings.Contains(string(text), target) {
			t.Errorf("%s is not text of %q with a zero at its end", f.Name, target)
		}
		if f.Index != i || len(f.Kernels) == 0 {
			t.Errorf("%s is number %d with %d kernels, at %d", f.Name, f.Index, len(f.Kernels), i)
		}
		count += len(f.Kernels)
	}
	if count != len(Table()) {
		t.Errorf("families have %d kernels, the table %d", count, len(Table()))
	}
	same := func(names ...string) {
		for _, name := range names {
			if f, want := byName(name).Family, byName(names[0]).Family; f != want {
				t.Errorf("%s is of %s, %s of %s", name, f.Name, names[0], want.Name)
			}
		}
	}
	all := map[*Family]string{byName("fill").Family: Base}
	for _, s := range allAttention() {
		same(s.forward.entry.name, s.dq.entry.name, s.dkv.entry.name)
		all[s.forward.entry.kernel().Family] = s.forward.entry.name
	}
	for _, s := range onGroups {
		for _, e := range []*entry{s.nt, s.nn, s.tn} {
			all[e.kernel().Family] = e.name
		}
	}
	for _, e := range normGrads {
		all[e.entry.kernel().Family] = e.entry.name
	}
	if len(all) != len(Families()) {
		t.Errorf("%d families, want %d", len(Families()), len(all))
	}
	for f, name := range all {
		if f.Name != name {
			t.Errorf("the family of %s is %s", name, f.Name)
		}
	}
	same("fill", "attention_delta", "row_norm", "adamw8", "cast64", "decode_nf4", "decode_int8")
}

// TestImages checks that there is a cubin of each family for GPUs of compute capability 8.x and 9.x,
// before the PTX, which is all there is for others.
func TestImages(t *testing.T) {
	for _, f := range Families() {
		for major, want := range map[int]int{7: 1, 8: 2, 9: 2, 10: 1, 12: 1} {
			if major == 8 && !f.RunsOn(8, 0) {
				want = 1
			}
			images := f.Images(major)
			if len(images) != want || !bytes.Equal(images[want-1], f.PTX()) || want == 2 && (!bytes.HasPrefix(images[0], []byte("\x7fELF")) || !bytes.Contains(images[0], []byte(f.Kernels[0].Name))) {
				t.Errorf("%s for %d.0: %d images, want %d", f.Name, major, len(images), want)
			}
		}
	}
}

// TestForHeads checks the family returned for attention, given sizes only.
func TestForHeads(t *testing.T) {
	for _, a := range []struct {
		want string
		typ  device.DType
		d    int
		cap  float32
		drop uint32
		mma  string // with MMA, if it differs
	}{
		{"flash_bf16_64", device.BF16, 64, 0, 0, ""}, {"flash_f16_96", device.F16, 72, 0, 0, ""}, {"attention_64", device.F32, 64, 0, 0, ""},
		{"attention_128", device.BF16, 100, 0, 0, ""}, {"attention_128", device.BF16, 128, 30, 0, "flash_cap_bf16_128"},
		{"attention_64", device.F16, 64, 30, 0, "flash_cap_f16_128"}, {"attention_256", device.BF16, 256, 0, 0, "flash_bf16_256"},
		{"attention_256", device.F16, 136, 50, 0, "flash_f16_256"}, {"attention_256", device.F32, 256, 0, 0, ""}, {"attention_256", device.BF16, 250, 0, 0, ""},
		{"attention_256", device.BF16, 256, 0, 1, ""}, {"attention_128", device.BF16, 128, 9, 1, ""},
		{"flash_bf16_64", device.BF16, 8, 0, 0, ""}, {"flash_f16_128", device.F16, 128, 0, 0, ""},
		{"flash_drop_bf16_64", device.BF16, 64, 0, 1, ""}, {"attention_64", device.F32, 9, 0, 1, ""}, {"attention_128", device.F16, 128, 0, 1, ""},
	} {
		mma := cmp.Or(a.mma, a.want)
		hopper := strings.NewReplacer("flash_bf16_64", "wgmma_bf16_64", "flash_f16_64", "wgmma_f16_64", "flash_bf16_128", "wgmma_bf16_128", "flash_f16_128", "wgmma_f16_128").Replace(mma)
		for c, want := range []string{Auto: a.want, MMA: mma, WGMMA: hopper} {
			if f := ForHeads(Choice(c), a.typ, &device.Attn{D: a.d, Cap: a.cap, Drop: device.Dropout{Drop: a.drop}}); f.Name != want {
				t.Errorf("heads of %d %v by choice %d: %s, want %s", a.d, a.typ, c, f.Name, want)
			}
		}
	}
}

// dropped is a Launcher that only counts launches.
type dropped struct{ calls int }

func (d *dropped) Launch(*Call) { d.calls++ }

// TestNothingIsAllocated issues operations with every kind of parameter and checks that they do
// not allocate.
func TestNothingIsAllocated(t *testing.T) {
	d := &dropped{}
	o := &Ops{To: d, Work: device.OfF32(make([]float32, 1<<16))}
	x := device.OfF32(make([]float32, 64*128))
	m, v, src := device.Matrix(x, 64, 128), x.Slice(0, 128), []device.Buffer{x, x}
	stat := x.Slice(0, 64)
	n := testing.AllocsPerRun(10, func() {
		o.AdamW(x, x, x, x, x, device.AdamW{})
		o.LayerNormGrad(m, v, v, m, m, v, stat, stat, true)
		o.SumInto(x, src)
		o.Rope(m, device.Rope{T: 64, D: 64, Theta: 10000}, false)
		o.Attention(m, x.Slice(0, 128), m, m, m, device.Attn{B: 1, T: 64, H: 2, KV: 2, D: 64})
		o.Zero(x)
	})
	if n != 0 || d.calls == 0 {
		t.Errorf("%v allocations in %d launches", n, d.calls)
	}
}

// TestWorkLenIsEnough checks WorkLen for matrices of every size.
func TestWorkLenIsEnough(t *testing.T) {
	for rows := 1; rows < 1<<22; rows = rows*5/4 + 1 {
		for cols := 1; cols < 1<<20; cols = cols*5/4 + 1 {
			for results, cut := range []func(rows, cols int) (count, each int){1: columnParts, 2: normParts} {
				if cut == nil || results == 2 && cols > MaxNorm {
					continue
				}
				if count, each := cut(rows, cols); count > 1 && results*count*cols > WorkLen || count*each < rows || (count-1)*each >= rows {
					t.Fatalf("(%d, %d): %d parts of %d rows for %d results; there is room for %d floats", rows, cols, count, each, results, WorkLen)
				}
			}
		}
	}
}

// TestSharedFitsEveryGPU checks the limit of 99 KiB per block for compute capability 8.6 and 8.9,
// the lowest limit from 8.0 on, and that of 227 KiB for 9.0.
func TestSharedFitsEveryGPU(t *testing.T) {
	for k, n := range Shared() {
		if n > 227<<10 || n > 99<<10 && k.Family.RunsOn(8, 0) {
			t.Errorf("%s asks for %d bytes", k.Name, n)
		}
	}
}

// panics returns the value with which f panics.
func panics(f func()) (said any) {
	defer func() { said = recover() }()
	f()
	return nil
}

func TestRefuses(t *testing.T) {
	o := &Ops{To: &dropped{}}
	x := device.OfF32(make([]float32, 6))
	m, ints := device.Matrix(x, 2, 3), device.OfI32(make([]int32, 6))
	big := device.Attn{B: 1, T: 1, H: 1, KV: 1, D: MaxAttn + 1}
	for what, f := range map[string]func(){
		"lengths":          func() { o.AddTo(x, x, x.Slice(0, 5)) },
		"integers":         func() { o.Mul(ints, ints, ints) },
		"a shape":          func() { o.SumRows(x.Slice(0, 2), m) },
		"a transpose":      func() { o.SumRows(x.Slice(0, 2), m.T()) },
		"a cast to int32":  func() { o.Cast(ints, x) },
		"no sources":       func() { o.SumInto(x, nil) },
		"an odd head":      func() { o.Rope(m, device.Rope{T: 1, D: 3}, false) },
		"a wide head":      func() { o.Attention(device.Mat{}, x.Slice(0, 1), device.Mat{}, device.Mat{}, device.Mat{}, big) },
		"gradients at one": func() { o.GateGrad(m, m, m, m, m, device.Silu) },
		"no work space": func() {
			o.SumRows(x.Slice(0, 1), device.Matrix(device.OfF32(make([]float32, 100)), 100, 1))
		},
	} {
		if panics(f) == nil {
			t.Errorf("%s: not refused", what)
		}
	}
}
