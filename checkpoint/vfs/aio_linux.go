package vfs

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aio performs direct transfers of a file through the kernel's asynchronous interface
// (io_submit(2)). A goroutine blocked in pread or pwrite occupies its processor until the
// runtime takes it away; with two processors, a few such calls stop everything else. With aio
// a single goroutine blocks for all, in io_getevents(2). newAIO allocates everything.
type aio struct {
	ctx      uintptr
	fd       uint32
	requests [aioRequests]aioRequest
	free     chan int // indices of free requests
	reaper   sync.WaitGroup
}

// aioRequests is the maximum number of concurrent transfers; further ones wait.
const aioRequests = 16

type aioRequest struct {
	cb   iocb
	list [1]*iocb
	done chan int64 // capacity 1: bytes, or an errno below zero
}

// iocb and ioEvent are defined in the kernel's include/uapi/linux/aio_abi.h.
type iocb struct {
	data   uint64
	_      uint64 // key and flags of rw
	opcode uint16
	_      int16 // priority
	fd     uint32
	buf, n uint64
	off    int64
	_, _   uint64 // flags and their arguments
}

type ioEvent struct {
	data, _ uint64
	res, _  int64
}

const (
	iocbRead  = 0
	iocbWrite = 1
)

// newAIO returns nil if the kernel does not support aio or has no more contexts.
func newAIO(f *os.File) *aio {
	a := &aio{free: make(chan int, aioRequests)}
	if _, _, no := unix.Syscall(unix.SYS_IO_SETUP, aioRequests, uintptr(unsafe.Pointer(&a.ctx)), 0); no != 0 {
		return nil
	}
	if err := control(f, func(fd int) error { a.fd = uint32(fd); return nil }); err != nil {
		a.destroy()
		return nil
	}
	for i := range a.requests {
		a.requests[i].done = make(chan int64, 1)
		a.free <- i
	}
	a.reaper.Go(a.reap) // ends in close
	return a
}

// reap delivers the results of completed transfers to their callers, until destroy.
func (a *aio) reap() {
	var ended [aioRequests]ioEvent
	for {
		n, _, no := unix.Syscall6(unix.SYS_IO_GETEVENTS, a.ctx, 1, aioRequests, uintptr(unsafe.Pointer(&ended)), 0, 0)
		switch no {
		case 0:
		case unix.EINTR: // a signal, before any transfer completed
			continue
		case unix.EINVAL: // destroyed
			return
		default:
			panic("vfs: io_getevents: " + no.Error())
		}
		for _, e := range ended[:n] {
			a.requests[e.data].done <- e.res
		}
	}
}

// move reads or writes b and returns the number of bytes transferred.
func (a *aio) move(opcode uint16, b []byte, off int64) (int, error) {
	i := <-a.free
	r := &a.requests[i]
	r.cb = iocb{data: uint64(i), opcode: opcode, fd: a.fd, buf: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), n: uint64(len(b)), off: off}
	r.list[0] = &r.cb
	_, _, no := unix.Syscall(unix.SYS_IO_SUBMIT, a.ctx, 1, uintptr(unsafe.Pointer(&r.list)))
	res := -int64(no)
	if no == 0 {
		res = <-r.done
	}
	runtime.KeepAlive(b)
	a.free <- i
	if res < 0 {
		return 0, unix.Errno(-res)
	}
	return int(res), nil
}

func (a *aio) readAt(b []byte, off int64) (int, error) {
	n, err := a.move(iocbRead, b, off)
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return n, err
}

func (a *aio) writeAt(b []byte, off int64) (int, error) {
	n, err := a.move(iocbWrite, b, off)
	if err == nil && n < len(b) {
		err = fmt.Errorf("%d bytes of %d: %w", n, len(b), io.ErrShortWrite)
	}
	return n, err
}

// close stops the reaper; no transfer may be in progress.
func (a *aio) close() {
	a.destroy() // ends the reaper
	a.reaper.Wait()
}

func (a *aio) destroy() { _, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, a.ctx, 0, 0) }
