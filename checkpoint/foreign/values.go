package foreign

import (
	"encoding/binary"
	"fmt"
	"math"

	"zeroth/checkpoint/torchfile"
	"zeroth/optim"
)

// lossScale returns the state of DeepSpeed's loss scaler.
func lossScale(o *torchfile.Object) *optim.LossScale {
	if o.Is("LossScaler") {
		s := optim.StaticLossScale(number(o.Field("cur_scale")))
		return &s
	}
	count := func(key string) int { return int(number(o.Field(key))) }
	s := &optim.LossScale{Dynamic: true, Scale: number(o.Field("cur_scale")), Min: number(o.Field("min_scale")), Window: count("scale_window"), Hysteresis: count("delayed_shift"), Left: count("cur_hysteresis")}
	if s.Window > 0 {
		s.Clean = (count("cur_iter") - count("last_overflow_iter") - 1) % s.Window
	}
	return s
}

// number returns v if it is an integer or a float, otherwise 0.
func number(v any) float64 {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	}
	return 0
}

// entries yields the entries of a dictionary with string keys. d may be nil.
func entries(d *torchfile.Dict) func(func(string, any) bool) {
	return func(yield func(string, any) bool) {
		if d == nil {
			return
		}
		for i, k := range d.Keys {
			if s, ok := k.(string); ok && !yield(s, d.Values[i]) {
				return
			}
		}
	}
}

// vector checks that a value is a flat tensor of floats and returns it.
func vector(v any, what string) (*torchfile.Tensor, error) {
	t, ok := v.(*torchfile.Tensor)
	if !ok || len(t.Shape) != 1 || !t.DType.Float() {
		return nil, fmt.Errorf("%s is %s, not a vector of floats", what, torchfile.Kind(v))
	}
	return t, nil
}

// step returns the number of updates, which optimizers store as a number or a tensor.
func step(v any) (int64, error) {
	switch v := v.(type) {
	case int64:
		return v, nil
	case *torchfile.Tensor:
		if v.Numel() != 1 {
			break
		}
		b, err := v.Bytes(8)
		switch {
		case err != nil:
			return 0, err
		case v.DType == "F32":
			x := float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
			if x != math.Trunc(x) || math.Abs(x) > 1<<50 { // or no number
				return 0, fmt.Errorf("a step of %v; want a whole number", x)
			}
			return int64(x), nil
		case v.DType == "I64":
			return int64(binary.LittleEndian.Uint64(b)), nil
		}
	}
	return 0, fmt.Errorf("a step that is %s", torchfile.Kind(v))
}
