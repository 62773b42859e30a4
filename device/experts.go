package device

import "fmt"

// A mixture of experts sends each of R rows to K of E experts: pair i*K+s is choice s of row i, in
// ascending order of experts. Sort orders the pairs by expert, so that the rows of an expert are a
// group of consecutive rows; only the device knows the sizes of groups.

// MatGroup is a matrix for each group of rows, all of Mat's shape and within its Buf: that of group g
// begins g*Stride elements after the first.
type MatGroup struct {
	Mat
	Stride int // elements, not bytes; at least those of one matrix
}

// T returns the transposed operands with the same memory.
func (m MatGroup) T() MatGroup { m.Trans = !m.Trans; return m }

// At returns the matrix of group g.
func (m MatGroup) At(g int) Mat {
	end := g*m.Stride + (m.Rows-1)*m.Ld + m.Cols
	m.Buf = m.Buf.Slice(g*m.Stride, end)
	return m.Mat
}

// Check panics unless n matrices are in the buffer, without overlapping.
func (m MatGroup) Check(op string, n int) {
	one := (m.Rows-1)*m.Ld + m.Cols
	if m.Rows < 1 || m.Cols < 1 || m.Ld < m.Cols || n > 1 && m.Stride < one || n > 0 && (n-1)*m.Stride+one > m.Buf.N {
		panic(fmt.Sprintf("device: %s with %d matrices (%d, %d), %d apart, rows %d apart, in %d elements", op, n, m.Rows, m.Cols, m.Stride, m.Ld, m.Buf.N))
	}
}

// Score is how a router turns a row's logits into scores.
type Score uint8

// The softmax over all experts; the logistic function of each logit.
const (
	Softmax Score = iota
	Sigmoid
)

// MaxTopK is the largest TopK, Groups and GroupBest of a Router.
const MaxTopK = 64

// Router selects TopK experts by their scores and weighs them by these. Of equal scores, the lower
// index is selected. Groups are the parts of equal size of consecutive experts.
type Router struct {
	Score     Score
	TopK      int
	Bias      bool    // a correction is added to the scores for selecting, not for weighing
	Groups    int     // experts are selected from the best TopGroups groups; 0 or 1: from all
	TopGroups int     //
	GroupBest int     // a group's score is the sum of its GroupBest largest: 2 in DeepSeek-V3, 1 in V2
	Normalize bool    // weights are divided by their sum or by Floor, whichever is larger
	Floor     float32 //
	Scale     float32 // factor of the weights
}

// Check panics if the router cannot select from that many experts.
func (r Router) Check(op string, experts int) {
	grouped := r.Groups > 1
	if r.TopK < 1 || r.TopK > min(MaxTopK, experts) ||
		grouped && (experts%r.Groups != 0 || r.Groups > MaxTopK || r.TopGroups < 1 || r.TopGroups > r.Groups || r.GroupBest < 1 ||
			r.GroupBest > min(MaxTopK, experts/r.Groups) || r.TopK > r.TopGroups*(experts/r.Groups)) {
		panic(fmt.Sprintf("device: %s of %d experts by %+v", op, experts, r))
	}
}

// ByLogits reports whether logits order experts as their scores do.
func (r Router) ByLogits() bool { return !r.Bias && r.Groups <= 1 }
