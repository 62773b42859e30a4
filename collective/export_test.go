package collective

import (
	"testing"

	"zeroth/device"
)

// BenchmarkRecording records operations, all three times of each.
func BenchmarkRecording(b *testing.B) {
	r := NewRecorder()
	r.groups = []RecordedGroup{{Name: "world"}}
	c := call{op: allGather, t: device.F32, n: 96}
	b.ReportAllocs()
	for b.Loop() {
		n := r.issue(0, c)
		r.start(n)
		r.finish(n, false)
	}
}
