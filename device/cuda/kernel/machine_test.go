//go:build cuda

package kernel

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"zeroth/device"
)

// machine runs kernels on memory shared with the test: an emulator's process (see emu_test.go) or,
// with the tag gpu, a GPU.
type machine struct {
	mem      []byte
	used     int
	launches map[string]int
	shapes   map[shape]bool           // launched so far
	err      error                    // the first launch that failed since the last reset
	run      func(*Call) error        // runs a launch to completion
	allow    func(b []byte, use bool) // allows or forbids kernels to access b, for sanitizers
	close    func()
}

// shape distinguishes launches of a kernel on different operands.
type shape struct {
	kernel string
	grid   [3]uint32
	cost   Cost
}

// machineMemory is the memory of a machine in bytes.
const machineMemory = 192 << 20

// machines contains the machines, started on first use. All must agree to the bit.
var machines []*machine

func started(t testing.TB) []*machine {
	t.Helper()
	if machines == nil {
		machines = startMachines(t)
	}
	return machines
}

// TestMain ends the machines. If all tests ran, it fails unless every kernel has run.
func TestMain(m *testing.M) {
	code := m.Run()
	if machines != nil && flag.Lookup("test.run").Value.String() == "" {
		code = max(code, covered())
	}
	for _, e := range machines {
		e.close()
	}
	os.Exit(code)
}

// covered reports which kernels and shapes have run and returns 1 if a kernel has not.
func covered() (code int) {
	launches := 0
	for _, k := range Table() {
		if machines[0].launches[k.Name] == 0 && k.Family.RunsOn(capability(nil)) {
			fmt.Printf("%s was never launched\n", k.Name)
			code = 1
		}
		for _, e := range machines {
			launches += e.launches[k.Name]
		}
	}
	fmt.Printf("%s: %d kernels, %d shapes, %d launches on %d machines\n", machinesAre, len(Table()), len(machines[0].shapes), launches, len(machines))
	return code
}

// Launch runs the call to completion.
func (e *machine) Launch(c *Call) {
	if e.err == nil {
		e.launches[c.Kernel.Name]++
		e.shapes[shape{c.Kernel.Name, c.Grid, c.Cost}] = true
		e.err = e.run(c)
	}
}

// reset frees all memory.
func (e *machine) reset() {
	e.used, e.err = 0, nil
	e.allow(e.mem, false)
}

// alloc returns n elements, shift elements after an aligned address, with a gap before and after
// that kernels must not access.
func (e *machine) alloc(dt device.DType, n, shift int) device.Buffer {
	at := (e.used+127)&^63 + shift*dt.Size()
	b := device.Buffer{Type: dt, Host: true, N: n, Ptr: unsafe.Pointer(&e.mem[at])}
	e.used = at + b.Bytes()
	e.allow(e.mem[at:e.used], true)
	for _, g := range e.guards(b) {
		for i := range g {
			g[i] = guard
		}
	}
	return b
}

const guard = 0xa5

// guards returns the unused bytes before and after a buffer.
func (e *machine) guards(b device.Buffer) [2][]byte {
	at := int(uintptr(b.Ptr) - uintptr(unsafe.Pointer(&e.mem[0])))
	return [2][]byte{e.mem[at-16 : at], e.mem[at+b.Bytes():][:48]}
}
