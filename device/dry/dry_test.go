package dry_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/dry"
)

// TestCountsAsMemoryDoes checks that a device that only counts and one with memory have the same
// account after every allocation and free, and the same buffers except for the memory.
func TestCountsAsMemoryDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		real, plan := cpu.New(1), &dry.Device{Host: !cpu.Separate}
		defer real.Close()
		var held [][2]device.Buffer
		free := func(i int) {
			real.Free(held[i][0])
			plan.Free(held[i][1])
			held = append(held[:i], held[i+1:]...)
		}
		for range rapid.IntRange(1, 30).Draw(t, "operations") {
			if len(held) > 0 && rapid.Bool().Draw(t, "free") {
				free(rapid.IntRange(0, len(held)-1).Draw(t, "which"))
			} else {
				dt := device.DType(rapid.IntRange(0, int(device.I64)).Draw(t, "type"))
				n := rapid.IntRange(0, 100).Draw(t, "elements")
				use := device.Use(rapid.IntRange(0, int(device.Uses)-1).Draw(t, "use"))
				a, err := real.Alloc(dt, n, use)
				b, err2 := plan.Alloc(dt, n, use)
				if err := errors.Join(err, err2); err != nil {
					t.Fatal(err)
				}
				if b.Ptr != nil {
					t.Fatalf("the plan has memory: %+v", b)
				}
				if a.Type != b.Type || a.N != b.N || a.Use != b.Use || a.Host != b.Host {
					t.Fatalf("%+v in the plan, %+v in memory", b, a)
				}
				held = append(held, [2]device.Buffer{a, b})
			}
			if real.Usage() != plan.Usage() {
				t.Fatalf("the plan counts %v, memory %v", plan.Usage(), real.Usage())
			}
		}
		for len(held) > 0 {
			free(0)
		}
		if live := plan.Usage().Live.Total(); live != 0 {
			t.Fatalf("%d bytes at the end", live)
		}
	})
}

// TestQueueDoesNothing checks that the queue executes nothing, including host functions, waits for
// nothing, and has no error.
func TestQueueDoesNothing(t *testing.T) {
	var q dry.Queue
	q.Label("unit h.0")
	q.Do(func() error { t.Error("called"); return errors.New("called") })
	q.Copy(device.Buffer{Type: device.F32, N: 3}, device.Buffer{Type: device.F32, N: 3})
	e := q.Mark()
	if q.After(e); e.On != nil || q.Wait() != nil {
		t.Errorf("mark %v, error %v", e, q.Wait())
	}
}
