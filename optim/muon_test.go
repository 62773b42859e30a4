package optim

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
)

//go:embed testdata/muon.json
var muonJSON []byte

// torchMuon is a case of testdata/muon.py.
type torchMuon struct {
	Shape       [2]int
	LR          float64
	WeightDecay float64 `json:"weight_decay"`
	Momentum    float64
	Nesterov    bool
	Steps       int    `json:"ns_steps"`
	Adjust      string `json:"adjust_lr_fn"`

	Weight  []float64
	Float32 []float64 `json:"weight_float32"`
	Buffer  []float64 `json:"momentum_buffer"`
}

func (c torchMuon) rule() Muon {
	adjust := map[string]Adjust{"original": Original, "match_rms_adamw": MatchRMSAdamW, "spectral_unclamped": SpectralUnclamped}[c.Adjust]
	return Muon{Momentum: c.Momentum, Nesterov: c.Nesterov, Coefficients: Coefficients, Eps: 1e-7, Steps: c.Steps, Adjust: adjust}
}

// numbers are those of testdata/muon.py.
func numbers(n, t int) device.Buffer {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32((i*7919+t*104729+i*i*31)%2003-1001) / 256
	}
	return device.OfF32(x)
}

// run updates a matrix in so many steps, as two pieces, with the iteration in a type.
// Param is the matrix's own type.
func (c torchMuon) run(t *testing.T, steps int, kind device.DType) (w, m []float32) {
	t.Helper()
	dev := cpu.NewHost(2)
	defer dev.Close()
	q := dev.NewQueue("update")
	defer q.Close()
	r, rows, cols := c.rule(), c.Shape[0], c.Shape[1]
	n := rows * cols
	alloc := func(kind device.DType, n int) device.Buffer {
		b, err := dev.Alloc(kind, n, device.States)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	master, grad, state, x := numbers(n, 0), alloc(device.F32, n), alloc(device.F32, n), alloc(kind, n)
	for i := range master.F32() {
		master.F32()[i] /= 8
	}
	work := device.NewArena(alloc(device.F32, r.Work(rows, cols)/2)) // twice that: also of float32
	h := Hyper{LR: c.LR, Decay: c.WeightDecay, GradScale: 1, Scale: r.Scale(rows, cols)}
	halves := [][2]int{{0, n / 3}, {n / 3, n}}
	piece := func(lo, hi int) Piece {
		return Piece{Master: master.Slice(lo, hi), Grad: grad.Slice(lo, hi), State: []device.Buffer{state.Slice(lo, hi)}}
	}
	for step := range steps {
		q.Copy(grad, numbers(n, step+1))
		for _, at := range halves {
			r.Move(q, h, piece(at[0], at[1]), x.Slice(at[0], at[1]))
		}
		r.Turn(q, work, device.Matrix(x, rows, cols))
		for _, at := range halves {
			r.Apply(q, h, piece(at[0], at[1]), x.Slice(at[0], at[1]))
		}
	}
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	if want := r.Work(rows, cols); kind == device.BF16 && work.Peak() != want {
		t.Errorf("%v: %d bytes of work space, want %d", c.Shape, work.Peak(), want)
	}
	return master.F32(), state.F32()
}

// Ten steps are torch.optim.Muon's. With the iteration in float32 they are equal but for
// the order of sums. In bf16 an element of an update differs by some roundings, of 2^-8
// each, which the next iterations enlarge by up to 3.4 times a step.
func TestMuonIsPyTorchs(t *testing.T) {
	var all struct {
		Steps int
		Cases []torchMuon
	}
	if err := json.Unmarshal(muonJSON, &all); err != nil || len(all.Cases) == 0 {
		t.Fatalf("%d cases: %v", len(all.Cases), err)
	}
	for _, c := range all.Cases {
		t.Run(fmt.Sprint(c.Shape, c.Adjust), func(t *testing.T) {
			moved := c.LR * c.rule().Scale(c.Shape[0], c.Shape[1]) * float64(all.Steps) // about what an element of w can
			w, _ := c.run(t, all.Steps, device.F32)
			far(t, "weights of float32", w, c.Float32, 1e-5*moved)
			w, m := c.run(t, all.Steps, device.BF16)
			far(t, "momentum", m, c.Buffer, 1e-5)
			far(t, "weights", w, c.Weight, 0.01*moved)
		})
	}
}

func far(t *testing.T, what string, got []float32, want []float64, most float64) {
	t.Helper()
	worst := 0.0
	for i, x := range want {
		worst = max(worst, math.Abs(float64(got[i])-x))
	}
	t.Logf("%s: %.2g apart, at most %.2g", what, worst, most)
	if !(worst <= most) {
		t.Errorf("%s differ by %.2g, at most %.2g", what, worst, most)
	}
}

// BenchmarkMuonTurn is Turn of a matrix on one worker, beside the product of its shape
// that Turn begins with: both in operations a second, by which Turn's limit is known.
func BenchmarkMuonTurn(b *testing.B) {
	r := Muon{Coefficients: Coefficients, Eps: 1e-7, Steps: 5}
	for _, shape := range [][2]int{{448, 448}, {1792, 448}, {768, 3072}, {2048, 2048}} {
		rows, cols := shape[0], shape[1]
		short, long := float64(min(rows, cols)), float64(max(rows, cols))
		dev := cpu.NewHost(1)
		q := dev.NewQueue("update")
		alloc := func(kind device.DType, n int) device.Buffer {
			x, err := dev.Alloc(kind, n, device.Updates)
			if err != nil {
				b.Fatal(err)
			}
			return x
		}
		x, work := alloc(device.BF16, rows*cols), device.NewArena(alloc(device.F32, r.Work(rows, cols)/4))
		q.Cast(x, numbers(rows*cols, 1))
		m := device.Matrix(x, rows, cols)
		gram := device.Matrix(alloc(device.BF16, int(short*short)), int(short), int(short))
		for _, c := range []struct {
			name  string
			flops float64
			run   func()
		}{
			{"product", 2 * short * short * long, func() {
				if rows > cols {
					q.MatMul(gram, m.T(), m, device.Buffer{}, false)
				} else {
					q.MatMul(gram, m, m.T(), device.Buffer{}, false)
				}
			}},
			{"turn", r.Flops(rows, cols), func() { r.Turn(q, work, m) }},
		} {
			b.Run(fmt.Sprintf("%dx%d/%s", rows, cols, c.name), func(b *testing.B) {
				for b.Loop() {
					c.run()
					if err := q.Wait(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(c.flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
		q.Close()
		dev.Close()
	}
}
