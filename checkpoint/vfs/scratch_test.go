package vfs

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/tests/nightly"
)

// A scratch file in use cannot be opened by someone else, and its name cannot be created again.
func TestScratchLocks(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	f, err := OS{}.CreateLocked(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (OS{}).OpenLocked(name); err != ErrLocked && !strings.Contains(fmt.Sprint(err), ErrLocked.Error()) {
		t.Errorf("opening a file in use: %v", err)
	}
	if _, err := (OS{}).CreateLocked(name); !os.IsExist(err) {
		t.Errorf("making it again: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	g, err := OS{}.OpenLocked(name)
	if err != nil {
		t.Fatalf("opening it after it was closed: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

// Transfers give the same results directly, performed asynchronously by the kernel, and
// through the page cache: bytes, lengths at the end of the file, and concurrency.
func TestFileTransfers(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dev := cpu.NewHost(1)
	defer dev.Close()
	const block, blocks = 4096, 40
	for _, direct := range []bool{false, true} {
		f, err := OS{}.CreateLocked(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		if f.Direct(direct) != direct {
			t.Logf("no direct transfers in %s", t.TempDir())
		}
		mem := make([]device.Buffer, blocks)
		for i := range mem {
			if mem[i], err = dev.Alloc(device.F32, block/4, device.Staging); err != nil {
				t.Fatal(err)
			}
		}
		all := func(op func(i int, b []byte) error) {
			var wg sync.WaitGroup
			for i := range mem {
				wg.Go(func() {
					if err := op(i, mem[i].Raw()); err != nil {
						t.Errorf("direct %v: block %d: %v", direct, i, err)
					}
				})
			}
			wg.Wait()
		}
		all(func(i int, b []byte) error {
			for j := range b {
				b[j] = byte(i + j)
			}
			n, err := f.WriteAt(b, int64(i)*block)
			if n != block {
				err = fmt.Errorf("%d bytes written: %w", n, err)
			}
			return err
		})
		all(func(i int, b []byte) error {
			clear(b)
			at := (i + 7) % blocks
			if n, err := f.ReadAt(b, int64(at)*block); n != block || err != nil {
				return fmt.Errorf("%d bytes read: %w", n, err)
			}
			for j := range b {
				if b[j] != byte(at+j) {
					return fmt.Errorf("byte %d is %d", j, b[j])
				}
			}
			return nil
		})
		if n, err := f.ReadAt(mem[0].Raw(), blocks*block); n != 0 || err != io.EOF {
			t.Errorf("direct %v: past the end: %d bytes, %v", direct, n, err)
		}
		if _, err := f.ReadAt(mem[0].Raw(), -block); err == nil {
			t.Errorf("direct %v: a read before the start succeeds", direct)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		for _, m := range mem {
			dev.Free(m)
		}
	}
}

// Many small transfers all complete, even if several complete between two calls of
// io_getevents and the runtime sends signals to its threads.
func TestManyTransfersEnd(t *testing.T) {
	nightly.Long(t)
	f, err := OS{}.CreateLocked(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Direct(true)
	dev := cpu.NewHost(1)
	defer dev.Close()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		go func() { // keeps processors busy, so that the runtime preempts with signals
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	defer close(stop)
	for lane := range 24 { // more than can run concurrently
		mem, err := dev.Alloc(device.F32, 1024, device.Staging)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Free(mem)
		wg.Go(func() {
			for i := range 6 {
				at := int64(lane*6+i) * 4096
				if _, err := f.WriteAt(mem.Raw(), at); err != nil {
					t.Error(err)
				}
				if n, err := f.ReadAt(mem.Raw(), at); n != 4096 || err != nil {
					t.Error(n, err)
				}
			}
		})
	}
	wg.Wait()
}
