//go:build mpi && cgo

package mpi

// #cgo CFLAGS: -O2
// #cgo LDFLAGS: -ldl
// #cgo noescape z_isend
// #cgo nocallback z_isend
// #cgo noescape z_irecv
// #cgo nocallback z_irecv
// #cgo noescape z_cancel
// #cgo nocallback z_cancel
// #cgo noescape z_test
// #cgo nocallback z_test
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Built reports whether this program supports MPI.
const Built = true

// Open loads the first library that exists, by file name or path. A program can load only one.
func Open(files []string) error {
	// Some libraries use UCX. Faults must be handled by Go, and the stack that UCX prints when it
	// gives up does not help users.
	for name, value := range map[string]string{"UCX_ERROR_SIGNALS": "", "UCX_HANDLE_ERRORS": "none"} {
		if _, ok := os.LookupEnv(name); !ok {
			_ = os.Setenv(name, value) // cannot fail for these names
		}
	}
	var wrong []string
	for _, file := range files {
		name := C.CString(file)
		why := C.GoString(C.z_open(name))
		C.free(unsafe.Pointer(name))
		if why == "" {
			return nil
		}
		wrong = append(wrong, why)
	}
	return fmt.Errorf("no MPI library: %s: set ZEROTH_MPI to the path of the libmpi of your mpirun", strings.Join(wrong, "; "))
}

// Version returns the name of the loaded library and its ABI, such as "Open MPI v4.1.4 (Open MPI's
// ABI)", or "".
func Version() string {
	line, _, _ := strings.Cut(C.GoString(C.z_version()), "\n")
	line, _, _ = strings.Cut(line, ",")
	if line == "" {
		return ""
	}
	return fmt.Sprintf("%s (%s)", strings.Join(strings.Fields(line), " "), C.GoString(C.z_abi()))
}

// leave asks the thread of Join to leave MPI.
var leave = make(chan chan struct{})

// Join initializes MPI, once per program and after Open. It waits for the other processes and
// returns an error if MPI assigned this process another rank or world size. MPI must be finalized
// on the thread that initialized it, which Join reserves.
func Join(rank, size int) error {
	if Version() == "" {
		panic("mpi: Join before Open")
	}
	joined := make(chan error)
	go func() {
		runtime.LockOSThread()
		joined <- join(rank, size)
		left := <-leave
		if C.z_finalize() == 0 {
			finalized.Store(true)
		}
		close(left)
	}()
	return <-joined
}

func join(rank, size int) error {
	var threads, its, all C.int
	if err := failed(C.z_init(&threads, &its, &all)); err != nil {
		return err
	}
	switch {
	case int(its) != rank || int(all) != size:
		return fmt.Errorf("according to MPI (%s) this is process %d of %d, but it was started as %d of %d: use the mpirun or mpiexec of that library, or set ZEROTH_MPI to the path of the launcher's",
			Version(), its, all, rank, size)
	case threads == 0:
		return errors.New("this MPI does not support MPI_THREAD_MULTIPLE: set parallel.transport to auto, unix or tcp, or use another build of MPI")
	}
	return nil
}

// Leave finalizes MPI together with the other processes. It waits for them; once hurry is closed,
// for at most farewell.
func Leave(hurry <-chan struct{}) {
	left := make(chan struct{})
	leave <- left
	select {
	case <-left:
	case <-hurry:
		select {
		case <-left:
		case <-time.After(farewell):
		}
	}
}

// finalized reports whether MPI was finalized successfully.
var finalized atomic.Bool

// Exit ends the program with C's exit if Leave has finalized MPI, else does nothing. C's exit runs
// handlers of libraries: MPICH since 4.3 notifies its launcher in one, which otherwise considers
// the process killed and kills the others.
func Exit(code int) {
	if finalized.Load() {
		C.exit(C.int(code))
	}
}

// failed converts an MPI error code to an error, nil for success.
func failed(code C.int) error {
	if code == 0 {
		return nil
	}
	text := make([]C.char, 1024)
	C.z_message(code, &text[0], C.int(len(text)))
	return fmt.Errorf("MPI: error %d: %s", code, C.GoString(&text[0]))
}

// request is an outstanding message. It references its memory while MPI uses it; Go's heap does not
// move.
type request struct {
	handle C.uint64_t
	b      []byte
	// scratch: the received data is ignored. cancelled: MPI was asked to cancel it.
	scratch, cancelled bool
}

// calls is held by every call that may match a message with a receive, and alone by cancellations. Open MPI
// (4.1.4) marks a receive as matched only after it has removed it from its list and released its lock. If
// another thread cancels it in between, it is removed twice: the message is lost, or the next search of the
// list never ends.
var calls sync.RWMutex

func isend(b []byte, to, tag int) (r request, err error) {
	r.b = b
	calls.RLock()
	defer calls.RUnlock()
	err = failed(C.z_isend(C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), C.int(len(b)), C.int(to), C.int(tag), &r.handle))
	return r, err
}

func irecv(b []byte, from, tag int) (r request, err error) {
	r.b = b
	calls.RLock()
	defer calls.RUnlock()
	err = failed(C.z_irecv(C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), C.int(len(b)), C.int(from), C.int(tag), &r.handle))
	return r, err
}

// test looks for a completed request among handles, starting at first.
func test(handles []C.uint64_t, first int, done *C.z_done) C.int {
	calls.RLock()
	defer calls.RUnlock()
	return C.z_test(&handles[0], C.int(len(handles)), C.int(first), done)
}

// cancel cancels a receive. After an error, the request completes normally.
func cancel(handle *C.uint64_t) {
	calls.Lock()
	defer calls.Unlock()
	C.z_cancel(handle)
}

// pause yields the processor, the longer the more polls found nothing.
func pause(polls int) {
	switch {
	case polls < busyPolls:
	case polls < yieldPolls:
		C.z_yield()
		runtime.Gosched()
	case polls < idlePolls:
		runtime.Gosched()
		C.z_sleep(50)
	default:
		time.Sleep(time.Millisecond)
	}
}

// Measured while computing, with two processes on two processors: pure spinning takes twice the
// time.
const (
	busyPolls  = 50
	yieldPolls = 2000
	idlePolls  = 20000 // after a second or more
)
