package socket

import (
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory is memory of a process that other processes on the host, which receive it through a Unix
// socket, can read. It has no name and no file: it is freed with the last process that holds it. It
// cannot be truncated. The zero Memory allocates private memory, which is not shared.
type Memory struct {
	Least int // minimum size in bytes of frames that peers read directly; copying smaller ones is faster than waiting for the acknowledgement

	file *os.File
	mu   sync.Mutex
	size int64
	held []held // by address
}

// held is an allocation.
type held struct {
	mem []byte
	at  int64 // offset in the file
}

// NewMemory returns empty shared memory.
func NewMemory() (*Memory, error) {
	fd, err := unix.MemfdCreate("zeroth", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	m := &Memory{Least: 8 << 10, file: os.NewFile(uintptr(fd), "shared memory")}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return nil, fmt.Errorf("shared memory: %w", closeAfter(m.file, err))
	}
	return m, nil
}

func closeAfter(f *os.File, err error) error {
	_ = f.Close() // err is returned
	return err
}

const pageLen = 4096

// Take allocates zeroed memory. Release it with Give.
func (m *Memory) Take(bytes int) ([]byte, error) {
	if m.file == nil {
		return syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.size
	size := at + (int64(bytes)+pageLen-1)&^(pageLen-1)
	if err := m.file.Truncate(size); err != nil {
		return nil, err
	}
	mem, err := syscall.Mmap(int(m.file.Fd()), at, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	m.size = size
	i, _ := m.find(mem)
	m.held = slices.Insert(m.held, i, held{mem, at})
	return mem, nil
}

// Give releases memory from Take and punches a hole into the file.
func (m *Memory) Give(mem []byte) {
	if m.file == nil {
		_ = syscall.Munmap(mem)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := m.find(mem)
	if !ok {
		panic(fmt.Sprintf("socket: %d bytes freed that were not allocated", len(mem)))
	}
	at := m.held[i].at
	m.held = slices.Delete(m.held, i, i+1)
	if err := syscall.Munmap(mem); err != nil {
		panic("socket: unmap: " + err.Error())
	}
	_ = unix.Fallocate(int(m.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, int64(len(mem))) // otherwise held until the end
}

// find returns the index in held of the allocation that contains b's first byte, or where it would
// be inserted.
func (m *Memory) find(b []byte) (int, bool) {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	i, ok := slices.BinarySearchFunc(m.held, first, func(h held, p uintptr) int {
		switch begin := uintptr(unsafe.Pointer(unsafe.SliceData(h.mem))); {
		case begin+uintptr(len(h.mem)) <= p:
			return -1
		case begin > p:
			return 1
		}
		return 0
	})
	return i, ok
}

// at returns the offset of b in the file, if b belongs to this memory.
func (m *Memory) at(b []byte) (int64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := m.find(b)
	if !ok {
		return 0, false
	}
	h := m.held[i]
	off := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(h.mem)))
	return h.at + int64(off), int(off)+len(b) <= len(h.mem)
}

// Close closes the memory in this process; others keep it. Memory from Take must be released
// before, or is held until the process ends.
func (m *Memory) Close() error {
	if m.file == nil {
		return nil
	}
	return m.file.Close()
}

// pass sends the memory to the process at the other end of a Unix socket and reports whether it
// did.
func (m *Memory) pass(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	switch {
	case m == nil || !ok:
		return false
	case m.file == nil:
		_, _ = u.Write([]byte{none}) // after an error, subsequent operations fail, too
		return false
	}
	_, _, err := u.WriteMsgUnix([]byte{passed}, unix.UnixRights(int(m.file.Fd())), nil)
	return err == nil // otherwise reading or writing fails soon
}

// Contents of the message that passes the memory.
const (
	passed = 'm'
	none   = '-'
)

// meet receives the peer's memory, if processes share memory.
func (l *link) meet() error {
	u, ok := l.conn.(*net.UnixConn)
	if l.net.cfg.Share == nil || !ok {
		return nil
	}
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, flags, _, err := u.ReadMsgUnix(b[:], oob)
	if err != nil {
		return err
	}
	fds, err := rights(oob[:oobn])
	if err == nil && len(fds) == 0 && flags&unix.MSG_CTRUNC != 0 {
		return fmt.Errorf("receiving its shared memory: %w", syscall.EMFILE)
	}
	if err == nil && n == 1 && b[0] == none && len(fds) == 0 {
		return nil
	}
	if err != nil || n != 1 || b[0] != passed || len(fds) != 1 {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return unexpected{fmt.Sprintf("no shared memory: %d files (%v)", len(fds), err)}
	}
	l.theirs.file = os.NewFile(uintptr(fds[0]), "a peer's shared memory")
	seals, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		l.theirs.close()
		return unexpected{fmt.Sprintf("shared memory that it can truncate (%v)", err)}
	}
	return nil
}

// rights returns the file descriptors in a message.
func rights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		some, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fds, err
		}
		for _, fd := range some {
			unix.CloseOnExec(fd)
		}
		fds = append(fds, some...)
	}
	return fds, nil
}

// peerMemory is the shared memory of another process. It is used by the reader of one link.
type peerMemory struct {
	file *os.File // may be nil
	maps [][]byte // mappings from the begin of the file, the longest last; frames may be in any of them
}

func (p *peerMemory) any() bool { return p.file != nil }

// at returns n bytes at an offset, for reading.
func (p *peerMemory) at(at int64, n int) ([]byte, error) {
	if at < 0 || n < 0 || at+int64(n) < at {
		return nil, fmt.Errorf("%d bytes at %d of shared memory", n, at)
	}
	if len(p.maps) == 0 || at+int64(n) > int64(len(p.maps[len(p.maps)-1])) {
		if err := p.remap(at + int64(n)); err != nil {
			return nil, err
		}
	}
	return p.maps[len(p.maps)-1][at:][:n:n], nil
}

// remap maps the whole file, which must have no fewer than least bytes.
func (p *peerMemory) remap(least int64) error {
	info, err := p.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < least {
		return fmt.Errorf("shared memory of %d bytes is used up to %d", info.Size(), least)
	}
	mem, err := syscall.Mmap(int(p.file.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("a peer's shared memory: %w", err)
	}
	p.maps = append(p.maps, mem)
	return nil
}

// close unmaps and closes the memory; no frame may be in use.
func (p *peerMemory) close() {
	for _, mem := range p.maps {
		_ = syscall.Munmap(mem) // mapped memory can be unmapped
	}
	p.maps = nil
	if p.file != nil {
		_ = p.file.Close()
		p.file = nil
	}
}
