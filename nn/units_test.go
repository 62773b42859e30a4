package nn

import (
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/shard"
)

// with is a module of some parameters.
type with []shard.Param

func (w with) Params() []shard.Param                                                             { return w }
func (with) Forward(Ops, Scratch, []device.Buffer, *Batch, device.Buffer, device.Buffer, *Saved) {}
func (with) Backward(Ops, Scratch, []device.Buffer, []device.Buffer, *Batch, device.Buffer, device.Buffer, *Saved) {
}

// TestCheckUnits checks that names and units that cannot work are found before training.
func TestCheckUnits(t *testing.T) {
	a, b := shard.Param{Name: "a", Shape: []int{2}}, shard.Param{Name: "b", Shape: []int{3}}
	wide := shard.Param{Name: "a", Shape: []int{4}}
	for _, c := range []struct {
		modules []Module
		uses    [][]Use
		want    string
	}{
		{[]Module{with{a}, with{b}}, nil, ""},
		{[]Module{with{a}, with{}}, nil, ""},
		{[]Module{with{a}, with{a, b}}, [][]Use{{{Unit: "x", Params: 1}}, {{Unit: "x", Params: 1}, {Unit: "y", Params: 1}}}, ""},
		{[]Module{with{a}, with{a}}, nil, `two parameters are named a, in the units "module0" and "module1"`},
		{[]Module{with{a, a}, with{b}}, nil, "module 0 has two parameters named a"},
		{[]Module{with{a}, with{wide}}, [][]Use{{{Unit: "x", Params: 1}}, {{Unit: "x", Params: 1}}}, `unit "x" of Uses[1] has a[4] in module 1, but a[2] before`},
		{[]Module{with{a}, with{b}}, [][]Use{{{Unit: "x", Params: 2}}, nil}, `unit "x" of Uses[0] has parameter 1 of module 0, which has 1`},
		{[]Module{with{a}, with{b}}, [][]Use{{{Unit: "x", Params: 1}}, nil}, "b of module 1 belongs to no unit of Uses[1]"},
		{[]Module{with{a, b}, with{}}, [][]Use{{{Unit: "x", At: []int{0}, Params: 1}, {Unit: "y", At: []int{0}, Params: 1}}, nil}, `unit "y" of Uses[0] has parameter 0`},
		{[]Module{with{{Name: "", Shape: []int{1}}}, with{}}, nil, `parameter 0 of module 0 is "" with shape [1]`},
		{[]Module{with{{Name: "c", Shape: []int{0}}}, with{}}, nil, `parameter 0 of module 0 is "c" with shape [0]`},
	} {
		m := &Model{Modules: c.modules, Uses: c.uses}
		if c.uses == nil {
			m = m.OneUnitEach()
		}
		switch err := m.CheckUnits(); {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
