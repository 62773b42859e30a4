package cpu

import (
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// TestWorkspaceIsEnough checks that Reserve allocates what Workspace returns, that this is enough
// for every kernel of the given sizes, and that it is freed.
func TestWorkspaceIsEnough(t *testing.T) {
	nightly.Long(t)
	for _, s := range []device.Sizes{
		{Type: device.F32, Rows: 70, Width: 48, Vocab: 300, Widest: 300, Attn: device.Attn{T: 35, D: 12}, Rope: true},
		{Type: device.BF16, Rows: 600, Width: 130, Vocab: 1030, Widest: 1030, Attn: device.Attn{T: 300, D: 26}, Rope: true},
		{Type: device.BF16, Rows: 600, Width: 130, Vocab: 1030, Widest: 1030, Attn: device.Attn{T: 300, D: 26}, Rope: true, Groups: true},
		{Type: device.F32, Rows: 40, Width: 48, Vocab: 48, Widest: 48, Attn: device.Attn{T: 20, D: 12}, Rope: true, Groups: true},
		{Type: device.F16, Rows: 33, Width: 64, Vocab: 3100, Widest: 3100, Attn: device.Attn{T: 33, D: 32}, Rope: true},
	} {
		const workers = 3
		d := NewHost(workers)
		if err := d.Reserve(s); err != nil {
			t.Fatal(err)
		}
		q := d.NewQueue("compute")
		taken := func() int64 { return d.Usage().Live[device.Workspace] }
		want := Workspace(workers, 1, s)
		if got := taken(); got != want {
			t.Errorf("%+v: %d bytes reserved, Workspace says %d", s, got, want)
		}
		a := device.Attn{B: s.Rows / s.Attn.T, T: s.Attn.T, H: 2, KV: 1, D: s.Attn.D, Scale: 1}
		for _, c := range calls(s.Type, s.Rows, s.Width, s.Vocab, a) {
			c.run(q)
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			if got := taken(); got != want {
				t.Errorf("%+v: %s needs %d bytes, reserved are %d", s, c.name, got, want)
			}
		}
		rng := rand.New(rand.NewPCG(1, 1))
		n := max(s.Widest, s.Rows)
		for _, dims := range [][3]int{{s.Rows, n, s.Width}, {s.Rows, s.Width, n}, {n, s.Width, s.Rows}, {s.Rows, s.Width, s.Width}} {
			for _, c := range []device.DType{s.Type, device.F32} {
				p := newProduct(rng, dims[0], dims[1], dims[2], [4]device.DType{c, s.Type, s.Type}, false, true, false, false, 0)
				q.MatMul(p.c.Mat, p.a, p.b, p.bias, p.add)
				if err := q.Wait(); err != nil {
					t.Fatal(err)
				}
				if got := taken(); got != want {
					t.Errorf("%+v: a product of %v needs %d bytes, reserved are %d", s, dims, got, want)
				}
			}
		}
		if s.Groups {
			groupsOf(q, s, rng)
			if err := q.Wait(); err != nil || taken() != want {
				t.Errorf("%+v: products of groups need %d bytes, reserved are %d: %v", s, taken(), want, err)
			}
		}
		q.Close()
		d.Close()
		if u := d.Usage(); u.Live.Total() != 0 || u.Peak[device.Workspace] != want {
			t.Errorf("%+v: after Close: %+v", s, u)
		}
	}
}

// groupsOf issues products of small groups and one large group, of the widest matrices.
func groupsOf(q *Queue, s device.Sizes, rng *rand.Rand) {
	few := min(s.Rows, 127)
	offsets, rows := offsetsOf([]int{few, 8, 0, few - 1, few, 8, 1, s.Rows})
	for _, dims := range [][2]int{{s.Widest, s.Width}, {s.Width, s.Widest}} {
		x, y := newMat(s.Type, rows, dims[1]).normal(rng, 0, 1), newMat(s.Type, rows, dims[0]).normal(rng, 0, 1)
		_, w := groupOf(s.Type, 8, dims[0], dims[1])
		_, dw := groupOf(device.F32, 8, dims[0], dims[1])
		q.MatMulGroups(y.Mat, x.Mat, w.T(), offsets.Buf, false)
		q.MatMulGroups(x.Mat, y.Mat, w, offsets.Buf, true)
		q.WeightGradGroups(dw, y.Mat, x.Mat, offsets.Buf, false)
	}
}

// TestWorkspaceGrows checks that a kernel without reservation gets its working space, accounted for
// and freed.
func TestWorkspaceGrows(t *testing.T) {
	d := NewHost(1)
	q := d.NewQueue("compute")
	if got := d.Usage().Live[device.Workspace]; got != 0 {
		t.Errorf("%d bytes before the first kernel", got)
	}
	if got := len(q.w.Floats(1000)); got != 1000 || d.Usage().Live[device.Workspace] != 4000 {
		t.Errorf("%d floats, %d bytes accounted", got, d.Usage().Live[device.Workspace])
	}
	q.Close()
	d.Close()
	if u := d.Usage(); u.Live.Total() != 0 {
		t.Errorf("after Close: %+v", u.Live)
	}
}
