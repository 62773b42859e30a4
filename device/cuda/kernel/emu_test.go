//go:build cuda

package kernel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"zeroth/device"
)

// The kernels run in a process that scripts/build-emu makes of them, for which
// g++ is enough. ZEROTH_EMU=asan or tsan builds it with a sanitizer; then an
// access outside of operands, or a race, ends it and fails the test.

func emuKind() string { return os.Getenv("ZEROTH_EMU") }

// builtEmu is the folder of the built emulator.
var builtEmu = sync.OnceValues(func() (string, error) {
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
	for _, pattern := range []string{"*.cu*", "../emu/*"} { // what is read here makes go test run again when it changes
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
})

// TestMain ends the emulators. Where all tests ran, every kernel has to have run.
func TestMain(m *testing.M) {
	code := m.Run()
	if emus != nil && flag.Lookup("test.run").Value.String() == "" {
		code = max(code, covered())
	}
	for _, e := range emus {
		e.close()
	}
	if emus != nil {
		dir, _ := builtEmu()
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// covered says how much has run, and is 1 if a kernel has not.
func covered() (code int) {
	launches := 0
	for _, k := range Table() {
		if emus[0].launches[k.Name] == 0 {
			fmt.Printf("%s was never launched\n", k.Name)
			code = 1
		}
		for _, e := range emus {
			launches += e.launches[k.Name]
		}
	}
	fmt.Printf("emulated: %d kernels, %d launches, %d orders of threads\n", len(Table()), launches, len(emus))
	return code
}

// emulator is a process that runs kernels on memory it shares with the test.
type emulator struct {
	run      *exec.Cmd
	in       *bufio.Writer
	pipe     io.Closer
	out      *bufio.Scanner
	mem      []byte
	used     int
	launches map[string]int
	err      error // the first launch that failed since the last reset
}

const emuMemory = 192 << 20

// emus run threads in order, and in an order drawn by seeds.
var emus []*emulator

func emulators(t testing.TB) []*emulator {
	t.Helper()
	if emus != nil {
		return emus
	}
	dir, err := builtEmu()
	if dir == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	orders := []string{"", "EMU_SEED=1", "EMU_SEED=77"}
	if testing.Short() {
		orders = orders[:2]
	}
	for _, order := range orders {
		e, err := startEmulator(dir, order)
		if err != nil {
			t.Fatal(err)
		}
		emus = append(emus, e)
	}
	return emus
}

// startEmulator maps a file wherever there is room, and tries again where that is
// taken in the process.
func startEmulator(dir, order string) (e *emulator, err error) {
	for range 5 {
		if e, err = tryEmulator(dir, order); err == nil {
			return e, nil
		}
	}
	return nil, err
}

func tryEmulator(dir, order string) (*emulator, error) {
	f, err := os.CreateTemp(dir, "memory")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(emuMemory); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, emuMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	e := &emulator{mem: mem, launches: map[string]int{}}
	e.run = exec.Command(filepath.Join(dir, "run"), f.Name(), fmt.Sprintf("%p", mem))
	e.run.Env = append(os.Environ(), order)
	e.run.Stderr = os.Stderr
	in, err := e.run.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := e.run.StdoutPipe()
	if err != nil {
		return nil, err
	}
	e.in, e.pipe, e.out = bufio.NewWriter(in), in, bufio.NewScanner(out)
	if err := e.run.Start(); err != nil {
		return nil, err
	}
	if _, err := e.sizes("fill"); err != nil {
		e.close()
		return nil, err
	}
	e.reset()
	return e, nil
}

func (e *emulator) close() {
	e.pipe.Close()
	e.run.Wait()
	unix.Munmap(e.mem)
}

// answer is the next line.
func (e *emulator) answer() (string, error) {
	e.in.Flush()
	if !e.out.Scan() {
		return "", errors.New("the emulator has ended")
	}
	return e.out.Text(), nil
}

// sizes are those of a kernel's parameters, as g++ sees them, their number first.
func (e *emulator) sizes(name string) (string, error) {
	fmt.Fprintf(e.in, "P%s\x00", name)
	return e.answer()
}

// Launch runs the call to its end.
func (e *emulator) Launch(c *Call) {
	if e.err != nil {
		return
	}
	e.launches[c.Kernel.Name]++
	e.in.WriteByte('L')
	for _, x := range [...]uint32{c.Grid[0], c.Grid[1], c.Grid[2], Threads, c.Shared, uint32(len(c.Kernel.Params)), 0} {
		binary.Write(e.in, binary.LittleEndian, x)
	}
	e.in.WriteString(c.Kernel.Name + "\x00")
	for _, p := range c.Kernel.Params {
		binary.Write(e.in, binary.LittleEndian, uint32(p.Bytes))
	}
	for _, p := range c.Kernel.Params {
		e.in.Write(c.Args()[p.Offset : p.Offset+p.Bytes])
	}
	said, err := e.answer()
	if err == nil && said != "" {
		err = errors.New(strings.TrimSpace(said))
	}
	e.err = err
}

// reset takes all memory back.
func (e *emulator) reset() {
	e.used, e.err = 0, nil
	e.allow('-', e.mem)
}

func (e *emulator) allow(how byte, b []byte) {
	e.in.WriteByte(how)
	binary.Write(e.in, binary.LittleEndian, [2]uint64{uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), uint64(len(b))})
}

// alloc is n elements, shift elements after an aligned address, with a gap before
// and behind that kernels must not touch.
func (e *emulator) alloc(dt device.DType, n, shift int) device.Buffer {
	at := (e.used+127)&^63 + shift*dt.Size()
	b := device.Buffer{Type: dt, Host: true, N: n, Ptr: unsafe.Pointer(&e.mem[at])}
	e.used = at + b.Bytes()
	e.allow('+', e.mem[at:e.used])
	return b
}
