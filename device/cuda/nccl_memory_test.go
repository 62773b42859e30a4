//go:build cuda

package cuda_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/device"
	"zeroth/device/cuda"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/fake"
)

// TestNCCLRegistersMemory checks that memory moved by collectives is registered, as windows, as
// buffers or not at all, as the library supports; that sums with it have the same bits, that the
// plan provides the same memory, that registered memory is freed only after the communicator, and that a rank can give up.
func TestNCCLRegistersMemory(t *testing.T) {
	if env("FAKENCCL_DIR") == "" {
		fake.Only(t) // it opens three versions of the library
		for _, with := range [][]string{
			{"WANT=windows"}, {"WANT=buffers", "ZEROTH_NCCL_PATH=" + fake.OldNCCL("2.26")},
			{"WANT=nothing", "ZEROTH_NCCL_PATH=" + fake.OldNCCL("2.18")}, {"WANT=nothing", "ZEROTH_NCCL_REGISTER=0"},
		} {
			fake.Again(t, t.Name(), append(ncclRanks(t), with...)...)
		}
		return
	}
	c := newClique(t, overMemory)
	mustID(t) // finds the library
	if got := driver.NCCLRegisters().String(); got != env("WANT") {
		t.Fatalf("it registers %s, want %s", got, env("WANT"))
	}
	plan := device.Bytes{device.UnitGrads: 4000, device.Activations: 5000, device.Bounce: 512}
	for _, d := range c.devs[:3] {
		if err := d.ReserveKnown(plan, 2); err != nil {
			t.Fatal(err)
		}
	}
	ends, errs := c.join(3, mustID(t), never)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for again := range 2 { // the second finds it registered, if anything is
		err := registerAll(ends)
		if refused := again == 1 && env("WANT") != "nothing"; refused != (err != nil) {
			t.Fatalf("registering, time %d: %v", again, err)
		}
		if again == 1 && err != nil {
			say(t, err, "memory that is registered already", "set ZEROTH_NCCL_REGISTER=0 to avoid it")
		}
	}
	var all sync.WaitGroup
	for r, end := range ends {
		all.Go(func() {
			d := c.devs[r]
			x, err := d.Alloc(device.F32, 999, device.UnitGrads)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := d.Alloc(device.F32, 999, device.UnitGrads); err == nil {
				t.Error("more is given out than the plan has")
			}
			q := d.NewQueue("comm")
			defer q.Close()
			q.Copy(x, floats(999, func(i int) float32 { return float32(r + i) }))
			if err := end.ReduceScatter(q, x.Slice(333*r, 333*r+333), x); err != nil {
				t.Error(err)
			}
			got := floats(333, func(int) float32 { return 0 })
			q.Copy(got, x.Slice(333*r, 333*r+333))
			if err := q.Wait(); err != nil {
				t.Error(err)
			}
			for i, v := range got.F32() {
				if want := float32(3 + 3*(333*r+i)); v != want {
					t.Errorf("rank %d: element %d is %v, want %v", r, i, v, want)
					break
				}
			}
			d.Free(x)
		})
	}
	all.Wait()
	if env("WANT") == "windows" {
		few, errs := c.join(2, mustID(t), never)
		gaveUp := errors.New("gave up")
		if err := few[0].Register(true, func() error { return gaveUp }); !errors.Is(err, gaveUp) {
			t.Errorf("registering alone: %v, %v", err, errs)
		}
		if few[0].Close(time.Second); few[0].Registered() == "" {
			t.Error("memory is freed to which NCCL may still write what it registers")
		}
		few[1].Abort()
	}
	for r, end := range ends {
		if env("WANT") != "nothing" {
			say(t, c.devs[r].FreeKnown(), "free memory of GPU", "ncclInvalidUsage")
		}
		end.Close(3 * time.Second)
		if env("WANT") != "nothing" {
			if err := c.devs[r].FreeKnown(); err != nil {
				t.Errorf("after the communicator: %v", err)
			}
		}
	}
}

func registerAll(ends []*cuda.Communicator) error {
	errs := make([]error, len(ends))
	var all sync.WaitGroup
	for r, e := range ends {
		all.Go(func() { errs[r] = e.Register(true, never) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// TestNCCLRefusesMemory checks that different sizes on ranks, and freeing registered memory, are
// refused, and that a missing rank is abandoned after a while.
func TestNCCLRefusesMemory(t *testing.T) {
	fake.Only(t) // NCCL words its refusals differently
	if !again(t, 2) {
		return
	}
	c := newClique(t, overMemory)
	ends, errs := c.join(2, mustID(t), never)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for r, d := range c.devs[:2] {
		if err := d.ReserveKnown(device.Bytes{device.Params: int64(1+r) << 21}, 1); err != nil {
			t.Fatal(err)
		}
	}
	say(t, registerAll(ends), "ncclCommWindowRegister: rank", "4194304", "6291456")
	for _, e := range ends {
		e.Abort()
	}
	ends, errs = c.join(2, mustID(t), never)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	other := errors.New("rank 1 is lost")
	if err := ends[0].Register(true, func() error { return other }); !errors.Is(err, other) || !strings.Contains(err.Error(), "to avoid it") {
		t.Errorf("%v, want that rank 1 is lost", err)
	}
	for _, e := range ends {
		e.Abort()
	}
	say(t, ends[0].Register(true, never), "the communicator has ended")
}
