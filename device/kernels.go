package device

import (
	"fmt"
	"math"
	"slices"
)

// The vocabulary kernels are called in: plain values, so that the packages
// that state which kernels they need and the devices that have them agree on
// the words without knowing each other.

// Mat is a row-major matrix view of a buffer: element (i, j) is
// Buf[i*Ld+j] for i < Rows, j < Cols. With Trans set the operand meant is the
// transpose of what is stored.
type Mat struct {
	Buf        Buffer
	Rows, Cols int // as stored
	Ld         int // elements from one row to the next, >= Cols
	Trans      bool
}

// Matrix views a buffer as (rows, cols) without gaps.
func Matrix(b Buffer, rows, cols int) Mat {
	return Mat{Buf: b.Slice(0, rows*cols), Rows: rows, Cols: cols, Ld: cols}
}

// T is the transposed operand over the same memory.
func (m Mat) T() Mat { m.Trans = !m.Trans; return m }

// Dims is the shape of the operand: (rows, cols) after Trans.
func (m Mat) Dims() (rows, cols int) {
	if m.Trans {
		return m.Cols, m.Rows
	}
	return m.Rows, m.Cols
}

// Columns is the view of columns [lo, hi) of every row as stored.
func (m Mat) Columns(lo, hi int) Mat {
	end := (m.Rows-1)*m.Ld + hi
	if m.Rows == 0 {
		end = lo
	}
	m.Buf, m.Cols = m.Buf.Slice(lo, end), hi-lo
	return m
}

// RowRange is the view of rows [lo, hi) as stored.
func (m Mat) RowRange(lo, hi int) Mat {
	end := lo * m.Ld
	if hi > lo {
		end = (hi-1)*m.Ld + m.Cols
	}
	m.Buf, m.Rows = m.Buf.Slice(lo*m.Ld, end), hi-lo
	return m
}

// Attn is the shape of a causal self-attention: B sequences of T positions,
// H query heads, KV key and value heads (KV divides H), head width D. The
// matrices it comes with are (B*T, H*D) for q and o, (B*Keys, KV*D) for k and v.
// Query position t sees key positions 0..Past+t, or with a Window the last so many
// of these, of its own document.
type Attn struct {
	B, T, H, KV, D int
	Past           int     // positions of each sequence before its T
	Window         int     // 0 is all
	Scale          float32 // multiplies q·k, usually 1/sqrt(D)
	Cap            float32 // a score s becomes Cap tanh(s/Cap), as in Gemma 2; 0: it stays s
	Start          Buffer  // see Starts
	Drop           Dropout // of probabilities in training, by rows of DropRow; where its Drop is 0, nothing. Cols is not used
}

// First is the first key position that query position t sees of a sequence whose
// documents begin at start (T), counted from its first query, or nil if it is one document.
func (a Attn) First(t int, start []int32) (first int) {
	if a.Window > 0 {
		first = max(0, a.Past+t-a.Window+1)
	}
	if start != nil {
		first = max(first, a.Past+int(start[t]))
	}
	return first
}

// DropRow is the number of the row of Drop that query position t of sequence b has in
// head h; its columns are key positions. Drop.Row is that of position 0 of sequence 0
// in head 0, less than 2^44. So what is dropped follows from the head, the query and the
// key, however they are shared out.
func (a Attn) DropRow(b, h, t int) uint64 { return a.Drop.Row + uint64(b*a.T+t) + uint64(h)<<44 }

// Starts is how documents lie in B sequences of T positions, as Start buffers say it:
// (B*T) int32, for each position the first one of its document, counted from the first of
// the T; below 0 where the document begins before these. So it never falls from a position to
// the next, and is at most the position itself. An empty buffer: each sequence is one
// document. Attention does not look over the edge of a document, and position vectors and
// rotary positions begin again there. This panics if start is neither empty nor of so many
// rows, or if it comes with a number of positions before them, which it has itself.
func Starts(op string, start Buffer, rows, past int) {
	if start.N > 0 && (start.Type != I32 || start.N != rows || past > 0) {
		panic(fmt.Sprintf("device: %s of %d positions after %d, of documents that start at %d %v", op, rows, past, start.N, start.Type))
	}
}

// Keys is how many positions of a sequence have keys and values.
func (a Attn) Keys() int { return a.Past + a.T }

// Pairs are those of a query and a key it sees, in all heads, if sequences are one
// document each: where others start is known on the device alone.
func (a Attn) Pairs() int64 {
	pairs := int64(a.T)*int64(a.Past) + int64(a.T)*int64(a.T+1)/2
	if before := a.Keys() - a.Window; a.Window > 0 && before > 0 { // the last query misses so many keys, the one before it one less
		misses := min(before, a.T)
		pairs -= int64(misses) * int64(2*before-misses+1) / 2
	}
	return int64(a.B) * int64(a.H) * pairs
}

// AdamW is one step of Adam with decoupled weight decay over a piece that
// shares its hyper-parameters:
//
//	g' = g*GradScale          (+ L2*w: Adam's own, coupled decay)
//	m  = Beta1*m + (1-Beta1)*g'
//	v  = Beta2*v + (1-Beta2)*g'*g'
//	w  = w*(1-LR*Decay) - Step*m / (sqrt(v)*RootC2 + Eps)
//
// with Step = LR/(1-Beta1^t), RootC2 = 1/sqrt(1-Beta2^t). Loshchilov and
// Hutter, arXiv 1711.05101; PyTorch's torch.optim.AdamW computes the same.
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

// Rope is rotary positions (Su et al., arXiv 2104.09864) in sequences of T
// positions from Past on, for heads of width D, which is even: at position t,
// elements j and j+W/2 of a head are a point in the plane that turns by
// t*Freq(j), for j < W/2 with W the Turned width.
type Rope struct {
	T, D    int
	Part    int // the elements of a head that turn, its first, an even number; 0: all
	Past    int
	Span    int     // at least as many as there are in any sequence, with those before Start; 0: Past+T
	Theta   float64 // Freq(j) = Theta^(-2j/W), usually 10000
	Scaling RopeScaling
	Start   Buffer // see Starts; positions are counted from there
}

// Turned is how many elements of a head turn.
func (r Rope) Turned() int {
	if r.Part > 0 {
		return r.Part
	}
	return r.D
}

// Alike tells whether positions turn by the same angles in heads alike, however many
// positions there are.
func (r Rope) Alike(to Rope) bool {
	return r.D == to.D && r.Part == to.Part && r.Theta == to.Theta && r.Scaling.same(to.Scaling)
}

// RopeKind is how rotary positions are changed for sequences that are longer than
// those a model was first trained on.
type RopeKind uint8

// Frequencies as they are; all divided by Factor; some of them, in the way of Llama
// 3; some of them, in the way of YaRN (Peng et al., arXiv 2309.00071); each by a number
// of its own, in the way of LongRoPE (Ding et al., arXiv 2402.13753). They are
// Hugging Face's rope_type default, linear, llama3, yarn and longrope.
const (
	RopeUnscaled RopeKind = iota
	RopeLinear
	RopeLlama3
	RopeYaRN
	RopeLong
)

// RopeScaling lowers the frequencies of a model trained on sequences of Context
// positions. By llama3, by Factor where a turn takes more than Context/Low
// positions, not at all where it takes fewer than Context/High, in between by a
// part of it. By YaRN, by Factor from pair High on, not at all up to pair Low, in
// between by a part of it; these may be other than whole numbers. By LongRoPE, pair
// j by Factors[j], in sequences of more than Context positions by Beyond[j].
type RopeScaling struct {
	Kind              RopeKind
	Factor, Low, High float64
	Context           int
	Amplitude         float64 // of YaRN and LongRoPE: what cosines and sines are multiplied by; 0 is 1
	Factors, Beyond   []float64
}

// For is the scaling of a sequence of so many positions, whatever its length.
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

// String is the scaling in words.
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

// Freq is the angle, in radians, by which pair j of a head turns from one
// position to the next.
func (r Rope) Freq(j int) float64 {
	f, s := math.Pow(r.Theta, -2*float64(j)/float64(r.Turned())), r.Scaling
	keep := 1.0 // how much of it stays as it is
	switch s.Kind {
	case RopeLinear:
		keep = 0
	case RopeLlama3:
		turns := float64(s.Context) * f / (2 * math.Pi) // in Context positions
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

// Amplitude is what the cosines and sines of its angles are multiplied by.
func (r Rope) Amplitude() float64 {
	if r.Scaling.Amplitude == 0 {
		return 1
	}
	return r.Scaling.Amplitude
}

// Activation is an elementwise function of an MLP.
type Activation uint8

// GELU by its tanh approximation and by the error function (Hendrycks and Gimpel,
// arXiv 1606.08415); max(0, x); x/(1 + e^-x); the hyperbolic tangent.
const (
	GeluTanh Activation = iota
	GeluErf
	Relu
	Silu
	Tanh
)

// String is what papers call it.
func (f Activation) String() string {
	return [...]string{"GELU (tanh)", "GELU (erf)", "ReLU", "SiLU", "tanh"}[f]
}

// Vocab is the part of a vocabulary whose rows, or logits, a table has: those from First on,
// of Size in all. The zero Vocab is all of it.
type Vocab struct{ First, Size int }

// Index returns where id is among the n rows of the part; false if the part does not have
// it. It panics if the vocabulary does not have it.
func (v Vocab) Index(id, n int) (int, bool) {
	size := v.Size
	if size == 0 {
		size = n
	}
	if id < 0 || id >= size {
		panic(fmt.Sprintf("device: id %d, vocabulary %d", id, size))
	}
	id -= v.First
	return id, id >= 0 && id < n
}
