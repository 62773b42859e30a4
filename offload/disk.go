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

// A rank's file consists of a header of one block, then the tiles of state and of
// parameters, each starting at a multiple of blockSize and padded to whole blocks. The
// file is scratch: it serves the run that creates it and is removed with it; state that
// must survive is in checkpoints. The run holds a lock on the file while it lives, so the
// file of a dead run is one that has our header and no lock. Such files are removed before
// a new one is created, never read.
//
// A CRC32C of every chunk of 512 KiB is kept in memory. It detects flipped bits, and also
// chunks that the disk returns as they were before the last write, which a checksum stored
// with the chunk would not detect.
//
// The header is text, padded with zeros to a block, so that `head` on a leftover file
// identifies it:
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

// block is the location of a tile in the file.
type block struct {
	off     int64    // bytes
	len     int      // bytes
	sums    []uint32 // CRC32C of each chunk
	written bool     // if not, its content is zeros
}

// some returns the number of bytes in the wanted chunks; nil wants all.
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

// disk manages one rank's file.
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

// lay reserves a block of n bytes, a multiple of blockSize, at the end of the file.
func (d *disk) lay(n int) *block {
	b := &block{off: d.size, len: n, sums: make([]uint32, (n+chunk-1)/chunk)}
	d.size += int64(n)
	return b
}

// digest returns a checksum of the file's layout.
func (s *Store) digest() uint32 {
	h := crc32.New(castagnoli)
	fmt.Fprintln(h, s.cfg.Tile, s.cfg.DType, s.cfg.Vecs, s.cfg.Optimizer, s.cfg.Params)
	for _, u := range s.units {
		fmt.Fprintln(h, u.Name, u.Len, u.vecs, u.param, u.dtype)
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

// open removes the files of dead runs, creates this rank's and reserves its space.
func (d *disk) open(layout uint32) (err error) {
	if d.Files == nil {
		return nil
	}
	if err := d.reclaim(); err != nil {
		return err
	}
	free, err := d.Files.Space(d.Dir)
	if err == nil && free < d.size {
		return fmt.Errorf("create %s: needs %d bytes, but only %d are free: free some space, use another folder, or offload less (zero.offload.ratio)", d.name, d.size, free)
	}
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("space in %s: %w", d.Dir, cause(err))
	}
	if d.file, err = d.Files.CreateLocked(d.name); err != nil {
		return fmt.Errorf("create %s: %w", d.name, cause(err))
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

// writeHeader writes the header and reads it back, with direct transfers if the file
// system supports them, else through the page cache.
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
			return fmt.Errorf("%s: the header reads back differently: the disk is broken", d.name)
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

// reclaimFile removes a file if it belongs to a dead run. It skips files that are in use or
// do not have our header.
func (d *disk) reclaimFile(name string) error {
	f, err := d.Files.OpenLocked(name)
	if errors.Is(err, vfs.ErrLocked) || errors.Is(err, vfs.ErrNotFile) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s, left by another run: %w", name, cause(err))
	}
	defer f.Close()
	head := make([]byte, blockSize)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return fmt.Errorf("read %s, left by another run: %w", name, cause(err))
	}
	text, _, _ := strings.Cut(string(head[:n]), "\x00")
	about, ours := strings.CutPrefix(text, magic)
	if !ours && text != "" { // an empty one is ours, left before its header was written
		return nil
	}
	if err := d.Files.Remove(name); err != nil {
		return fmt.Errorf("remove %s, left by an interrupted run: %w", name, cause(err))
	}
	what := strings.Map(printable, strings.ReplaceAll(strings.TrimSpace(about), "\n", ", "))
	if what == "" {
		what = "never used"
	}
	d.reclaimed = append(d.reclaimed, fmt.Sprintf("%s (%s)", name, what))
	return nil
}

// printable replaces characters that could control a terminal.
func printable(r rune) rune {
	if !strconv.IsPrint(r) {
		return unicode.ReplacementChar
	}
	return r
}

// readSome reads the wanted chunks of a block, given by their byte ranges in it, to the
// beginning of a slot; nil wants all.
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

// writeSome writes the wanted chunks from the beginning of a slot to a block, as readSome
// reads them. The first write of a block writes all chunks.
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

// close ends the lanes and removes the file. It returns false if an abandoned transfer may
// still be in progress.
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
	_ = d.Files.Remove(d.name) // if that fails, the next run reclaims it
	if idle {
		_ = d.file.Close() // its content is no longer needed
	} else {
		go func(reads, writes *lanes, f vfs.ScratchFile) { // ends when the disk has responded
			reads.running.Wait()
			writes.running.Wait()
			_ = f.Close() // its content is no longer needed
		}(d.reads, d.writes, d.file)
	}
	d.file, d.reads, d.writes = nil, nil, nil
	return idle
}

// cause returns the reason of a file error without the path it adds. If files cannot be
// locked, so that files of dead and live runs are indistinguishable, it adds what to do.
func cause(err error) error {
	if no := (*vfs.CannotLock)(nil); errors.As(err, &no) {
		return fmt.Errorf("%w: offload to the host instead", no.Err)
	}
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// chunk is the size of a transfer and of a checksum in bytes: small enough to compute the
// checksum while the data is in the cache, large enough for the disk's full speed.
const chunk = 1 << 19

// transfer moves a chunk, or less at the end of a block, between memory and a file.
type transfer struct {
	file  vfs.File
	mem   []byte
	off   int64
	sum   *uint32 // CRC32C of mem: set by a write, checked by a read
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
		return t.failed("read", fmt.Errorf("the file ends after %d bytes: %w", n, io.ErrUnexpectedEOF))
	default:
		return t.failed("read", err)
	}
	if sum := crc32.Checksum(t.mem, castagnoli); sum != *t.sum {
		return fmt.Errorf("the %d bytes at offset %d have checksum %08x, but %08x was written: the disk lost or changed them", len(t.mem), t.off, sum, *t.sum)
	}
	return nil
}

func (t transfer) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %d bytes at offset %d: %w", what, len(t.mem), t.off, cause(err))
}

// lanes are goroutines that all read or all write: several, so that the disk is busy while
// some compute checksums, and separate from the caller, so that it can abandon a disk that
// does not respond.
type lanes struct {
	lane    [laneCount]lane
	timer   *time.Timer
	timeout time.Duration
	stuck   atomic.Bool
	running sync.WaitGroup
}

// laneCount is the number of lanes per direction. Among 2 to 8 lanes and chunks of 256 KiB
// to 4 MiB, 8 lanes and 512 KiB are fastest (BenchmarkDisk).
const laneCount = 8

// lane moves one chunk at a time.
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

// move transfers the wanted chunks of a block, nil for all, between memory and the file,
// distributing them over the lanes round-robin.
func (l *lanes) move(f vfs.File, b *block, mem []byte, wanted func(lo, hi int) bool, write bool) (err error) {
	if l.stuck.Load() {
		return errors.New("the disk does not respond")
	}
	var has [laneCount]int // 1 + the index of the chunk in a lane, 0 if idle
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

// await waits until a lane has moved its chunk of a block, or the timeout expires.
func (l *lanes) await(at *lane, b *block, i int) error {
	var due time.Time
	wait := func() { due = time.Now().Add(l.timeout); l.timer.Reset(l.timeout) }
	if l.timeout > 0 {
		wait()
		defer l.timer.Stop()
	}
	for {
		select {
		case err := <-at.done:
			return err
		case <-l.timer.C:
		}
		if time.Since(due) > max(time.Second, l.timeout/4) { // this process was stopped, and the disk waits for it
			wait()
			continue
		}
		l.stuck.Store(true)
		return fmt.Errorf("offset %d: not finished after %v: the disk does not respond, or is far too slow", b.off+int64(i)*chunk, l.timeout)
	}
}

// close ends the goroutines. It waits for them and returns true, unless one is stuck: then it
// returns false, and they end when that chunk is done.
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
