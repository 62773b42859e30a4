package collective

import (
	"testing"

	"zeroth/device"
)

// BenchmarkRecording records operations with all three timestamps.
func BenchmarkRecording(b *testing.B) {
	r := NewRecorder()
	r.groups = []*watchdog{{}}
	o := Operation{Op: allGather.String(), Type: device.F32.String(), Count: 96}
	b.ReportAllocs()
	for b.Loop() {
		n := r.issue(&o)
		r.start(n, &o)
		r.finish(n, &o, Done)
	}
}
