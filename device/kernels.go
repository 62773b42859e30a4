package device

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// The types of kernels' arguments: plain values, so that the packages that declare the kernels they
// need and the devices that implement them share them without importing each other.

// Mat is a row-major matrix view of a buffer: element (i, j) is Buf[i*Ld+j] for i < Rows, j < Cols.
// With Trans, the operand is the transpose of the stored matrix.
type Mat struct {
	Buf        Buffer
	Rows, Cols int // as stored
	Ld         int // leading dimension: elements from one row to the next, >= Cols
	Trans      bool
}

// Matrix views a buffer as (rows, cols) without gaps.
func Matrix(b Buffer, rows, cols int) Mat {
	return Mat{Buf: b.Slice(0, rows*cols), Rows: rows, Cols: cols, Ld: cols}
}

// T returns the transposed operand with the same memory.
func (m Mat) T() Mat { m.Trans = !m.Trans; return m }

// Dims returns the shape of the operand: (rows, cols) after Trans.
func (m Mat) Dims() (rows, cols int) {
	if m.Trans {
		return m.Cols, m.Rows
	}
	return m.Rows, m.Cols
}

// Columns returns the view of columns [lo, hi) of every row, as stored.
func (m Mat) Columns(lo, hi int) Mat {
	end := (m.Rows-1)*m.Ld + hi
	if m.Rows == 0 {
		end = lo
	}
	m.Buf, m.Cols = m.Buf.Slice(lo, end), hi-lo
	return m
}

// RowRange returns the view of rows [lo, hi), as stored.
func (m Mat) RowRange(lo, hi int) Mat {
	at, end := 0, 0
	if hi > lo { // no rows may begin after the last element of a matrix with gaps
		at, end = lo*m.Ld, (hi-1)*m.Ld+m.Cols
	}
	m.Buf, m.Rows = m.Buf.Slice(at, end), hi-lo
	return m
}

// Attn is the shape of a causal self-attention: B sequences of T positions, H query heads, KV key
// and value heads (KV divides H), head width D. Its matrices are (B*T, H*D) for q and o and
// (B*Keys, KV*D) for k and v. Query position t attends to key positions 0..Past+t, or with a Window
// to the last Window of these, within its own document.
type Attn struct {
	B, T, H, KV, D int
	Past           int     // positions of each sequence before its T
	Window         int     // 0: unlimited
	Scale          float32 // factor of q·k, usually 1/sqrt(D)
	Cap            float32 // a score s becomes Cap tanh(s/Cap), as in Gemma 2; 0: no cap
	Start          Buffer  // see Starts
	Drop           Dropout // of probabilities in training, by rows of DropRow; none if its Drop is 0. Its Cols is unused
}

// First returns the first key position visible to query position t of a sequence. Start (T) gives
// the first position of each query's document, relative to the first query, or is nil for a single
// document.
func (a Attn) First(t int, start []int32) (first int) {
	if a.Window > 0 {
		first = max(0, a.Past+t-a.Window+1)
	}
	if start != nil {
		first = max(first, a.Past+int(start[t]))
	}
	return first
}

// DropRow returns the row of Drop for query position t of sequence b in head h; its columns are key
// positions. Drop.Row is the row of position 0 of sequence 0 in head 0, less than 2^44. So the mask
// depends only on the head, the query and the key, not on the distribution of work.
func (a Attn) DropRow(b, h, t int) uint64 { return a.Drop.Row + uint64(b*a.T+t) + uint64(h)<<44 }

// Starts validates a Start buffer, which describes the documents in sequences of T positions: (B*T)
// int32, for each position the first position of its document, relative to the first of the T;
// negative if the document begins earlier. It never decreases from a position to the next and is at
// most the position itself. An empty buffer means one document per sequence. Attention does not
// cross document boundaries, and learned and rotary positions restart there. Starts panics if start
// is neither empty nor of rows elements, or is combined with past positions, which it already
// expresses.
func Starts(op string, start Buffer, rows, past int) {
	if start.N > 0 && (start.Type != I32 || start.N != rows || past > 0) {
		panic(fmt.Sprintf("device: %s of %d positions after %d, of documents that start at %d %v", op, rows, past, start.N, start.Type))
	}
}

// Keys returns the number of positions per sequence that have keys and values.
func (a Attn) Keys() int { return a.Past + a.T }

// Pairs returns the number of pairs of a query and a visible key, in all heads, assuming one
// document per sequence: other starts are known only on the device.
func (a Attn) Pairs() int64 {
	pairs := int64(a.T)*int64(a.Past) + int64(a.T)*int64(a.T+1)/2
	if before := a.Keys() - a.Window; a.Window > 0 && before > 0 { // the last query misses before keys, the one before it one less, and so on
		misses := min(before, a.T)
		pairs -= int64(misses) * int64(2*before-misses+1) / 2
	}
	return int64(a.B) * int64(a.H) * pairs
}

// AdamW is one step of Adam with decoupled weight decay for elements with common hyperparameters:
//
//	g' = g*GradScale          (+ L2*w: Adam's own, coupled decay)
//	m  = Beta1*m + (1-Beta1)*g'
//	v  = Beta2*v + (1-Beta2)*g'*g'
//	w  = w*(1-LR*Decay) - Step*m / (sqrt(v)*RootC2 + Eps)
//
// with Step = LR/(1-Beta1^t), RootC2 = 1/sqrt(1-Beta2^t). Loshchilov and Hutter, arXiv 1711.05101;
// PyTorch's torch.optim.AdamW computes the same.
type AdamW struct {
	GradScale, Beta1, Beta2, Eps float32
	Shrink                       float32 // 1 - LR*Decay
	L2                           float32
	Step, RootC2                 float32
}

// SGD is one step of stochastic gradient descent with momentum:
//
//	g' = g*GradScale + Decay*w;  m = Momentum*m + g';  w = w - LR*m
type SGD struct{ GradScale, Momentum, Decay, LR float32 }

// Lion is one step of Lion (Chen et al., arXiv 2302.06675):
//
//	g' = g*GradScale
//	u  = sign(Beta1*m + (1-Beta1)*g');  m = Beta2*m + (1-Beta2)*g'
//	w  = w*Shrink - LR*u
type Lion struct{ GradScale, Beta1, Beta2, Shrink, LR float32 }

// Rope describes rotary position embeddings (Su et al., arXiv 2104.09864) in sequences of T
// positions from Past on, for heads of even width D: at position t, elements j and j+W/2 of a head
// are rotated in the plane by t*Freq(j), for j < W/2 with W = RotaryDim().
type Rope struct {
	T, D    int
	Part    int // number of rotated elements, the first of a head; even; 0: all
	Past    int
	Span    int     // at least the number of positions in any sequence, including those before Start; 0: Past+T
	Theta   float64 // Freq(j) = Theta^(-2j/W), usually 10000
	Scaling RopeScaling
	Start   Buffer // see Starts; positions are relative to it
}

// RotaryDim returns the number of rotated elements per head.
func (r Rope) RotaryDim() int {
	if r.Part > 0 {
		return r.Part
	}
	return r.D
}

// Alike reports whether two Ropes rotate equal positions by equal angles, regardless of the number
// of positions.
func (r Rope) Alike(to Rope) bool {
	return r.D == to.D && r.Part == to.Part && r.Theta == to.Theta && r.Scaling.same(to.Scaling)
}

// RopeKind selects how rotary frequencies are changed for sequences longer than those of the
// original training.
type RopeKind uint8

// Unchanged frequencies; all divided by Factor; some scaled as in Llama 3; some scaled as in YaRN
// (Peng et al., arXiv 2309.00071); each divided by its own factor as in LongRoPE (Ding et al.,
// arXiv 2402.13753). Hugging Face's rope_type calls them default, linear, llama3, yarn and
// longrope.
const (
	RopeUnscaled RopeKind = iota
	RopeLinear
	RopeLlama3
	RopeYaRN
	RopeLong
)

// RopeScaling lowers the frequencies of a model trained on sequences of Context positions. Llama3
// divides by Factor if a full turn takes more than Context/Low positions, does nothing if it takes
// fewer than Context/High, and interpolates in between. YaRN divides by Factor from pair High on,
// does nothing up to pair Low, and interpolates in between; they may be fractional. LongRoPE
// divides pair j by Factors[j], or by Beyond[j] in sequences longer than Context.
type RopeScaling struct {
	Kind              RopeKind
	Factor, Low, High float64
	Context           int
	Amplitude         float64 // of YaRN and LongRoPE: factor of cosines and sines; 0 means 1
	Factors, Beyond   []float64
}

// For returns the scaling of a sequence with that many positions, for any length.
func (s RopeScaling) For(positions int) RopeScaling {
	if s.Kind == RopeLong && positions > s.Context {
		s.Factors = s.Beyond
	}
	s.Beyond = nil
	return s
}

func (s RopeScaling) same(to RopeScaling) bool {
	return s.Kind == to.Kind && s.Factor == to.Factor && s.Low == to.Low && s.High == to.High && s.Context == to.Context && s.Amplitude == to.Amplitude &&
		slices.Equal(s.Factors, to.Factors) && slices.Equal(s.Beyond, to.Beyond)
}

// String describes the scaling.
func (s RopeScaling) String() string {
	switch s.Kind {
	case RopeLinear:
		return fmt.Sprintf("linear by %v", s.Factor)
	case RopeLlama3:
		return fmt.Sprintf("llama3 by %v from %d positions, frequencies %v to %v", s.Factor, s.Context, s.Low, s.High)
	case RopeYaRN:
		return fmt.Sprintf("yarn by %v from %d positions, pairs %v to %v, amplitude %v", s.Factor, s.Context, s.Low, s.High, s.Amplitude)
	case RopeLong:
		return fmt.Sprintf("longrope from %d positions by %v, up to them by %v, amplitude %v", s.Context, s.Beyond, s.Factors, s.Amplitude)
	}
	return "none"
}

// Freq returns the angle, in radians, by which pair j of a head is rotated per position.
func (r Rope) Freq(j int) float64 {
	f, s := math.Pow(r.Theta, -2*float64(j)/float64(r.RotaryDim())), r.Scaling
	keep := 1.0 // weight of the unchanged frequency
	switch s.Kind {
	case RopeLinear:
		keep = 0
	case RopeLlama3:
		turns := float64(s.Context) * f / (2 * math.Pi) // full turns within Context positions
		keep = (turns - s.Low) / (s.High - s.Low)
	case RopeYaRN:
		keep = 1 - (float64(j)-s.Low)/(s.High-s.Low)
	case RopeLong:
		return f / s.Factors[j]
	}
	if keep >= 1 {
		return f
	}
	keep = max(0, keep)
	return (1-keep)*f/s.Factor + keep*f
}

// Amplitude returns the factor of cosines and sines.
func (r Rope) Amplitude() float64 {
	if r.Scaling.Amplitude == 0 {
		return 1
	}
	return r.Scaling.Amplitude
}

// Activation is an elementwise function of an MLP.
type Activation uint8

// GELU with the tanh approximation and with the error function (Hendrycks and Gimpel, arXiv
// 1606.08415); max(0, x); x/(1 + e^-x); the hyperbolic tangent.
const (
	GeluTanh Activation = iota
	GeluErf
	Relu
	Silu
	Tanh
)

// String returns the function's common name.
func (f Activation) String() string {
	return [...]string{"GELU (tanh)", "GELU (erf)", "ReLU", "SiLU", "tanh"}[f]
}

// Vocab is the part of a vocabulary covered by the rows of a table, or by logits: those from First
// on, of Size in total. The zero Vocab is the whole vocabulary.
type Vocab struct{ First, Size int }

// Index returns the row of id among the n rows of the part, and false if the part does not contain
// it. It panics if the vocabulary does not contain it.
func (v Vocab) Index(id, n int) (int, bool) {
	size := v.Size
	size = cmp.Or(size, n)
	if id < 0 || id >= size {
		panic(fmt.Sprintf("device: id %d, vocabulary %d", id, size))
	}
	id -= v.First
	return id, id >= 0 && id < n
}
