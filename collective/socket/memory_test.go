package socket_test

import (
	"sync"
	"testing"
	"unsafe"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/tests/nightly"
)

func memory(t testing.TB) *socket.Memory {
	t.Helper()
	m, err := socket.NewMemory()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// floats returns memory as float32.
func floats(b []byte) device.Buffer {
	return device.OfF32(unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4))
}

// lentFrom makes tests allocate buffers from shared memory, lending frames of no fewer than least bytes.
func lentFrom(t *testing.T, least int) *socket.Memory {
	mem := memory(t)
	mem.Least = least
	var mu sync.Mutex
	var taken [][]byte
	was := collectivetest.Memory
	collectivetest.Memory = func(words int) []float64 {
		b, err := mem.Take(8 * words)
		if err != nil {
			panic(err)
		}
		mu.Lock()
		taken = append(taken, b)
		mu.Unlock()
		return unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(b))), words)
	}
	t.Cleanup(func() {
		collectivetest.Memory = was
		for _, b := range taken {
			mem.Give(b)
		}
	})
	return mem
}

// TestSharedConforms runs the conformance suite with shared memory: with everything lent, with most
// lent, and with ranks on other hosts or in the same process.
func TestSharedConforms(t *testing.T) {
	nightly.Long(t)
	for _, test := range []struct {
		name  string
		least int
		per   int
		hosts []int
	}{
		{"all", 0, 1, nil}, {"some", 500, 1, nil}, {"two a process", 0, 2, nil}, {"by host", 100, 1, []int{0, 0, 0, 1, 1, 2, 2, 2}},
	} {
		if !nightly.All() && test.name != "some" && test.name != "by host" {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			run, mem := conforms, lentFrom(t, test.least)
			if test.name == "some" {
				run = func(t *testing.T, open func(int) []collective.Group) { collectivetest.Run(t, open, "Late") }
			}
			run(t, sharing(t, mem, "unix", test.per, test.hosts...))
		})
	}
}
