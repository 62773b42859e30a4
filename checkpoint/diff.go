package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sync"

	"zeroth/checkpoint/safetensors"
	"zeroth/internal/parallel"
	"zeroth/shard"
)

// Difference compares a tensor of checkpoint A with the same tensor of B.
type Difference struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	What     string   `json:"what"`     // equal, differs, shape, only in A, only in B
	Elements int      `json:"elements"` // number of elements with different bits
	MaxAbs   Distance `json:"max_abs"`  // largest |a-b|; infinite if only one is NaN
	MaxRel   Distance `json:"max_rel"`  // largest |a-b| / max(|a|, |b|)
}

// Distance is the distance of two numbers. JSON has no infinity, so it is written as "inf", which
// strtod, ParseFloat and Python's float accept.
type Distance float64

// MarshalJSON encodes a number, or "inf".
func (a Distance) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(a), 0) {
		return []byte(`"inf"`), nil
	}
	return json.Marshal(float64(a))
}

// Values of Difference.What.
const (
	Equal   = "equal"
	Differs = "differs"
	Shape   = "shape" // or dtype
	OnlyA   = "only in A"
	OnlyB   = "only in B"
)

// Diff compares two checkpoints tensor by tensor, in the order of names.
func Diff(ctx context.Context, a, b *Checkpoint, w Walk) ([]Difference, error) {
	w = w.withDefaults()
	all := append(append([]Tensor(nil), a.Tensors...), b.Tensors...)
	byKey(all)
	var out []Difference
	for i, t := range all {
		if i > 0 && t.key() == all[i-1].key() {
			continue
		}
		d, err := diffTensor(ctx, a, b, t, w)
		if err != nil {
			return nil, fmt.Errorf("diff: %w", err)
		}
		out = append(out, d)
	}
	return out, nil
}

func diffTensor(ctx context.Context, a, b *Checkpoint, t Tensor, w Walk) (Difference, error) {
	d := Difference{Name: t.Name, Kind: t.Kind, What: Equal}
	x, inA := a.Tensor(t.Name, t.Kind)
	y, inB := b.Tensor(t.Name, t.Kind)
	switch {
	case !inB:
		d.What = OnlyA
	case !inA:
		d.What = OnlyB
	case !x.same(y):
		d.What = Shape
	}
	if d.What != Equal {
		return d, nil
	}
	var runs []shard.Range
	chunks(t, shard.Range{Hi: t.Numel()}, func(r shard.Range) error { runs = append(runs, r); return nil })
	var mu sync.Mutex
	err := parallel.For(ctx, len(runs), w.Workers, func(_ context.Context, i int) error {
		part, err := diffRun(a, b, t, runs[i])
		mu.Lock()
		defer mu.Unlock()
		d.Elements += part.Elements
		d.MaxAbs, d.MaxRel = max(d.MaxAbs, part.MaxAbs), max(d.MaxRel, part.MaxRel)
		w.Progress(2 * int64(runs[i].Len()*t.DType.Size()))
		return err
	})
	if d.Elements > 0 {
		d.What = Differs
	}
	return d, err
}

// diffRun compares a range of elements.
func diffRun(a, b *Checkpoint, t Tensor, r shard.Range) (d Difference, err error) {
	size := t.DType.Size()
	x, y := make([]byte, r.Len()*size), make([]byte, r.Len()*size)
	if err := a.Read(t.Name, t.Kind, r, x); err != nil {
		return d, err
	}
	if err := b.Read(t.Name, t.Kind, r, y); err != nil || bytes.Equal(x, y) {
		return d, err
	}
	var p, q [1]float32
	for i := 0; i < len(x); i += size {
		u, v := x[i:i+size], y[i:i+size]
		if bytes.Equal(u, v) {
			continue
		}
		d.Elements++
		if t.DType.Float() {
			safetensors.Decode(p[:], u, t.DType)
			safetensors.Decode(q[:], v, t.DType)
			d.addDistance(float64(p[0]), float64(q[0]))
		}
	}
	return d, nil
}

// addDistance raises the maximum distances to those of x and y.
func (d *Difference) addDistance(x, y float64) {
	inf := Distance(math.Inf(1))
	switch abs := math.Abs(x - y); {
	case x == y || x != x && y != y:
	case abs != abs || math.IsInf(abs, 0):
		d.MaxAbs, d.MaxRel = inf, inf
	default:
		d.MaxAbs, d.MaxRel = max(d.MaxAbs, Distance(abs)), max(d.MaxRel, Distance(abs/max(math.Abs(x), math.Abs(y))))
	}
}
