package zero

import (
	"slices"
	"testing"

	"zeroth/data"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/nn"
	"zeroth/shard"
)

// TestTrim checks that a micro-batch has the positions of its longest sequence, in 8s for each rank
// that divides matrices, and that LongRoPE sees its longest document.
func TestTrim(t *testing.T) {
	d := cpu.New(1)
	const B, T = 2, 32
	window := func() device.Window {
		w, err := device.OpenWindow(d, d, device.I32, B*T, device.Inputs)
		if err != nil {
			t.Fatal(err)
		}
		for i := range w.Host.I32() {
			w.Host.I32()[i] = int32(i)
		}
		return w
	}
	loss, err := d.Alloc(device.F32, B*T, device.Stats)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		trim                                bool
		tensor, positions, tokens, want, of int
	}{
		{true, 1, 9, 10, 16, 10}, {true, 1, 8, 5, 8, 5}, {true, 2, 9, 10, 16, 10}, {true, 2, 17, 18, 32, 18}, {true, 1, 32, 33, 32, 32},
		{false, 1, 9, 10, 32, 10},
	} {
		x := &Trainer{cfg: Config{B: B, T: T, Fields: data.TokenFields(T, true), Trim: c.trim, Mesh: shard.Mesh{Tensor: c.tensor}}, tally: tally{loss: loss}}
		x.given.Lengths = func(micro int) (positions, tokens int) { return c.positions, c.tokens }
		in := &input{fields: []device.Window{window(), window(), window()}, batch: nn.Batch{B: B, T: T}}
		for i, f := range x.cfg.Fields {
			in.batch.SetField(i, f.Name, in.fields[i].Device)
		}
		x.trim(in, 0)
		var rows []int32
		for s := range B {
			for i := range c.want {
				rows = append(rows, int32(s*T+i))
			}
		}
		b := in.batch
		for name, got := range map[string]device.Buffer{"inputs": b.Input, "targets": b.Target, "starts": b.Start} {
			if !slices.Equal(got.I32(), rows) {
				t.Errorf("%+v: %s %v", c, name, got.I32())
			}
		}
		if b.T != c.want || b.Longest != c.of {
			t.Errorf("%+v: %d positions, longest document %d", c, b.T, b.Longest)
		}
	}
}
