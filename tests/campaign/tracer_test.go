//go:build campaign && linux && amd64

package campaign

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// call identifies a system call on a file of the trial: its name, its path without nonces, and
// its number among such calls.
type call struct {
	name, path string
	nth        int // counted from 1
}

func (c call) String() string { return fmt.Sprintf("%s %s %d", c.name, c.path, c.nth) }

// fault describes how to disturb a call. The zero fault disturbs none.
type fault struct {
	at     call
	err    syscall.Errno // the call is not made and returns this error
	always bool          // with err: all later writing calls fail too
	before bool          // the process is killed instead of the call
	after  bool          // the process is killed after the call
	late   bool          // the thread is suspended for a while
	torn   bool          // the call transfers half of its bytes
}

func (f fault) String() string {
	switch {
	case f.before:
		return "killed before " + f.at.String()
	case f.after && f.torn:
		return "killed in " + f.at.String()
	case f.after:
		return "killed after " + f.at.String()
	case f.late:
		return "late " + f.at.String()
	case f.torn:
		return "half of " + f.at.String()
	case f.always:
		return fmt.Sprintf("%v from %v on", f.err, f.at)
	}
	return fmt.Sprintf("%v at %v", f.err, f.at)
}

// kindOfCall describes how to find the file of a call and whether the call changes it.
type kindOfCall struct {
	name   string
	fd     int // index of the argument that is a descriptor, or -1
	path   int // index of the argument that is a path, or -1
	writes bool
	bytes  int // index of the argument that is a number of bytes, or 0
}

var callsOfFiles = map[uint64]kindOfCall{
	syscall.SYS_READ: {"read", 0, -1, false, 2}, syscall.SYS_PREAD64: {"pread", 0, -1, false, 2},
	syscall.SYS_WRITE: {"write", 0, -1, true, 2}, syscall.SYS_PWRITE64: {"pwrite", 0, -1, true, 2},
	syscall.SYS_WRITEV: {"writev", 0, -1, true, 0}, syscall.SYS_SENDFILE: {"sendfile", 0, -1, true, 3},
	syscall.SYS_OPENAT: {"openat", -1, 1, false, 0}, syscall.SYS_CLOSE: {"close", 0, -1, true, 0},
	syscall.SYS_NEWFSTATAT: {"newfstatat", -1, 1, false, 0}, syscall.SYS_FSTAT: {"fstat", 0, -1, false, 0},
	syscall.SYS_GETDENTS64: {"getdents", 0, -1, false, 0}, syscall.SYS_LSEEK: {"lseek", 0, -1, false, 0},
	syscall.SYS_STATFS: {"statfs", -1, 0, false, 0}, syscall.SYS_FSTATFS: {"fstatfs", 0, -1, false, 0},
	syscall.SYS_FSYNC: {"fsync", 0, -1, true, 0}, syscall.SYS_FDATASYNC: {"fdatasync", 0, -1, true, 0},
	syscall.SYS_FTRUNCATE: {"ftruncate", 0, -1, true, 0}, syscall.SYS_FALLOCATE: {"fallocate", 0, -1, true, 0},
	syscall.SYS_FLOCK: {"flock", 0, -1, true, 0}, syscall.SYS_FCHMOD: {"fchmod", 0, -1, true, 0},
	syscall.SYS_FCHMODAT: {"fchmodat", -1, 1, true, 0}, syscall.SYS_MKDIRAT: {"mkdirat", -1, 1, true, 0},
	syscall.SYS_UNLINKAT: {"unlinkat", -1, 1, true, 0}, syscall.SYS_RENAMEAT: {"renameat", -1, 3, true, 0},
	316: {"renameat2", -1, 3, true, 0}, 326: {"copy_file_range", 2, -1, true, 4}, syscall.SYS_SYMLINKAT: {"symlinkat", -1, 2, true, 0},
	syscall.SYS_LINKAT: {"linkat", -1, 3, true, 0}, syscall.SYS_MMAP: {"mmap", 4, -1, false, 0}, syscall.SYS_MSYNC: {"msync", -1, -1, true, 0},
	syscall.SYS_READLINKAT: {"readlinkat", -1, 1, false, 0}, syscall.SYS_RENAME: {"rename", -1, 1, true, 0},
}

// tracer runs a process and stops it at each system call.
type tracer struct {
	dir    string // calls on files below it count
	fault  fault
	seen   []call
	writes map[call]bool // seen calls that write
	hit    bool
	nth    map[call]int
	stuck  map[int]pending // by thread: the disturbed call it is in
	held   int             // suspended thread
	until  time.Time
}

// pending is the result to give a thread's call when it returns.
type pending struct {
	err  syscall.Errno
	kill bool
}

const (
	allThreads     = 0x40000000 // __WALL
	callStop       = syscall.SIGTRAP | 0x80
	getSyscallInfo = 0x420e
)

// traced runs the program with a fault and returns its end and its calls.
func (x *trial) traced(f fault, args ...string) (ended, *tracer) {
	x.Helper()
	dir, err := filepath.EvalSymlinks(x.dir)
	x.must(err)
	tr := &tracer{dir: dir, fault: f, nth: map[call]int{}, writes: map[call]bool{}, stuck: map[int]pending{}}
	runtime.LockOSThread() // only the parent thread can trace
	defer runtime.UnlockOSThread()
	var out, errs bytes.Buffer
	r, w, err := os.Pipe()
	x.must(err)
	r2, w2, err := os.Pipe()
	x.must(err)
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = x.dir, w, w2
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + x.dir, "TMPDIR=" + x.dir, "GOROOT=" + os.Getenv("GOROOT")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true} // a group of its own, to wait for
	begin := time.Now()
	x.must(cmd.Start())
	w.Close()
	w2.Close()
	read := make(chan error, 2) // ends when the process closes the other ends
	go func() { _, err := out.ReadFrom(r); read <- err }()
	go func() { _, err := errs.ReadFrom(r2); read <- err }()
	status, broke := tr.follow(cmd.Process.Pid)
	x.must(errors.Join(<-read, <-read, r.Close(), r2.Close()))
	_ = cmd.Process.Release() // follow has waited for it
	e := ended{code: status.ExitStatus(), out: out.String(), errs: errs.String(), took: time.Since(begin), broke: broke}
	if status.Signaled() {
		e.code, e.signal = -1, status.Signal()
	}
	return e, tr
}

// follow runs the process from call to call until it ends.
func (t *tracer) follow(pid int) (status syscall.WaitStatus, broke string) {
	overtime := time.AfterFunc(*deadline*3, func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	defer func() {
		if !overtime.Stop() {
			broke = fmt.Sprintf("not done after %v", *deadline*3)
		}
	}()
	began := map[int]bool{}
	for {
		var ws syscall.WaitStatus
		wait := allThreads
		if t.held > 0 {
			wait |= syscall.WNOHANG
		}
		tid, err := syscall.Wait4(-pid, &ws, wait, nil)
		if t.held > 0 && tid == 0 && err == nil {
			time.Sleep(time.Millisecond)
		}
		if t.held > 0 && time.Now().After(t.until) {
			_ = syscall.PtraceSyscall(t.held, 0) // it may have been killed
			t.held = 0
		}
		if err == syscall.EINTR || err == nil && tid == 0 {
			continue
		}
		if err != nil {
			return status, fmt.Sprint("wait: ", err)
		}
		if ws.Exited() || ws.Signaled() {
			if tid == pid {
				return ws, broke
			}
			continue
		}
		sig := 0
		switch stop := ws.StopSignal(); {
		case !began[tid]: // the stop at its start
			began[tid] = true
			if tid == pid {
				_ = syscall.PtraceSetOptions(tid, syscall.PTRACE_O_TRACESYSGOOD|syscall.PTRACE_O_TRACECLONE|0x100000)
			}
		case stop == callStop:
			t.stop(pid, tid)
		case stop == syscall.SIGTRAP: // a thread was created
		default:
			sig = int(stop)
		}
		if tid != t.held {
			_ = syscall.PtraceSyscall(tid, sig) // it may have been killed
		}
	}
}

// stop handles a stop of a thread at the beginning or the end of a call.
func (t *tracer) stop(pid, tid int) {
	var info [88]byte
	if _, _, e := syscall.Syscall6(syscall.SYS_PTRACE, getSyscallInfo, uintptr(tid), uintptr(len(info)), uintptr(unsafe.Pointer(&info)), 0, 0); e != 0 {
		return
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(info[24+8*i:]) }
	if info[0] == 2 {
		t.returns(pid, tid)
		return
	}
	if info[0] != 1 {
		return
	}
	kind, ok := callsOfFiles[word(0)]
	if !ok {
		return
	}
	args := [6]uint64{word(1), word(2), word(3), word(4), word(5), word(6)}
	path, ok := t.file(tid, kind, args)
	if !ok {
		return
	}
	c := call{kind.name, path, 0}
	if kind.name == "openat" && args[2]&(syscall.O_CREAT|syscall.O_TRUNC) != 0 {
		c.name, kind.writes = "create", true
	}
	t.nth[c]++
	c.nth = t.nth[call{c.name, c.path, 0}]
	t.seen = append(t.seen, c)
	t.writes[c] = kind.writes
	t.befall(pid, tid, c, kind)
}

// befall applies the fault to a call that is about to be made.
func (t *tracer) befall(pid, tid int, c call, kind kindOfCall) {
	f := t.fault
	if t.hit && f.always && kind.writes && c.name != "close" && c.name != "flock" && c.name != "unlinkat" {
		t.refuse(tid, f.err)
		return
	}
	if t.hit || c != f.at {
		return
	}
	t.hit = true
	switch {
	case f.late:
		t.held, t.until = tid, time.Now().Add(200*time.Millisecond)
	case f.before:
		_ = syscall.Kill(pid, syscall.SIGKILL)
	case f.err != 0:
		t.refuse(tid, f.err)
	}
	if f.torn && kind.bytes > 0 {
		var regs syscall.PtraceRegs
		if syscall.PtraceGetRegs(tid, &regs) == nil {
			count := map[int]*uint64{2: &regs.Rdx, 3: &regs.R10, 4: &regs.R8}[kind.bytes]
			*count = max(1, *count/2)
			_ = syscall.PtraceSetRegs(tid, &regs)
		}
	}
	if f.after {
		t.stuck[tid] = pending{kill: true}
	}
}

// refuse makes a call fail without executing it.
func (t *tracer) refuse(tid int, err syscall.Errno) {
	var regs syscall.PtraceRegs
	if syscall.PtraceGetRegs(tid, &regs) != nil {
		return
	}
	regs.Orig_rax = ^uint64(0)
	_ = syscall.PtraceSetRegs(tid, &regs)
	t.stuck[tid] = pending{err: err}
}

// returns handles the end of a call.
func (t *tracer) returns(pid, tid int) {
	p, ok := t.stuck[tid]
	if !ok {
		return
	}
	delete(t.stuck, tid)
	if p.kill {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return
	}
	var regs syscall.PtraceRegs
	if syscall.PtraceGetRegs(tid, &regs) == nil {
		regs.Rax = uint64(-int64(p.err))
		_ = syscall.PtraceSetRegs(tid, &regs)
	}
}

var nonce = regexp.MustCompile(`[0-9a-f]{16}|\d{9,}`)

// file returns the path of a call's file relative to the trial's folder, and whether it is below
// it.
func (t *tracer) file(tid int, kind kindOfCall, args [6]uint64) (string, bool) {
	var path string
	switch {
	case kind.path >= 0:
		path = t.text(tid, uintptr(args[kind.path]))
		if !filepath.IsAbs(path) {
			path = filepath.Join(t.dir, path)
		}
	case kind.fd >= 0 && int32(args[kind.fd]) > 2:
		path, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(args[kind.fd])))
	}
	path, ok := strings.CutPrefix(strings.TrimSuffix(path, " (deleted)"), t.dir+"/")
	return nonce.ReplaceAllString(path, "N"), ok
}

// text returns a string from the memory of a thread.
func (t *tracer) text(tid int, at uintptr) string {
	b := make([]byte, 4096)
	n, _ := syscall.PtracePeekData(tid, at, b[:512]) // may end at the end of the mapping
	text, _, _ := bytes.Cut(b[:n], []byte{0})
	return string(text)
}

// TestTracer checks the tracer itself: it sees the calls of a save and of the end of a run, and a
// call that should fail does.
func TestTracer(t *testing.T) {
	trials(t, 1, []string{"all"}, func(x *trial) string {
		x.must(prepare(x.dir))
		args := training()
		e, tr := x.traced(fault{}, args...)
		x.check(e, args, 0)
		for _, c := range []call{
			{"fsync", "run/ckpt/.tmp-step-00000001-N/COMMIT", 1}, {"renameat", "run/ckpt/step-00000003", 1},
			{"fsync", "run/ckpt", 3}, {"renameat", "run/model/model.safetensors", 1}, {"write", "run/metrics.jsonl", 1},
		} {
			if !slices.Contains(tr.seen, c) || !tr.writes[c] {
				x.Errorf("%v was not seen among %d calls", c, len(tr.seen))
			}
		}
		x.must(os.RemoveAll(filepath.Join(x.dir, "run")))
		e, tr = x.traced(fault{at: call{"renameat", "run/ckpt/step-00000003", 1}, err: syscall.EIO}, args...)
		if x.check(e, args, 1); !tr.hit || !strings.Contains(e.errs, syscall.EIO.Error()) {
			x.Errorf("a call that was to fail: %s", e.said())
		}
		return "done"
	})
}
