// Package kernel contains the GPU's kernels: their sources in CUDA C, the PTX that NVRTC compiles
// from them for every GPU from compute capability 8.0 on, and Ops, which implements operations of
// nn, optim and zero by launches.
//
// It needs neither a driver nor a C compiler: a Launcher, such as a queue of device/cuda, passes
// calls to a GPU. scripts/build-ptx builds kernels.ptx.zst, the PTX of all families of kernels, and
// kernels.sm_80.zst and kernels.sm_90.zst, their cubins for GPUs of compute capability 8.x and 9.0;
// kernels.sha256 contains the hash of every source, family and cubin archive, and a test compares them.
// scripts/build-emu compiles the same sources to a library for the CPU.
//
// Bits: kernels use operations of IEEE 754 in a fixed order, so that a result does not depend on
// the GPU or the number of its processors; activations, norms, cross-entropy and attention on
// tensor cores also use the GPU's own 2^x, 1/x and 1/sqrt(x). Updates, sums of many buffers, exact
// sums and the gradients of embeddings have the bits of package cpu; the others add in a different
// order.
//
// Matrix products use cuBLAS instead.
package kernel

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// archives contain the PTX and the cubins of all families, concatenated by name, each preceded by
// the line "// family NAME", and compressed with zstd.
//
//go:embed kernels.ptx.zst kernels.sm_80.zst kernels.sm_90.zst
var archives embed.FS

// Family is a set of kernels that a job needs together: a driver loads them as one module. Base is
// what every job needs; another one is attention for one type and width of heads, or norms'
// gradients for a range of widths.
type Family struct {
	Name    string
	Index   int       // in Families
	Kernels []*Kernel // in the order of the PTX
	ptx     string
}

// Base is the name of the family that every job needs.
const Base = "base"

// PTX returns the family's text with a terminating zero byte, as cuModuleLoadData requires.
func (f *Family) PTX() []byte { return append([]byte(f.ptx), 0) }

// RunsOn reports whether GPUs of a compute capability have the family's instructions.
func (f *Family) RunsOn(major, minor int) bool {
	return hopper(major, minor) || !strings.Contains(f.ptx, ".target sm_90a\n")
}

// Images returns what a GPU's driver may load for the family, best first: its cubin, if there is one
// for the GPU's major compute capability, and the PTX, which the driver compiles.
func (f *Family) Images(major int) [][]byte {
	if cubin := cubins(major)[f.Name]; cubin != "" {
		return [][]byte{[]byte(cubin), f.PTX()}
	}
	return [][]byte{f.PTX()}
}

// unpacked contains the cubins of each archive, by family.
var unpacked = struct {
	sync.Mutex
	archives map[string]map[string]string
}{archives: map[string]map[string]string{}}

// cubins returns the cubins for GPUs of a major compute capability, by family, or none. They run on
// GPUs of that capability whatever the minor one.
func cubins(major int) map[string]string {
	name := fmt.Sprintf("kernels.sm_%d0.zst", major)
	if _, err := archives.Open(name); err != nil {
		return nil
	}
	unpacked.Lock()
	defer unpacked.Unlock()
	all := unpacked.archives[name]
	if all == nil {
		all = map[string]string{}
		for _, part := range unpack(name) {
			family, cubin, _ := strings.Cut(part, "\n")
			all[family] = cubin
		}
		unpacked.archives[name] = all
	}
	return all
}

// unpack returns the parts of an archive, each beginning with its family's name and a newline.
func unpack(name string) []string {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		panic(fmt.Sprintf("kernel: %v", err)) // cannot fail with these options
	}
	defer d.Close()
	archive, err := archives.ReadFile(name)
	if err == nil {
		archive, err = d.DecodeAll(archive, nil)
	}
	if err != nil {
		panic(fmt.Sprintf("kernel: %s in this program is damaged: %v", name, err))
	}
	return strings.Split(string(archive), "// family ")[1:]
}

// Kernel is an entry of the PTX.
type Kernel struct {
	Name    string
	Family  *Family
	Index   int     // in Table
	Threads uint32  // threads per block, in one dimension
	Params  []Param // followed by one of 0 bytes, where lists end
}

// Param is a parameter of a kernel: its offset among all parameters, aligned as in C, and its size.
type Param struct{ Offset, Bytes int }

// Offsets returns the offsets of the parameters.
func (k *Kernel) Offsets() (at []int32) {
	for _, p := range k.Params {
		at = append(at, int32(p.Offset))
	}
	return at
}

// The table is parsed on first use, so a program that uses no GPU does not keep it or the PTX in
// memory.
var (
	tableOnce sync.Once
	families  []*Family
	inOrder   []*Kernel
	named     map[string]*Kernel
)

// Table returns all kernels, family by family.
func Table() []*Kernel {
	tableOnce.Do(fillTable)
	return inOrder
}

// Families returns all families, sorted by name.
func Families() []*Family {
	tableOnce.Do(fillTable)
	return families
}

func fillTable() {
	named = map[string]*Kernel{}
	for i, text := range unpack("kernels.ptx.zst") {
		name, ptx, _ := strings.Cut(text, "\n")
		f := &Family{Name: name, Index: i, Kernels: parse(ptx), ptx: ptx}
		families = append(families, f)
		for _, k := range f.Kernels {
			k.Family, k.Index, named[k.Name] = f, len(inOrder), k
			inOrder = append(inOrder, k)
		}
	}
}

// entry is a kernel by its name, which is looked up once.
type entry struct {
	name string
	at   atomic.Pointer[Kernel]
}

func entryOf(name string) *entry { return &entry{name: name} }

func (e *entry) kernel() *Kernel {
	k := e.at.Load()
	if k == nil {
		k = byName(e.name)
		e.at.Store(k)
	}
	return k
}

func byName(name string) *Kernel {
	Table()
	k := named[name]
	if k == nil {
		panic("kernel: the PTX has no " + name)
	}
	return k
}

// parse reads the entries of PTX. A parameter is a line such as
//
//	.param .align 8 .b8 add_param_0[16],
//	.param .u64 add_param_3
//
// and the line after the last one contains the threads: .maxntid 256, 1, 1
func parse(text string) (all []*Kernel) {
	for {
		_, rest, ok := strings.Cut(text, ".entry ")
		if !ok {
			return all
		}
		name, rest, _ := strings.Cut(rest, "(")
		list, rest, _ := strings.Cut(rest, ")")
		_, threads, _ := strings.Cut(rest, ".maxntid ")
		threads, rest, _ = strings.Cut(threads, ",")
		k := &Kernel{Name: name, Threads: uint32(number(threads))}
		end := 0
		for line := range strings.Lines(list) {
			if words := strings.Fields(line); len(words) > 0 {
				bytes, align := paramSize(words)
				at := (end + align - 1) / align * align
				k.Params = append(k.Params, Param{at, bytes})
				end = at + bytes
			}
		}
		k.Params = append(k.Params, Param{})[:len(k.Params)]
		all = append(all, k)
		text = rest
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic("kernel: not a number in the PTX: " + s)
	}
	return n
}

func paramSize(words []string) (bytes, align int) {
	if words[1] == ".align" {
		_, size, _ := strings.Cut(words[4], "[")
		size, _, _ = strings.Cut(size, "]")
		return number(size), number(words[2])
	}
	n := number(strings.TrimLeft(words[1], ".ubfs")) / 8
	return n, n
}
