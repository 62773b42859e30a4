//go:build cuda && !gpu

package kernel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// The kernels run in a separate process built from their sources by scripts/build-emu, which
// needs only g++. ZEROTH_EMU=asan or tsan builds it with a sanitizer. Then an access outside the
// operands, or a race, ends the process and fails the test.

func emuKind() string { return os.Getenv("ZEROTH_EMU") }

// buildEmulator compiles the emulator into a new folder.
func buildEmulator() (string, error) {
	if _, err := exec.LookPath("g++"); err != nil {
		return "", errors.New("no g++ to compile the emulator of CUDA kernels with")
	}
	dir, err := os.MkdirTemp("", "zeroth-emu-")
	if err != nil {
		return "", err
	}
	build := exec.Command("../../../scripts/build-emu", dir)
	if kind := emuKind(); kind != "" {
		build.Args = append(build.Args, kind)
	}
	for _, pattern := range []string{"*.cu*", "../emu/*"} { // reading the sources makes go test run again when they change
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			if _, err := os.ReadFile(name); err != nil {
				return dir, err
			}
		}
	}
	if text, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build-emu: %w\n%s", err, text)
	}
	return dir, nil
}

// process runs kernels on memory that it shares with the test.
type process struct {
	run  *exec.Cmd
	in   *bufio.Writer
	pipe io.Closer
	out  *bufio.Scanner
}

const machinesAre = "emulated"

// capability returns a compute capability whose instructions the emulator has.
func capability(testing.TB) (major, minor int) { return 9, 0 }

// startMachines returns emulators that run threads in order and in random orders.
func startMachines(t testing.TB) (all []*machine) {
	dir, err := buildEmulator()
	if dir == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	orders := []string{"", "EMU_SEED=1", "EMU_SEED=77"}
	if !nightly.All() {
		orders = orders[:2]
	}
	for i, order := range orders {
		e, p := startEmulator(t, dir, order, machineMemory, os.Stderr)
		if i == 0 {
			firstProcess = p
			closeIt := e.close
			e.close = func() { closeIt(); os.RemoveAll(dir) }
		}
		all = append(all, e)
	}
	emulatorIn = dir
	return all
}

var (
	firstProcess *process // of the first machine
	emulatorIn   string   // the folder
)

// startEmulator maps a file at a free address and retries if the process already uses that
// address.
func startEmulator(t testing.TB, dir, order string, memory int, stderr io.Writer) (e *machine, p *process) {
	t.Helper()
	var err error
	for range 5 {
		if e, p, err = tryEmulator(dir, order, memory, stderr); err == nil {
			return e, p
		}
	}
	t.Fatal(err)
	return nil, nil
}

func tryEmulator(dir, order string, memory int, stderr io.Writer) (*machine, *process, error) {
	f, err := os.CreateTemp(dir, "memory")
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if err := f.Truncate(int64(memory)); err != nil {
		return nil, nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, memory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	p := &process{run: exec.Command(filepath.Join(dir, "run"), f.Name(), fmt.Sprintf("%p", mem))}
	p.run.Env = append(os.Environ(), order)
	p.run.Stderr = stderr
	in, err := p.run.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := p.run.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	p.in, p.pipe, p.out = bufio.NewWriter(in), in, bufio.NewScanner(out)
	if err := p.run.Start(); err != nil {
		return nil, nil, err
	}
	e := &machine{mem: mem, launches: map[string]int{}, shapes: map[shape]bool{}, run: p.launch, allow: p.allow}
	e.close = func() {
		p.pipe.Close()
		p.run.Wait()
		unix.Munmap(mem)
	}
	if _, err := p.sizes("fill"); err != nil {
		e.close()
		return nil, nil, err
	}
	e.reset()
	return e, p, nil
}

// answer returns the next line.
func (p *process) answer() (string, error) {
	p.in.Flush()
	if !p.out.Scan() {
		return "", errors.New("the emulator has ended")
	}
	return p.out.Text(), nil
}

// sizes returns the sizes of a kernel's parameters according to g++, preceded by their number.
func (p *process) sizes(name string) (string, error) {
	fmt.Fprintf(p.in, "P%s\x00", name)
	return p.answer()
}

func (p *process) launch(c *Call) error {
	p.in.WriteByte('L')
	binary.Write(p.in, binary.LittleEndian, [...]uint32{c.Grid[0], c.Grid[1], c.Grid[2], c.Kernel.Threads, c.Shared, uint32(len(c.Kernel.Params)), 0})
	p.in.WriteString(c.Kernel.Name + "\x00")
	for _, x := range c.Kernel.Params {
		binary.Write(p.in, binary.LittleEndian, uint32(x.Bytes))
	}
	for _, x := range c.Kernel.Params {
		p.in.Write(c.Args()[x.Offset : x.Offset+x.Bytes])
	}
	said, err := p.answer()
	if err == nil && said != "" {
		err = errors.New(strings.TrimSpace(said))
	}
	return err
}

func (p *process) allow(b []byte, use bool) {
	how := byte('-')
	if use {
		how = '+'
	}
	p.in.WriteByte(how)
	binary.Write(p.in, binary.LittleEndian, [2]uint64{uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), uint64(len(b))})
}

// TestIDsOutsideVocabulary tests ids for which the CPU panics; a GPU's context would end.
func TestIDsOutsideVocabulary(t *testing.T) {
	e := started(t)[0]
	for _, id := range []int{-1, 7} {
		e.reset()
		b := &bench{e: e, rng: rand.New(rand.NewPCG(1, 1))}
		y, wte := b.make("y", device.F32, 1, 4), b.mat("wte", device.F32, 7, 4, 1)
		ids, loss := b.ints("ids", 1, id, id+1), b.make("loss", device.F32, 1, 1)
		o := &Ops{To: e, Weigh: true}
		o.Embed(y.Mat, wte.Mat, device.Mat{}, device.Vocab{}, ids.Buf, 1, device.Buffer{})
		if e.err == nil {
			t.Errorf("id %d of 7 is looked up", id)
		}
		if e.err = nil; id == -1 {
			continue // a target without loss
		}
		o.CrossEntropy(loss.Buf, device.Matrix(wte.Buf, 1, 7), ids.Buf, 0)
		if e.err == nil {
			t.Errorf("target %d of 7 has a loss", id)
		}
	}
}

// TestSanitizerSees writes an element after an operand. In a build with ASan, this must end the
// process.
func TestSanitizerSees(t *testing.T) {
	if emuKind() != "asan" {
		t.Skip("without ZEROTH_EMU=asan nobody watches")
	}
	started(t)
	e, _ := startEmulator(t, emulatorIn, "", machineMemory, nil)
	defer e.close()
	x := e.alloc(device.F32, 5, 0)
	o := &Ops{To: e, Weigh: true}
	o.Zero(x)
	if e.err != nil {
		t.Fatal(e.err)
	}
	x.N++
	if o.Zero(x); e.err == nil {
		t.Error("an element behind the operand was written, and the emulator goes on")
	}
}

// TestParameters compares each kernel's parameters in the PTX with those in C++.
func TestParameters(t *testing.T) {
	started(t)
	for _, k := range Table() {
		want := itoa(len(k.Params))
		for _, p := range k.Params {
			want += " " + itoa(p.Bytes)
		}
		if got, err := firstProcess.sizes(k.Name); got != want {
			t.Errorf("%s: %s bytes of parameters in C++, %s in PTX (%v)", k.Name, got, want, err)
		}
	}
}
