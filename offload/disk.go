package offload

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unsafe"

	"zeroth/checkpoint/vfs"
	"zeroth/device"
)

// A rank's file is a header of one block and then the tiles of state and of
// parameters, each at a multiple of blockSize and a whole number of blocks
// long. It is scratch: it serves the run that made it and is removed with it,
// and what must survive is in checkpoints. The run holds a lock on it as long
// as it lives, so that the file of a dead run is known by its header and by
// having no lock; such files are removed before a new one is made, never read.
//
// A CRC32C of every chunk of 512 KiB is kept in memory: a chunk that comes back
// with a flipped bit is found, and so is one that comes back as it was before
// its last write, which a sum stored beside it would bless.
//
// The header is text, padded with zeros to a block, so that `head` on a
// file left behind says what it is:
//
//	zeroth offload 1
//	run 4bd1c2a09f
//	rank 3
//	layout 8e1f00c4
//	bytes 1207959552
const (
	blockSize = 4096 // bytes; the alignment of direct transfers
	magic     = "zeroth offload 1\n"
	suffix    = ".offload"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// block is a tile's place in the file.
type block struct {
	off     int64    // bytes
	len     int      // bytes
	sums    []uint32 // CRC32C of each chunk
	written bool     // before that it is zeros
}

// some is the bytes of those chunks that are wanted; nil wants all.
func (b *block) some(wanted func(lo, hi int) bool) (n int) {
	if wanted == nil {
		return b.len
	}
	for lo := 0; lo < b.len; lo += chunk {
		if hi := min(lo+chunk, b.len); wanted(lo, hi) {
			n += hi - lo
		}
	}
	return n
}

// disk is one rank's file.
type disk struct {
	Scratch
	name      string
	file      vfs.ScratchFile
	direct    bool
	size      int64 // bytes
	reads     *lanes
	writes    *lanes
	reclaimed []string
}

func newDisk(s Scratch) *disk {
	name := fmt.Sprintf("zeroth-%s-rank-%d%s", s.Run, s.Rank, suffix)
	return &disk{Scratch: s, name: filepath.Join(s.Dir, name), size: blockSize}
}

// lay reserves a block of n bytes, a multiple of blockSize.
func (d *disk) lay(n int) *block {
	b := &block{off: d.size, len: n, sums: make([]uint32, (n+chunk-1)/chunk)}
	d.size += int64(n)
	return b
}

// digest is one number for what lies where in the file.
func (s *Store) digest() uint32 {
	h := crc32.New(castagnoli)
	fmt.Fprintln(h, s.cfg.Tile, s.cfg.DType, s.cfg.Vecs, s.cfg.Optimizer, s.cfg.Params)
	for _, u := range s.units {
		fmt.Fprintln(h, u.Name, u.Len, u.vecs, u.param)
	}
	return h.Sum32()
}

func (d *disk) header(layout uint32) []byte {
	b := aligned(blockSize)
	copy(b, fmt.Sprintf("%srun %s\nrank %d\nlayout %08x\nbytes %d\n", magic, d.Run, d.Rank, layout, d.size))
	return b
}

func aligned(n int) []byte {
	b := make([]byte, n+blockSize)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (blockSize - 1))
	return b[skip : skip+n]
}

// open removes what dead runs have left, makes the file and reserves its space.
func (d *disk) open(layout uint32) (err error) {
	if d.Files == nil {
		return nil
	}
	if err := d.reclaim(); err != nil {
		return err
	}
	free, err := d.Files.Space(d.Dir)
	if err == nil && free < d.size {
		return fmt.Errorf("make %s: it takes %d bytes, %d are free: make space, name another folder, or offload less (zero.offload.ratio)", d.name, d.size, free)
	}
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("space in %s: %w", d.Dir, cause(err))
	}
	if d.file, err = d.Files.CreateLocked(d.name); err != nil {
		return fmt.Errorf("make %s: %w", d.name, cause(err))
	}
	if err := d.file.Reserve(d.size); err != nil {
		return fmt.Errorf("reserve %d bytes for %s: %w", d.size, d.name, cause(err))
	}
	if err := d.writeHeader(d.header(layout)); err != nil {
		return err
	}
	d.reads, d.writes = newLanes(d.Timeout), newLanes(d.Timeout)
	return nil
}

// writeHeader writes the header and reads it back, directly if the file system
// can, through its cache if not.
func (d *disk) writeHeader(h []byte) error {
	back := aligned(blockSize)
	try := func() error {
		if _, err := d.file.WriteAt(h, 0); err != nil {
			return fmt.Errorf("%s: write its header: %w", d.name, cause(err))
		}
		if _, err := d.file.ReadAt(back, 0); err != nil {
			return fmt.Errorf("%s: read its header: %w", d.name, cause(err))
		}
		if !bytes.Equal(back, h) {
			return fmt.Errorf("%s: its header reads back as something else: the disk is broken", d.name)
		}
		return nil
	}
	if d.direct = d.file.Direct(true); d.direct && try() == nil {
		return nil
	}
	d.direct = false
	d.file.Direct(false)
	return try()
}

// reclaim removes the files of dead runs from the folder.
func (d *disk) reclaim() error {
	entries, err := d.Files.List(d.Dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", d.Dir, cause(err))
	}
	for _, e := range entries {
		if n := e.Name; strings.HasPrefix(n, "zeroth-") && strings.HasSuffix(n, suffix) {
			if err := d.reclaimFile(filepath.Join(d.Dir, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// reclaimFile removes a file if it is a dead run's; one that is in use, or is
// no file of ours for all its name, stays.
func (d *disk) reclaimFile(name string) error {
	f, err := d.Files.OpenLocked(name)
	if errors.Is(err, vfs.ErrLocked) || errors.Is(err, vfs.ErrNotFile) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s, which another run has left: %w", name, cause(err))
	}
	defer f.Close()
	head := make([]byte, blockSize)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return fmt.Errorf("read %s, which another run has left: %w", name, cause(err))
	}
	text, _, _ := strings.Cut(string(head[:n]), "\x00")
	about, ours := strings.CutPrefix(text, magic)
	if !ours && text != "" { // an empty one was left between its making and its header
		return nil
	}
	if err := d.Files.Remove(name); err != nil {
		return fmt.Errorf("remove %s, which a dead run has left: %w", name, cause(err))
	}
	what := strings.Map(printable, strings.ReplaceAll(strings.TrimSpace(about), "\n", ", "))
	if what == "" {
		what = "never used"
	}
	d.reclaimed = append(d.reclaimed, fmt.Sprintf("%s (%s)", name, what))
	return nil
}

// printable is a character of a header for people: none that a terminal obeys.
func printable(r rune) rune {
	if !strconv.IsPrint(r) {
		return unicode.ReplacementChar
	}
	return r
}

// readSome fills the beginning of a slot from those chunks of a block, given as their
// bytes of it, that are wanted; nil wants all.
func (d *disk) readSome(b *block, to device.Buffer, wanted func(lo, hi int) bool) error {
	mem := d.mem(b, to)
	if !b.written {
		clear(mem)
		return nil
	}
	if err := d.reads.move(d.file, b, mem, wanted, false); err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	return nil
}

// writeSome writes those chunks of the beginning of a slot to a block that are wanted,
// as readSome has them; all of a block that never was written.
func (d *disk) writeSome(b *block, from device.Buffer, wanted func(lo, hi int) bool) error {
	mem := d.mem(b, from)
	if !b.written {
		wanted = nil
	}
	if err := d.writes.move(d.file, b, mem, wanted, true); err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	b.written = true
	return nil
}

func (d *disk) mem(b *block, slot device.Buffer) []byte {
	if at := uintptr(slot.Ptr); d.direct && at%blockSize != 0 {
		panic(fmt.Sprintf("offload: direct transfer of memory at %#x", at))
	}
	return slot.Raw()[:b.len]
}

// close ends the lanes and removes the file; it is false if a transfer that
// was given up may still be under way.
func (d *disk) close() (idle bool) {
	idle = true
	for _, l := range []*lanes{d.reads, d.writes} {
		if l != nil {
			idle = l.close() && idle
		}
	}
	if d.file == nil {
		return idle
	}
	_ = d.Files.Remove(d.name) // what stays behind is reclaimed by the next run
	if idle {
		_ = d.file.Close() // nothing in it is wanted any more
	} else {
		go func(reads, writes *lanes, f vfs.ScratchFile) { // ends when the disk has answered
			reads.running.Wait()
			writes.running.Wait()
			_ = f.Close() // likewise
		}(d.reads, d.writes, d.file)
	}
	d.file, d.reads, d.writes = nil, nil, nil
	return idle
}

// cause is what a file operation says is wrong, without the name it adds, and with
// what to do where files cannot be locked: then the file of a dead run could not be told
// from that of one that is alive.
func cause(err error) error {
	if no := (*vfs.CannotLock)(nil); errors.As(err, &no) {
		return fmt.Errorf("%w: offload to the host instead", no.Err)
	}
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// chunk is the bytes that move, and are summed, at a time: few enough that what
// was read is summed before it leaves the cache, enough that the disk is at full
// speed.
const chunk = 1 << 19

// transfer is a chunk, or less, to move between memory and a file.
type transfer struct {
	file  vfs.File
	mem   []byte
	off   int64
	sum   *uint32 // its CRC32C: to be set by a write, to be met by a read
	write bool
}

func (t transfer) run() (err error) {
	if t.write {
		*t.sum = crc32.Checksum(t.mem, castagnoli)
		_, err = t.file.WriteAt(t.mem, t.off)
		return t.failed("write", err)
	}
	switch n, err := t.file.ReadAt(t.mem, t.off); {
	case n == len(t.mem):
	case err == nil || err == io.EOF:
		return t.failed("read", fmt.Errorf("the file ends after %d of them: %w", n, io.ErrUnexpectedEOF))
	default:
		return t.failed("read", err)
	}
	if sum := crc32.Checksum(t.mem, castagnoli); sum != *t.sum {
		return fmt.Errorf("the %d bytes at offset %d have checksum %08x, %08x was written: the disk has lost or changed them", len(t.mem), t.off, sum, *t.sum)
	}
	return nil
}

func (t transfer) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %d bytes at offset %d: %w", what, len(t.mem), t.off, cause(err))
}

// lanes are goroutines that read, or that write: several, so that the disk
// always has something to do, also while others sum, and apart from who waits for them, so that a
// disk that does not answer can be given up.
type lanes struct {
	lane    [laneCount]lane
	timer   *time.Timer
	timeout time.Duration
	stuck   atomic.Bool
	running sync.WaitGroup
}

// laneCount is the lanes of each direction. Of 2 to 8 lanes and chunks of
// 256 KiB to 4 MiB, 8 lanes of 512 KiB are the fastest (BenchmarkDisk).
const laneCount = 8

// lane does one chunk at a time.
type lane struct {
	todo chan transfer
	done chan error // capacity 1
}

func newLanes(timeout time.Duration) *lanes {
	l := &lanes{timeout: timeout, timer: time.NewTimer(time.Hour)}
	l.timer.Stop()
	for i := range l.lane {
		todo, done := make(chan transfer), make(chan error, 1)
		l.lane[i] = lane{todo, done}
		l.running.Go(func() {
			for t := range todo {
				done <- t.run()
			}
		})
	}
	return l
}

// move moves the wanted chunks of a block, nil for all, between memory and the
// file, on the lanes in turn.
func (l *lanes) move(f vfs.File, b *block, mem []byte, wanted func(lo, hi int) bool, write bool) (err error) {
	if l.stuck.Load() {
		return errors.New("the disk does not answer")
	}
	var has [laneCount]int // 1 + the chunk that a lane has, or 0
	for i := range len(b.sums) + laneCount {
		lane := i % laneCount
		if has[lane] > 0 {
			if e := l.await(&l.lane[lane], b, has[lane]-1); err == nil {
				err = e
			}
			if l.stuck.Load() {
				return err
			}
			has[lane] = 0
		}
		lo, hi := i*chunk, min((i+1)*chunk, len(mem))
		if i < len(b.sums) && err == nil && (wanted == nil || wanted(lo, hi)) {
			l.lane[lane].todo <- transfer{f, mem[lo:hi], b.off + int64(lo), &b.sums[i], write}
			has[lane] = i + 1
		}
	}
	return err
}

// await returns when a lane's chunk of a block is done, or has taken too long.
func (l *lanes) await(at *lane, b *block, i int) error {
	if l.timeout > 0 {
		l.timer.Reset(l.timeout)
		defer l.timer.Stop()
	}
	select {
	case err := <-at.done:
		return err
	case <-l.timer.C:
		l.stuck.Store(true)
		return fmt.Errorf("offset %d: not done after %v: the disk does not answer, or is far too slow", b.off+int64(i)*chunk, l.timeout)
	}
}

// close ends the goroutines, at once or, if one is stuck, when its chunk is
// done; which it is, is the result.
func (l *lanes) close() (idle bool) {
	for _, at := range l.lane {
		close(at.todo)
	}
	if l.stuck.Load() {
		return false
	}
	l.running.Wait()
	return true
}
