package optim

import (
	"fmt"
	"math"

	"zeroth/device"
)

// Whole is a rule whose update of a matrix depends on all of its elements. Move and
// Apply are elementwise, on any pieces of it; Turn, between them, has it whole.
type Whole interface {
	Rule
	// Input is the type of what Turn works on.
	Input() device.DType
	// Move moves a piece's state by its gradient and sets x to the piece's part of what
	// Turn is given.
	Move(q Ops, h Hyper, p Piece, x device.Buffer)
	// Turn replaces x, a matrix, by its update, in memory of Work(x.Rows, x.Cols) bytes.
	Turn(q MatrixOps, mem *device.Arena, x device.Mat)
	Work(rows, cols int) int
	// Apply updates a piece by x, its part of what Turn left.
	Apply(q Ops, h Hyper, p Piece, x device.Buffer)
	// Scale is what the learning rate of a matrix is multiplied by.
	Scale(rows, cols int) float64
	// Flops is the operations of the products of Turn.
	Flops(rows, cols int) float64
}

// MatrixOps are the kernels that rules of whole matrices need beside those.
type MatrixOps interface {
	Axpby(y, p, a, b device.Buffer, alpha, beta float32)
	// Normalize divides x by its Euclidean norm rounded to x's type, or by eps where that
	// is more; acc is a device.Exact of work space.
	Normalize(x, acc device.Buffer, eps float32)
	// CopyBlock copies a matrix to another of its shape and type; either may be part of a
	// larger one.
	CopyBlock(dst, src device.Mat)
	// MatMul sets c = a·b, with sums in float32 whose order depends on the shape alone.
	MatMul(c, a, b device.Mat, bias device.Buffer, add bool)
}

// Muon moves a matrix along its momentum with all singular values made about equal, by
// steps of a Newton-Schulz iteration (Jordan et al., kellerjordan.github.io/posts/muon),
// with decoupled decay. It is torch.optim.Muon, which it follows in the order and the
// types of what it computes: the iteration is in bf16 with sums in float32.
//
//	m = Momentum*m + (1-Momentum)*g;  x = m, or with Nesterov (1-Momentum)*g + Momentum*m
//	X = bf16(x) / max(|x|, Eps);      then Steps times, of X or, where that is tall, its transpose:
//	A = X·Xᵀ;  X = a*X + (b*A + c*A·A)·X
//	w = w*(1-LR*Decay) - LR*Scale*X
type Muon struct {
	Momentum     float64
	Nesterov     bool
	Coefficients [3]float64 // a, b, c
	Eps          float64
	Steps        int
	Adjust       Adjust
}

// Adjust is how the learning rate follows from a matrix's shape (rows, cols), as stored.
type Adjust uint8

const (
	Original          Adjust = iota // sqrt(max(1, rows/cols)), Keller Jordan's
	MatchRMSAdamW                   // 0.2 sqrt(max(rows, cols)), Moonshot's (arXiv 2502.16982)
	SpectralUnclamped               // sqrt(rows/cols), Jeremy Bernstein's
)

// Coefficients are those of Keller Jordan, torch's default.
var Coefficients = [3]float64{3.4445, -4.7750, 2.0315}

// States is PyTorch's name.
func (Muon) States() []string { return []string{"momentum_buffer"} }

// Types is float32.
func (Muon) Types() []device.DType { return []device.DType{device.F32} }

// Input is the type of the iteration.
func (Muon) Input() device.DType { return device.BF16 }

// Move is the momentum.
func (r Muon) Move(q Ops, h Hyper, p Piece, x device.Buffer) {
	m, mu, none := p.State[0], float32(r.Momentum), device.Buffer{}
	add := float32((1 - r.Momentum) * h.GradScale)
	if !r.Nesterov {
		q.Axpby(m, x, m, p.Grad, mu, add)
		return
	}
	q.Axpby(m, none, m, p.Grad, mu, add)
	q.Axpby(x, none, p.Grad, m, add, mu)
}

// Turn is the Newton-Schulz iteration.
func (r Muon) Turn(q MatrixOps, mem *device.Arena, x device.Mat) {
	defer mem.Release(mem.Mark())
	none, kind := device.Buffer{}, x.Buf.Type
	short, long, wide := sides(x.Rows, x.Cols)
	q.Normalize(x.Buf, mem.Take(device.I64, device.ExactLen), float32(r.Eps))
	square := func() device.Mat { return device.Matrix(mem.Take(kind, short*short), short, short) }
	gram, sum := square(), square()
	product := mem.Take(device.F32, short*long)
	a, b, c := float32(r.Coefficients[0]), float32(r.Coefficients[1]), float32(r.Coefficients[2])
	for range r.Steps {
		gramSquared := device.Matrix(product, short, short)
		step := device.Matrix(product, x.Rows, x.Cols)
		if wide {
			q.MatMul(gram, x, x.T(), none, false)
		} else {
			q.MatMul(gram, x.T(), x, none, false)
		}
		q.MatMul(gramSquared, gram, gram, none, false)
		q.Axpby(sum.Buf, none, gram.Buf, gramSquared.Buf, b, c)
		if wide {
			q.MatMul(step, sum, x, none, false)
		} else {
			q.MatMul(step, x, sum.T(), none, false)
		}
		q.Axpby(x.Buf, none, x.Buf, step.Buf, a, 1)
	}
}

// sides are those of a matrix, and whether the iteration is of it, not its transpose.
func sides(rows, cols int) (short, long int, wide bool) {
	return min(rows, cols), max(rows, cols), rows <= cols
}

// Work is two squares of the shorter side in bf16, a product in float32, and a norm.
func (r Muon) Work(rows, cols int) int {
	short, long, _ := sides(rows, cols)
	round := func(bytes int) int { return (bytes + 63) / 64 * 64 } // as an arena does
	return 2*round(2*short*short) + round(4*short*long) + round(8*device.ExactLen)
}

// Apply is the step along what Turn left.
func (r Muon) Apply(q Ops, h Hyper, p Piece, x device.Buffer) {
	q.Axpby(p.Master, p.Param, p.Master, x, shrink(h), float32(-h.LR*h.Scale))
}

// Scale is Adjust's.
func (r Muon) Scale(rows, cols int) float64 {
	A, B := float64(rows), float64(cols)
	switch r.Adjust {
	case Original:
		return math.Sqrt(max(1, A/B))
	case MatchRMSAdamW:
		return 0.2 * math.Sqrt(max(A, B))
	case SpectralUnclamped:
		return math.Sqrt(A / B)
	}
	panic(fmt.Sprintf("optim: Muon adjusts learning rates in way %d", r.Adjust))
}

// Flops is three products a step.
func (r Muon) Flops(rows, cols int) float64 {
	short, long, _ := sides(rows, cols)
	m, n := float64(short), float64(long)
	return float64(r.Steps) * (4*m*m*n + 2*m*m*m)
}
