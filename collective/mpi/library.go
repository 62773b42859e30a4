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
	"sync/atomic"
	"time"
	"unsafe"
)

// Built is whether this program can use MPI.
const Built = true

// Open takes the first library that is there, by file name or path. A program has
// one.
func Open(files []string) error {
	// UCX, which some libraries bring: faults are Go's to handle, and where UCX gives up
	// its own stack says nothing to a user.
	for name, value := range map[string]string{"UCX_ERROR_SIGNALS": "", "UCX_HANDLE_ERRORS": "none"} {
		if _, ok := os.LookupEnv(name); !ok {
			_ = os.Setenv(name, value) // fails for no such name
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

// Version is what the open library calls itself, and its ABI: "Open MPI v4.1.4 (Open
// MPI's ABI)"; empty where none is open.
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

// Join begins MPI; it is an error if this process is not the one of that number in
// a world of that size. Open comes before. It waits for the others, once in a program. MPI ends on the
// thread on which it began, which is kept.
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
		return fmt.Errorf("MPI (%s) says that this is process %d of %d, and it is %d of %d: start it by the mpirun or mpiexec of that library, or set ZEROTH_MPI to the path of theirs",
			Version(), its, all, rank, size)
	case threads == 0:
		return errors.New("this MPI is not for several threads (MPI_THREAD_MULTIPLE): want parallel.transport: auto, unix or tcp with another build of it")
	}
	return nil
}

// Leave ends MPI, once the other processes do; it waits for them, but only a moment
// after hurry is closed.
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

// finalized is whether MPI has ended as it should.
var finalized atomic.Bool

// Exit ends the program by C's exit if Leave has ended MPI, and does nothing else. C's exit
// runs what libraries have left for it: MPICH since 4.3 says there to its launcher that
// the process is done, and one that has not is taken for killed, and the others are.
func Exit(code int) {
	if finalized.Load() {
		C.exit(C.int(code))
	}
}

// failed is the error of a code of MPI's, nil for success.
func failed(code C.int) error {
	if code == 0 {
		return nil
	}
	text := make([]C.char, 1024)
	C.z_message(code, &text[0], C.int(len(text)))
	return fmt.Errorf("MPI: error %d: %s", code, C.GoString(&text[0]))
}

// request is a message under way. Its memory is referred to as long as MPI has it;
// Go's heap does not move.
type request struct {
	handle C.uint64_t
	b      []byte
	// scratch: what comes is of no interest. cancelled: MPI was asked to give it up.
	scratch, cancelled bool
}

func isend(b []byte, to, tag int) (r request, err error) {
	r.b = b
	err = failed(C.z_isend(C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), C.int(len(b)), C.int(to), C.int(tag), &r.handle))
	return r, err
}

func irecv(b []byte, from, tag int) (r request, err error) {
	r.b = b
	err = failed(C.z_irecv(C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), C.int(len(b)), C.int(from), C.int(tag), &r.handle))
	return r, err
}

// pause lets others run, the longer the more often nothing was done: the processor
// may have other work than to ask.
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

// Measured beside computing, with two processes on two processors: spinning alone
// takes twice the time.
const (
	busyPolls  = 50
	yieldPolls = 2000
	idlePolls  = 20000 // a second or more
)
