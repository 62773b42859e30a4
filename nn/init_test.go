package nn

import (
	"math"
	"testing"

	"zeroth/shard"
)

func TestFillDoesNotDependOnTheSplit(t *testing.T) {
	p := shard.Param{Name: "w", Shape: []int{7, 13}, Init: shard.Init{Std: 0.02}}
	whole := make([]float32, p.Numel())
	Fill(3, p, shard.Range{Lo: 0, Hi: p.Numel()}, whole)
	for cut := range p.Numel() {
		parts := make([]float32, p.Numel())
		Fill(3, p, shard.Range{Lo: 0, Hi: cut}, parts[:cut])
		Fill(3, p, shard.Range{Lo: cut, Hi: p.Numel()}, parts[cut:])
		for i := range whole {
			if whole[i] != parts[i] {
				t.Fatalf("cut at %d: element %d is %g, in one piece %g", cut, i, parts[i], whole[i])
			}
		}
	}
}

func TestFillIsNormal(t *testing.T) {
	p := shard.Param{Name: "w", Shape: []int{1 << 17}, Init: shard.Init{Mean: 2, Std: 0.5}}
	x := make([]float32, p.Numel())
	Fill(1, p, shard.Range{Lo: 0, Hi: len(x)}, x)
	var mean, second, fourth float64
	for _, v := range x {
		z := (float64(v) - 2) / 0.5
		mean, second, fourth = mean+z, second+z*z, fourth+z*z*z*z
	}
	n := float64(len(x))
	for _, c := range []struct {
		name            string
		got, want, sdev float64 // sdev of the estimate for normal numbers
	}{
		{"mean", mean / n, 0, 1 / math.Sqrt(n)},
		{"second moment", second / n, 1, math.Sqrt(2 / n)},
		{"fourth moment", fourth / n, 3, math.Sqrt(96 / n)},
	} {
		if math.Abs(c.got-c.want) > 5*c.sdev {
			t.Errorf("%s = %g, want %g within %g", c.name, c.got, c.want, 5*c.sdev)
		}
	}
	y := make([]float32, len(x))
	Fill(2, p, shard.Range{Lo: 0, Hi: len(x)}, y)
	p.Name = "v"
	z := make([]float32, len(x))
	Fill(1, p, shard.Range{Lo: 0, Hi: len(x)}, z)
	if x[0] == y[0] || x[0] == z[0] || y[0] == z[0] {
		t.Error("another seed or another name gives the same number")
	}
}
