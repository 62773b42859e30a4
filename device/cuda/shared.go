//go:build cuda

package cuda

import (
	"fmt"
	"sync"
	"sync/atomic"

	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/kernel"
)

// shared is an open GPU with its kernels, shared by all of its devices and pinned memory. Kernels
// are loaded one family at a time, when the first of a family is launched or requested: a job uses
// few of them, and a driver takes seconds to compile all.
type shared struct {
	*driver.GPU
	users     int                               // guarded by opened
	families  []family                          // in the order of kernel.Families
	functions []atomic.Pointer[driver.Function] // in the order of kernel.Table; nil before the family is loaded
	pinned    sync.Map                          // host memory from Pinned.Take: its first byte, and the address to free
}

// family is a set of kernels of a GPU that are loaded together.
type family struct {
	load   func() error   // runs once; may be called from any goroutine
	module *driver.Module // nil if it is not loaded
}

// opened contains the GPUs that this process has open: the driver, too, has one context for each.
var opened = struct {
	sync.Mutex
	gpus map[int]*shared
}{gpus: map[int]*shared{}}

func openShared(ordinal int) (*shared, error) {
	opened.Lock()
	defer opened.Unlock()
	s := opened.gpus[ordinal]
	if s == nil {
		g, err := driver.Open(ordinal)
		if err != nil {
			return nil, err
		}
		s = newShared(g)
		if err := s.start(); err != nil {
			s.end()
			return nil, err
		}
		opened.gpus[ordinal] = s
	}
	s.users++
	return s, nil
}

func newShared(g *driver.GPU) *shared {
	all := kernel.Families()
	s := &shared{GPU: g, families: make([]family, len(all)), functions: make([]atomic.Pointer[driver.Function], len(kernel.Table()))}
	for i, f := range all {
		s.families[i].load = sync.OnceValue(func() error { return s.load(f) })
	}
	return s
}

// start loads the kernels that every job needs, to check that the driver accepts them.
func (s *shared) start() error {
	if s.Major < driver.LeastMajor {
		return fmt.Errorf("%v has compute capability %d.%d, but the kernels need %d.0 or newer (since A100, RTX 30)", s.GPU, s.Major, s.Minor, driver.LeastMajor)
	}
	for _, f := range kernel.Families() {
		if f.Name == kernel.Base {
			return s.want(f)
		}
	}
	panic("cuda: no family " + kernel.Base)
}

func (s *shared) close() {
	opened.Lock()
	defer opened.Unlock()
	if s.users--; s.users == 0 {
		s.end()
		delete(opened.gpus, s.Ordinal)
	}
}

// end unloads the kernels and releases the GPU. Errors come from a failed context, which has been
// reported.
func (s *shared) end() {
	for _, f := range s.families {
		if f.module != nil {
			_ = f.module.Unload()
		}
	}
	_ = s.GPU.Close()
}

// want loads a family, unless it is already loaded. It may be called from any goroutine.
func (s *shared) want(f *kernel.Family) error { return s.families[f.Index].load() }

// function returns a kernel on the GPU. It may be called from any goroutine.
func (s *shared) function(k *kernel.Kernel) (*driver.Function, error) {
	at := &s.functions[k.Index]
	if f := at.Load(); f != nil {
		return f, nil
	}
	if err := s.want(k.Family); err != nil {
		return nil, err
	}
	return at.Load(), nil
}

// load loads a family's cubin, or PTX that the driver compiles or has in its cache.
func (s *shared) load(family *kernel.Family) error {
	m, err := s.Load(family.Name, family.Images(s.Major)...)
	if err != nil {
		return err
	}
	s.families[family.Index].module = m
	most := kernel.Shared()
	for _, k := range family.Kernels {
		f, err := m.Function(k.Name, k.Threads, k.Offsets(), int(most[k]))
		if err != nil {
			return err
		}
		s.functions[k.Index].Store(&f)
	}
	return nil
}
