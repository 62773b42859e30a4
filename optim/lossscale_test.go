package optim

import (
	"errors"
	"testing"
)

// TestLossScaleRule walks through histories of steps ('.' clean, 'x'
// overflowed) with window 3 and checks the state at the end, worked out by
// hand from DeepSpeed's update_scale.
func TestLossScaleRule(t *testing.T) {
	for _, c := range []struct {
		history    string
		hysteresis int
		min        float64
		scale      float64 // the start is 16
		left       int
		fails      bool // at the last step
	}{
		{"", 2, 1, 16, 2, false},
		{"..", 2, 1, 16, 2, false},
		{"...", 2, 1, 32, 2, false},
		{"......", 2, 1, 64, 2, false},
		{"x", 2, 1, 16, 1, false},              // the first overflow only spends hysteresis
		{"xx", 2, 1, 8, 1, false},              // the second halves
		{"xxx", 2, 1, 4, 1, false},             // and so does every later one
		{"x..x", 2, 1, 8, 1, false},            // clean steps short of the window do not refill
		{"x...x", 2, 1, 32, 1, false},          // a whole window doubles and refills
		{"..x..", 2, 1, 16, 1, false},          // the window counts from the overflow
		{"..x...", 2, 1, 32, 2, false},         //
		{".....x..", 2, 1, 32, 1, false},       //
		{"x", 1, 1, 8, 1, false},               // no tolerance
		{"xxx", 1, 3, 3, 1, false},             // 8, 4, then 2 is below the least
		{"xxxx", 1, 3, 3, 1, true},             // already at the least
		{"xxxxx", 1, 1, 1, 1, true},            // already at the least
		{"xxxx...xx", 1, 1, 1, 1, true},        // up to 2, down to 1, fails
		{"xxxx...x", 1, 1, 1, 1, false},        //
		{"xxxxx", 3, 4, 4, 1, true},            // two tolerated, 8, 4, fails
		{"xxx", 3, 4, 8, 1, false},             //
		{"xx...xx", 3, 4, 32, 1, false},        // refilled to 3
		{"xx......xx...", 3, 4, 128, 3, false}, //
	} {
		s := DynamicLossScale()
		s.Scale, s.Window, s.Min, s.Hysteresis, s.Left = 16, 3, c.min, c.hysteresis, c.hysteresis
		var err error
		for i, step := range c.history {
			if err != nil {
				t.Errorf("%q: fails before step %d: %v", c.history, i, err)
			}
			err = s.Update(step == 'x')
		}
		if s.Scale != c.scale || s.Left != c.left || errors.Is(err, ErrScaleAtMin) != c.fails {
			t.Errorf("%q: scale %g, left %d, error %v; want %g, %d, %v", c.history, s.Scale, s.Left, err, c.scale, c.left, c.fails)
		}
	}
}

func TestDynamicLossScaleDefaults(t *testing.T) {
	s := DynamicLossScale()
	for range 999 {
		if err := s.Update(false); err != nil {
			t.Fatal(err)
		}
	}
	if s.Scale != 65536 {
		t.Fatalf("scale %g before the window is over", s.Scale)
	}
	if _ = s.Update(false); s.Scale != 131072 || s.Left != 2 {
		t.Fatalf("after the window: %+v", s)
	}
}

// TestLossScaleIsItsFields saves and restores the scale at every step of a
// history, as a checkpoint does.
func TestLossScaleIsItsFields(t *testing.T) {
	a := LossScale{Dynamic: true, Scale: 8, Min: 1, Window: 2, Hysteresis: 2, Left: 2}
	for i, step := range "..x.x...xx.x....." {
		b := LossScale{a.Dynamic, a.Scale, a.Min, a.Window, a.Hysteresis, a.Left, a.Clean}
		if ea, eb := a.Update(step == 'x'), b.Update(step == 'x'); a != b || (ea == nil) != (eb == nil) {
			t.Fatalf("step %d: %+v, restored %+v", i, a, b)
		}
	}
}

func TestStaticLossScale(t *testing.T) {
	s := StaticLossScale(1)
	for i := range 3000 {
		if err := s.Update(i%2 == 0); err != nil || s.Scale != 1 {
			t.Fatalf("step %d: scale %g, error %v", i, s.Scale, err)
		}
	}
}
