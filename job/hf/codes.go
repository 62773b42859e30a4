package hf

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"zeroth/checkpoint"
	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/parallel"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Matrices that are stored as codes (shard.Param.Code) on their way into a run, and out of it.

// coder codes whole matrices for ranks that ask for parts of them, all in the same order.
type coder struct {
	mu     sync.Mutex
	recent []*codedMatrix // the latest last
}

// mostCoded is how many matrices a coder remembers. Ranks wait for the first that asks, so that they
// are never far apart.
const mostCoded = 16

type codedMatrix struct {
	name  string
	once  sync.Once
	words []float32
	err   error
}

// get returns the words of a matrix of float32 elements that read reads.
func (c *coder) get(p *shard.Param, read func(at shard.Range, dst []float32) error) ([]float32, error) {
	c.mu.Lock()
	i := slices.IndexFunc(c.recent, func(m *codedMatrix) bool { return m.name == p.Name })
	if i < 0 {
		c.recent = append(c.recent[max(0, len(c.recent)+1-mostCoded):], &codedMatrix{name: p.Name})
		i = len(c.recent) - 1
	}
	m := c.recent[i]
	c.mu.Unlock()
	m.once.Do(func() { m.words, m.err = encode(p, read) })
	return m.words, m.err
}

// codedAtOnce is about how many elements of a matrix are in memory at once, for each worker.
const codedAtOnce = 1 << 20

// encode codes a matrix, some pieces at a time.
func encode(p *shard.Param, read func(at shard.Range, dst []float32) error) ([]float32, error) {
	code, n := device.Code(p.Code), p.Numel()
	rows, cols := p.Flat()
	piece := code.Piece(cols)
	words := make([]float32, code.Words(rows, cols))
	bits := device.OfF32(words).Words()
	most := make([][]float32, (n+piece-1)/piece)
	each := max(1, codedAtOnce/piece) // pieces that are read at once
	buffers := sync.Pool{New: func() any { b := make([]float32, min(n, each*piece)); return &b }}
	err := parallel.For(context.Background(), (len(most)+each-1)/each, 0, func(_ context.Context, i int) error {
		at, buffer := i*each, buffers.Get().(*[]float32)
		defer buffers.Put(buffer)
		lo := at * piece
		x := (*buffer)[:min(len(*buffer), n-lo)]
		err := read(shard.Range{Lo: lo, Hi: lo + len(x)}, x)
		if i := slices.IndexFunc(x, beyondF16); err == nil && code == device.Int8 && i >= 0 {
			err = input.BadInput(fmt.Errorf("element %d of %s is %v, larger than 65504, the largest float16, which int8 cannot store; want model.weights: nf4 or full", lo+i, p.Name, x[i]))
		}
		if err != nil {
			return err
		}
		for i := 0; i*piece < len(x); i++ {
			part := x[i*piece : min((i+1)*piece, len(x))]
			first, end := code.Span(lo+i*piece, lo+i*piece+len(part), cols)
			most[at+i] = code.Encode(bits[first:end], part)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	magnitudes := slices.Concat(most...)
	code.EncodeMagnitudes(bits, magnitudes)
	return words, nil
}

// beyondF16 reports whether float16, to which int8 rounds first, has no finite value for x.
func beyondF16(x float32) bool { return device.RoundF16(x)&0x7c00 == 0x7c00 }

// Decoder collects the words of coded matrices from ranks, and decodes those that are complete.
type Decoder struct {
	mu    sync.Mutex
	words map[string][]float32
	have  map[string]int
}

// Put stores a part of a matrix's words. For the last part it calls take with all of the elements,
// piece by piece.
func (d *Decoder) Put(p zero.Part, src []float32, take func(zero.Part, []float32) error) error {
	words := d.add(p, src)
	if words == nil {
		return nil
	}
	of := *p.Param.Codes
	_, cols := of.Flat()
	x := make([]float32, min(of.Numel(), codedAtOnce))
	for lo := 0; lo < of.Numel(); lo += len(x) {
		at := shard.Range{Lo: lo, Hi: min(lo+len(x), of.Numel())}
		device.Code(of.Code).Decode(device.OfF32(x[:at.Len()]), device.OfF32(words).Words(), lo, cols)
		if err := take(zero.Part{Param: of, Kind: zero.Master, At: at}, x[:at.Len()]); err != nil {
			return err
		}
	}
	return nil
}

// add returns all words with the last part, else nil.
func (d *Decoder) add(p zero.Part, src []float32) []float32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.words == nil {
		d.words, d.have = map[string][]float32{}, map[string]int{}
	}
	name := p.Param.Name
	if d.words[name] == nil {
		d.words[name] = make([]float32, p.Param.Numel())
	}
	all := d.words[name]
	copy(all[p.At.Lo:p.At.Hi], src)
	if d.have[name] += len(src); d.have[name] < len(all) {
		return nil
	}
	delete(d.words, name)
	return all
}

// codeOf returns the code of a kind of tensors, which has its name, or Floats.
func codeOf(kind string) device.Code {
	return device.Code(max(0, slices.Index(device.Codes[:], kind)))
}

// heldAs returns the tensor of a parameter in a checkpoint, and its code.
func heldAs(ck *checkpoint.Checkpoint, p shard.Param) (t checkpoint.Tensor, code device.Code, ok bool) {
	t, ok = ck.Tensor(p.Name, checkpoint.Master)
	for c := device.Floats + 1; !ok && int(c) < len(device.Codes); c++ {
		t, ok = ck.Tensor(p.Name, c.String())
		code = c
	}
	return t, code, ok
}

// held returns the tensor of a parameter in a checkpoint as if it were not coded.
func held(ck *checkpoint.Checkpoint, p shard.Param) (checkpoint.Tensor, bool) {
	t, code, ok := heldAs(ck, p)
	if code != device.Floats && len(p.Shape) > 1 && t.DType == checkpoint.U32 && slices.Equal(t.Shape, []int{code.Words(p.Flat())}) {
		t.Kind, t.DType, t.Shape = checkpoint.Master, checkpoint.F32, p.Shape
	}
	return t, ok
}

// Decoded is a checkpoint of a model whose coded matrices read as float32.
type Decoded struct {
	*checkpoint.Checkpoint
	params map[string]shard.Param
}

// DecodedOf returns a checkpoint that Describes has accepted, decoded.
func DecodedOf(ck *checkpoint.Checkpoint, m Model) Decoded {
	d := Decoded{ck, map[string]shard.Param{}}
	for _, p := range Parameters(m.Network(nn.LoRA{})) {
		if _, code, _ := heldAs(ck, p); code != device.Floats {
			p.Code = uint8(code)
			d.params[p.Name] = p
		}
	}
	return d
}

// All implements checkpoint.Source.
func (d Decoded) All() (all []checkpoint.Tensor) {
	for _, t := range d.Checkpoint.All() {
		if p, ok := d.params[t.Name]; ok && codeOf(t.Kind) != device.Floats {
			t, _ = held(d.Checkpoint, p)
		}
		all = append(all, t)
	}
	return all
}

// ReadF32 implements checkpoint.Source.
func (d Decoded) ReadF32(name, kind string, r shard.Range, into []float32, workers int) error {
	p, ok := d.params[name]
	if !ok || kind != checkpoint.Master {
		return d.Checkpoint.ReadF32(name, kind, r, into, workers)
	}
	code := device.Code(p.Code)
	_, cols := p.Flat()
	lo := r.Lo / code.Piece(cols) * code.Piece(cols)
	first, end := code.Span(lo, r.Hi, cols)
	words := make([]float32, code.Head()+end-first)
	head := words[:code.Head()]
	if err := d.Checkpoint.ReadF32(name, code.String(), shard.Range{Hi: len(head)}, head, workers); err != nil {
		return err
	}
	if err := d.Checkpoint.ReadF32(name, code.String(), shard.Range{Lo: first, Hi: end}, words[len(head):], workers); err != nil {
		return err
	}
	x := make([]float32, r.Hi-lo)
	code.Decode(device.OfF32(x), device.OfF32(words).Words(), 0, cols)
	copy(into, x[r.Lo-lo:])
	return nil
}
