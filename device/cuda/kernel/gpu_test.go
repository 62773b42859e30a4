//go:build cuda && gpu

package kernel

import (
	"errors"
	"testing"
	"unsafe"

	"zeroth/device/cuda/driver"
)

// With the tag gpu the tests run on the first GPU, twice, and both times have to
// agree to the bit. Operands are in pinned memory, which a GPU addresses as the host
// does: this is about results, not speed.

const machinesAre = "on a GPU"

func startMachines(t testing.TB) []*machine {
	g, err := driver.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	functions, most := make([]driver.Function, len(Table())), Shared()
	for _, f := range Families() {
		m, err := g.Load(f.Name, f.PTX())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range f.Kernels {
			if functions[k.Index], err = m.Function(k.Name, k.Threads, k.Offsets(), int(most[k])); err != nil {
				t.Fatal(err)
			}
		}
	}
	return []*machine{onGPU(t, g, functions), onGPU(t, g, functions)}
}

func onGPU(t testing.TB, g *driver.GPU, functions []driver.Function) *machine {
	p, err := g.AllocHost(machineMemory)
	if err != nil {
		t.Fatal(err)
	}
	s, err := g.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	put := s.Commands()
	run := func(c *Call) error {
		put.Launch(functions[c.Kernel.Index], c.Grid, c.Shared, c.Args())
		return errors.Join(put.Run(), s.Wait())
	}
	return &machine{mem: unsafe.Slice((*byte)(p), machineMemory), launches: map[string]int{}, shapes: map[shape]bool{}, run: run,
		allow: func([]byte, bool) {}, close: func() { _ = s.Close(); _ = g.FreeHost(p) }}
}
