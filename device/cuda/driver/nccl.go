//go:build cuda

package driver

// #cgo noescape z_nccl_all_gather
// #cgo nocallback z_nccl_all_gather
// #cgo noescape z_nccl_reduce_scatter
// #cgo nocallback z_nccl_reduce_scatter
// #cgo noescape z_nccl_broadcast
// #cgo nocallback z_nccl_broadcast
// #cgo noescape z_nccl_send_parts
// #cgo nocallback z_nccl_send_parts
// #cgo noescape z_nccl_reduce
// #cgo nocallback z_nccl_reduce
// #cgo noescape z_nccl_collect
// #cgo nocallback z_nccl_collect
// #include "nccl.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// ErrInProgress reports that a communicator has not completed an operation.
var ErrInProgress = errors.New("NCCL operation in progress")

// ncclInProgress is the corresponding status.
const ncclInProgress = 7

var ncclNames = map[C.int]string{
	1: "ncclUnhandledCudaError", 2: "ncclSystemError", 3: "ncclInternalError", 4: "ncclInvalidArgument", 5: "ncclInvalidUsage", 6: "ncclRemoteError",
}

// leastNCCL is the oldest supported version, in NCCL's numbering: it has bfloat16.
const leastNCCL = 21000

// OpenNCCL finds NCCL, once: only at $ZEROTH_NCCL_PATH if that is set, else the library found by
// the loader as libnccl.so.2, or one in SearchPaths. The error gives the reason for each file that could
// not be used.
func OpenNCCL() (Library, error) { return nccl() }

var nccl = sync.OnceValues(func() (Library, error) {
	var errs []error
	for path := range candidates("ZEROTH_NCCL_PATH", ncclFiles) {
		l, err := openNCCL(path)
		if err == nil {
			return l, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	return Library{}, fmt.Errorf("NCCL, version 2.10 or newer, was not found; install it (python3 -m pip install nvidia-nccl-cu12), or set ZEROTH_NCCL_PATH to a libnccl.so.2. Looked at:\n%w", errors.Join(errs...))
})

func openNCCL(path string) (l Library, err error) {
	var why [512]byte
	name := append([]byte(path), 0)
	if C.z_nccl_open((*C.char)(unsafe.Pointer(&name[0])), (*C.char)(unsafe.Pointer(&why[0])), C.int(len(why))) != 0 {
		said, _, _ := strings.Cut(string(why[:]), "\x00")
		return l, errors.New(said)
	}
	var v C.int
	if err := (*Comm)(nil).refused(C.z_nccl_version(&v), "version"); err != nil {
		return l, err
	}
	if v < leastNCCL {
		return l, fmt.Errorf("it is version %s", ncclVersion(int(v)))
	}
	return Library{Path: path, Version: ncclVersion(int(v))}, nil
}

// ncclVersion formats a version in NCCL's numbering since 2.9: 22809 is 2.28.9.
func ncclVersion(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }

// NCCLID returns the id by which the ranks of a communicator find each other. It is a secret:
// anyone who has it can take a rank's place.
func NCCLID() ([]byte, error) {
	var id [C.Z_NCCL_ID]byte
	err := (*Comm)(nil).refused(C.z_nccl_id((*C.char)(unsafe.Pointer(&id[0]))), "begin a communicator")
	return id[:], err
}

// Comm is a rank's end of a communicator.
type Comm struct {
	gpu *GPU
	h   C.uintptr_t
}

// NewComm starts to open a communicator; State reports when it is ready. The error is never
// ErrInProgress. Old versions block until all ranks have joined.
func (g *GPU) NewComm(ranks int, id []byte, rank int) (*Comm, error) {
	c := &Comm{gpu: g}
	if len(id) != C.Z_NCCL_ID {
		return nil, fmt.Errorf("the id of a communicator has %d bytes, want %d", len(id), C.Z_NCCL_ID)
	}
	err := c.refused(C.z_nccl_init(g.ctx, &c.h, C.int(ranks), (*C.char)(unsafe.Pointer(&id[0])), C.int(rank)), "join %d ranks as number %d on %v", ranks, rank, g)
	if err != nil && err != ErrInProgress {
		return nil, err
	}
	return c, nil
}

// refused returns the error of an ncclResult_t.
func (c *Comm) refused(code C.int, call string, args ...any) error {
	switch {
	case code <= 0:
		return failed(-code, call, args...)
	case code == ncclInProgress:
		return ErrInProgress
	}
	e := Error{Name: ncclNames[code], Text: C.GoString(C.z_nccl_text(code)), Call: "NCCL: " + fmt.Sprintf(call, args...)}
	if e.Name == "" {
		e.Name = fmt.Sprintf("ncclResult %d", code)
	}
	if c != nil && c.h != 0 {
		if last := strings.TrimSpace(C.GoString(C.z_nccl_last(c.h))); last != "" {
			e.Text += "; " + last
		}
	}
	return e
}

// issued is like refused, for an operation on n elements or bytes, and accepts ErrInProgress. It
// allocates nothing unless there is an error.
func (c *Comm) issued(code C.int, call string, n int) error {
	switch code {
	case 0:
		return nil
	case ncclInProgress:
		return ErrInProgress
	}
	return c.refused(code, call, n)
}

// State returns the communicator's state: nil, ErrInProgress, or an error.
func (c *Comm) State() error {
	if code := C.z_nccl_state(c.h); code != 0 {
		return c.refused(code, "working with other ranks")
	}
	return nil
}

// Settle polls State until nothing is in progress, at most for a time, without sleeping.
func (c *Comm) Settle(most time.Duration) error {
	if code := C.z_nccl_settle(c.h, C.int(most.Microseconds())); code != 0 {
		return c.refused(code, "working with other ranks")
	}
	return nil
}

// NCCL's names of types.
const (
	NCCLInt32    = 2
	NCCLInt64    = 4
	NCCLFloat16  = 6
	NCCLFloat32  = 7
	NCCLFloat64  = 8
	NCCLBFloat16 = 9
)

// AllGather gathers n elements of each rank, in the order of the stream.
func (c *Comm) AllGather(s Stream, whole, own unsafe.Pointer, n, typ int) error {
	return c.issued(C.z_nccl_all_gather(c.gpu.ctx, c.h, s.h, address(own), address(whole), C.size_t(n), C.int(typ)), "all-gather of %d elements a rank", n)
}

// ReduceScatter adds n elements for each rank, in the order of the stream.
func (c *Comm) ReduceScatter(s Stream, own, whole unsafe.Pointer, n, typ int) error {
	return c.issued(C.z_nccl_reduce_scatter(c.gpu.ctx, c.h, s.h, address(whole), address(own), C.size_t(n), C.int(typ)), "reduce-scatter of %d elements a rank", n)
}

// Broadcast sends n bytes of rank 0 to the other ranks, in the order of the stream.
func (c *Comm) Broadcast(s Stream, rank, ranks int, b unsafe.Pointer, n int) error {
	return c.issued(C.z_nccl_broadcast(c.gpu.ctx, c.h, s.h, C.int(rank), C.int(ranks), address(b), C.size_t(n)), "broadcast of %d bytes", n)
}

// Reduce adds n elements of each rank in rank 0's, in the order of the stream.
func (c *Comm) Reduce(s Stream, rank int, b unsafe.Pointer, n, typ int) error {
	return c.issued(C.z_nccl_reduce(c.gpu.ctx, c.h, s.h, C.int(rank), address(b), C.size_t(n), C.int(typ)), "reduce of %d elements", n)
}

// Parts describes an exchange between the ranks of a communicator: N bytes of each part of Whole,
// whose parts are Stride bytes apart, are received in Slots, Slot bytes apart, one for each other
// rank, ascending.
type Parts struct {
	Rank, Ranks     int
	Whole, Slots    unsafe.Pointer
	Stride, Slot, N int // bytes
}

// SendParts makes each rank send every other its part, in the order of the stream.
func (c *Comm) SendParts(s Stream, p Parts) error {
	code := C.z_nccl_send_parts(c.gpu.ctx, c.h, s.h, C.int(p.Rank), C.int(p.Ranks), address(p.Whole), C.size_t(p.Stride), address(p.Slots), C.size_t(p.Slot), C.size_t(p.N))
	return c.issued(code, "send of %d bytes to each rank", p.N)
}

// Collect makes each other rank send its Whole, of N bytes, to rank 0, in stream order.
func (c *Comm) Collect(s Stream, p Parts) error {
	code := C.z_nccl_collect(c.gpu.ctx, c.h, s.h, C.int(p.Rank), C.int(p.Ranks), address(p.Whole), address(p.Slots), C.size_t(p.Slot), C.size_t(p.N))
	return c.issued(code, "send of %d bytes to rank 0", p.N)
}

// Finalize starts to send pending data; State reports when that is done.
func (c *Comm) Finalize() error {
	return c.refused(C.z_nccl_finalize(c.gpu.ctx, c.h), "finish")
}

// Close frees the communicator, after Finalize, once nothing is pending.
func (c *Comm) Close() error {
	return c.refused(C.z_nccl_destroy(c.gpu.ctx, c.h), "end")
}

// Abort ends pending operations and frees the communicator.
func (c *Comm) Abort() error {
	return c.refused(C.z_nccl_abort(c.gpu.ctx, c.h), "abort")
}
