//go:build cuda && gpu

package kernel

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"zeroth/device/cuda/driver"
)

// With the tag gpu the tests run on the first GPU, twice, and both runs must agree to the bit: with
// the kernels that a job uses, and with those that the driver compiles.
// Operands are in pinned memory, which a GPU can address like the host, so these runs test
// results, not speed.

const machinesAre = "on a GPU"

// capability returns the GPU's compute capability.
func capability(t testing.TB) (major, minor int) {
	g, err := driver.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	return g.Major, g.Minor
}

func startMachines(t testing.TB) []*machine {
	g, err := driver.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	shipped := loader{g, func(f *Family) [][]byte { return f.Images(g.Major) }, map[*Kernel]driver.Function{}}
	compiled := loader{g, func(f *Family) [][]byte { return [][]byte{f.PTX()} }, map[*Kernel]driver.Function{}}
	return []*machine{shipped.machine(t), compiled.machine(t)}
}

// loader loads a family when the first of its kernels is launched, so a family that the driver
// rejects fails only the tests that need it.
type loader struct {
	g         *driver.GPU
	images    func(*Family) [][]byte
	functions map[*Kernel]driver.Function
}

func (l *loader) function(k *Kernel) (f driver.Function, err error) {
	if f, ok := l.functions[k]; ok {
		return f, nil
	}
	m, err := l.g.Load(k.Family.Name, l.images(k.Family)...)
	if err != nil {
		return f, err
	}
	for _, k := range k.Family.Kernels {
		if l.functions[k], err = m.Function(k.Name, k.Threads, k.Offsets(), int(Shared()[k])); err != nil {
			return f, err
		}
	}
	return l.functions[k], nil
}

func (l *loader) machine(t testing.TB) *machine {
	p, err := l.g.AllocHost(machineMemory)
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.g.NewStream(false)
	if err != nil {
		t.Fatal(err)
	}
	put := s.Commands()
	run := func(c *Call) error {
		f, err := l.function(c.Kernel)
		if err != nil {
			return err
		}
		put.Launch(f, c.Grid, c.Shared, c.Args())
		if err := errors.Join(put.Run(), s.Wait()); err != nil {
			return fmt.Errorf("kernel %s, grid %v: %w", c.Kernel.Name, c.Grid, err)
		}
		return nil
	}
	return &machine{mem: unsafe.Slice((*byte)(p), machineMemory), launches: map[string]int{}, shapes: map[shape]bool{}, run: run,
		allow: func([]byte, bool) {}, close: func() { _ = s.Close(); _ = l.g.FreeHost(p) }}
}

// TestFamilyLoads is a rung of the ladder of tests/gpu: each image of each family is loaded alone,
// reporting the compiler's notes, the time, and the kernels' resources compared with ptxas's.
func TestFamilyLoads(t *testing.T) {
	_, on := readAssembled(t)
	for _, f := range Families() {
		t.Run(f.Name, func(t *testing.T) {
			g, err := driver.Open(0)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			if !f.RunsOn(g.Major, g.Minor) {
				t.Skip("it needs compute capability 9.0")
			}
			images := f.Images(g.Major)
			for i, image := range images {
				how := "load"
				if i == len(images)-1 {
					how = "compile"
				}
				loadFamily(t, g, f, how, image, on)
			}
		})
	}
}

func loadFamily(t *testing.T, g *driver.GPU, f *Family, how string, image []byte, on map[string][2]assembled) {
	begin := time.Now()
	m, err := g.Load(f.Name, image)
	if err != nil {
		t.Error(err)
		return
	}
	defer m.Unload()
	took := time.Since(begin)
	fmt.Println(m.Log)
	var uses []string
	for _, k := range f.Kernels {
		fn, err := m.Function(k.Name, k.Threads, k.Offsets(), int(Shared()[k]))
		if err != nil {
			t.Fatal(err)
		}
		registers, local, err := m.Uses(fn)
		if err != nil {
			t.Fatal(err)
		}
		ptxas := on[k.Name][min(1, max(0, g.Major-8))]
		if most := (64 << 10) / int(k.Threads); registers > most {
			t.Errorf("%s has %d registers a thread; blocks of %d have room for %d", k.Name, registers, k.Threads, most)
		}
		uses = append(uses, fmt.Sprintf("%s %d/%d (%d/%d)", k.Name, registers, local, ptxas.registers, ptxas.stack))
	}
	fmt.Printf("row\t%s %s\t%.3g s, and %.3g s to find the kernels\t\n", how, f.Name, took.Seconds(), (time.Since(begin) - took).Seconds())
	fmt.Printf("row\tregisters/local bytes\t%d kernels\t%s; in parentheses ptxas's\n", len(f.Kernels), strings.Join(uses, ", "))
}
