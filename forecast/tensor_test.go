package forecast

import (
	"math"
	"testing"

	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job/spec/spectest"
	"zeroth/job/trace"
)

// TestTensorsAreExposed checks that exchanges between ranks that divide matrices are not hidden
// and count as communication, by the clock and by the trace.
func TestTensorsAreExposed(t *testing.T) {
	const each, layers, micros = 0.001, 4, 2
	c := spectest.Fitted(t, "parallel.tensor=2", "parallel.ranks=2", "zero.stage=0", "train.micro_batch=1", "train.batch=null", "train.accumulate=2", "device=cpu")
	costs := passes(0.010, 0.020)
	seconds := costs.Seconds
	costs.Seconds = func(on setup.QueueRole, k Kernel, w Work) float64 {
		if on == setup.Compute && trace.Exchanges(k.Op) && k.In != device.F32 { // statistics of losses, in float32, are few
			return each
		}
		return seconds(on, k, w)
	}
	r, err := SimulateWith(setup.Planned(c), costs)
	if err != nil {
		t.Fatal(err)
	}
	// A layer has two gathers and two reductions forward, and four gathers and two reductions
	// backward. The embedding reduces its rows and gathers their gradient; the head does the
	// reverse.
	const want = micros * (layers*10 + 4) * each
	if math.Abs(r.Exposed-want) > 1e-6 || math.Abs(r.Compute-micros*layers*0.030) > 1e-6 {
		t.Errorf("computing %v, exposed %v, want %v and %v", r.Compute, r.Exposed, micros*layers*0.030, want)
	}
	if e := r.Trace.Exposure(); math.Abs(e.Exposed-want) > 1e-6 || math.Abs(e.Compute-r.Compute) > 1e-6 {
		t.Errorf("by its trace %+v", e)
	}
}
