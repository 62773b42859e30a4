package optim

import (
	"fmt"
	"math"

	"zeroth/device"
)

// Whole is a rule that updates a matrix from all of its elements. Move, Aim and Apply are
// elementwise and work on any pieces; Orthogonalize, before Apply, needs the whole matrix.
type Whole interface {
	Rule
	// Input returns the type of the matrix that Orthogonalize works on.
	Input() device.DType
	// Move updates a piece's state from its gradient.
	Move(q Ops, h Hyper, p Piece)
	// Aim sets x to the piece's part of the matrix for Orthogonalize, from its gradient and
	// the state after Move.
	Aim(q Ops, h Hyper, p Piece, x device.Buffer)
	// Orthogonalize replaces the matrix x by its update, using Work(x.Rows, x.Cols) bytes of
	// mem.
	Orthogonalize(q MatrixOps, mem *device.Arena, x device.Mat)
	// Work returns the bytes of memory that Orthogonalize needs for a matrix.
	Work(rows, cols int) int
	// Apply updates a piece by x, its part of the result of Orthogonalize.
	Apply(q Ops, h Hyper, p Piece, x device.Buffer)
	// Scale returns the factor for the learning rate of a matrix.
	Scale(rows, cols int) float64
	// Flops returns the number of operations in the matrix products of Orthogonalize.
	Flops(rows, cols int) float64
}

// MatrixOps are the kernels that rules for whole matrices need in addition to Ops.
type MatrixOps interface {
	Axpby(y, p, a, b device.Buffer, alpha, beta float32)
	// Normalize divides x by its Euclidean norm, rounded to x's type, or by eps if that is
	// larger; acc is work space of device.ExactLen elements.
	Normalize(x, acc device.Buffer, eps float32)
	// CopyBlock copies a matrix to another of the same shape and type; either may be a block
	// of a larger one.
	CopyBlock(dst, src device.Mat)
	// MatMul sets c = a·b, with float32 sums in an order that depends only on the shape.
	MatMul(c, a, b device.Mat, bias device.Buffer, add bool)
}

// Muon moves a matrix along its momentum after making all singular values about equal by
// Newton-Schulz iteration (Jordan et al., kellerjordan.github.io/posts/muon), with decoupled
// weight decay. It follows torch.optim.Muon in the order and types of all operations: the
// iteration is in bf16 with float32 sums.
//
//	m = Momentum*m + (1-Momentum)*g;  x = m, or with Nesterov (1-Momentum)*g + Momentum*m
//	X = bf16(x) / max(|x|, Eps);      then Steps times, on X or, if X is tall, on its transpose:
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

// Adjust selects how the learning rate depends on a matrix's shape (rows, cols), as stored.
type Adjust uint8

const (
	Original          Adjust = iota // sqrt(max(1, rows/cols)), Keller Jordan's
	MatchRMSAdamW                   // 0.2 sqrt(max(rows, cols)), Moonshot's (arXiv 2502.16982)
	SpectralUnclamped               // sqrt(rows/cols), Jeremy Bernstein's
)

// Coefficients are Keller Jordan's, the default of torch.
var Coefficients = [3]float64{3.4445, -4.7750, 2.0315}

// States returns PyTorch's name.
func (Muon) States() []string { return []string{"momentum_buffer"} }

// Types returns float32.
func (Muon) Types() []device.DType { return []device.DType{device.F32} }

// Input returns bf16, the type of the iteration.
func (Muon) Input() device.DType { return device.BF16 }

// Move updates the momentum.
func (r Muon) Move(q Ops, h Hyper, p Piece) {
	q.Axpby(p.State[0], device.Buffer{}, p.State[0], p.Grad, float32(r.Momentum), r.add(h))
}

// Aim sets x to the momentum or, with Nesterov, to a step further.
func (r Muon) Aim(q Ops, h Hyper, p Piece, x device.Buffer) {
	if r.Nesterov {
		q.Axpby(x, device.Buffer{}, p.Grad, p.State[0], r.add(h), float32(r.Momentum))
	} else {
		q.Axpby(x, device.Buffer{}, p.State[0], p.State[0], 1, 0)
	}
}

// add returns the factor of a gradient in the momentum.
func (r Muon) add(h Hyper) float32 { return float32((1 - r.Momentum) * h.GradScale) }

// Orthogonalize runs the Newton-Schulz iteration.
func (r Muon) Orthogonalize(q MatrixOps, mem *device.Arena, x device.Mat) {
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

// sides returns the shorter and longer side of a matrix, and whether the iteration runs on
// the matrix itself rather than on its transpose.
func sides(rows, cols int) (short, long int, wide bool) {
	return min(rows, cols), max(rows, cols), rows <= cols
}

// Work returns the bytes of two squares of the shorter side in bf16, a product in float32,
// and a norm.
func (r Muon) Work(rows, cols int) int {
	short, long, _ := sides(rows, cols)
	round := func(bytes int) int { return (bytes + 63) / 64 * 64 } // as an arena does
	return 2*round(2*short*short) + round(4*short*long) + round(8*device.ExactLen)
}

// Apply steps along the result of Orthogonalize.
func (r Muon) Apply(q Ops, h Hyper, p Piece, x device.Buffer) {
	q.Axpby(p.Master, p.Param, p.Master, x, shrink(h), float32(-h.LR*h.Scale))
}

// Scale returns the factor selected by Adjust.
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
	panic(fmt.Sprintf("optim: unknown adjustment %d of Muon's learning rate", r.Adjust))
}

// Flops counts three products per step.
func (r Muon) Flops(rows, cols int) float64 {
	short, long, _ := sides(rows, cols)
	m, n := float64(short), float64(long)
	return float64(r.Steps) * (4*m*m*n + 2*m*m*m)
}
