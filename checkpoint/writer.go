package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/vfs"
	"zeroth/shard"
)

// Defaults of Options.
const (
	chunkBytes  = 16 * blockBytes // raw bytes per job of a worker
	headerBytes = 1 << 16         // reserved at the start of each data file
	fileBytes   = 1 << 32         // maximum bytes of a data file
)

// Writer writes one writer's part of a save. Its goroutines end in Finish or Abort. Its own memory
// is the work space of one block per worker and, with compression, of one chunk.
type Writer struct {
	fsys  vfs.FS
	dir   string
	opt   Options
	clock saveClock

	put    sync.Mutex // orders Puts, so that equal Puts give equal files
	next   int        // number of the next job, under put
	closed bool       // jobs is closed; under put
	jobs   chan job
	wg     sync.WaitGroup

	mu    sync.Mutex // protects the fields below
	turn  sync.Cond  // signals changes of done
	part  part
	ids   map[key]int // index into part.Tensors
	files []*outFile
	done  int // number of jobs with an offset in a file
	err   error
}

var errEnded = errors.New("the writer is closed: Finish or Abort was called")

// outFile is a data file being written.
type outFile struct {
	f    vfs.File
	desc dataFile // checksums of the file are missing until Finish
	used int      // upper bound of the header's bytes
}

// job is a chunk of a Put.
type job struct {
	seq      int
	tensor   int // index into part.Tensors
	t        Tensor
	cut      *cut
	lo, hi   int // elements, counted in the part
	data     []byte
	compress bool
	last     func() // called when the job no longer reads data
}

func newWriter(fsys vfs.FS, dir string, step int64, nonce string, rank int, opt Options) *Writer {
	w := &Writer{fsys: fsys, dir: dir, opt: opt, ids: map[key]int{}, jobs: make(chan job, opt.Workers)}
	w.part = part{Format: format, Step: step, Nonce: nonce, Writer: rank, Tensors: []Tensor{}, Files: []dataFile{}}
	w.turn.L = &w.mu
	w.clock = opt.Tuner.begin(nonce, opt.Workers)
	for range opt.Workers {
		w.wg.Go(w.work)
	}
	return w
}

// Put saves the elements r of a tensor; data contains their bytes, little-endian. Put may
// return before they are written: data must not change until Put calls release (which may be
// nil) once, from any goroutine. Put blocks while Workers chunks are queued. A later error is
// returned by Finish, and makes further Puts fail.
func (w *Writer) Put(t Tensor, r shard.Range, data []byte, release func()) error {
	return w.PutPart(t, shard.Cut{}, r, data, release)
}

// PutPart is like Put for elements r of a part of a tensor. All parts put by writers must divide
// the same dimension, and each must be put completely.
func (w *Writer) PutPart(t Tensor, cut shard.Cut, r shard.Range, data []byte, release func()) error {
	c := cutOf(cut)
	if release == nil {
		release = func() {}
	}
	if err := w.checkPut(t, c, r, data); err != nil {
		release()
		return w.fail(err)
	}
	size := t.DType.Size()
	pending := atomic.Int64{}
	pending.Store(int64((len(data)+chunkBytes-1)/chunkBytes) + 1)
	last := func() {
		if pending.Add(-1) == 0 {
			release()
		}
	}
	defer last() // for this function itself, so that an empty Put is released
	id, err := w.tensor(t)
	if err != nil { // nothing is queued, so only this function's count remains
		pending.Store(1)
		return w.fail(err)
	}
	compress := w.opt.compresses(t)
	w.put.Lock()
	defer w.put.Unlock()
	if w.closed {
		pending.Store(1)
		return errEnded
	}
	for at := 0; at < len(data); at += chunkBytes {
		end := min(len(data), at+chunkBytes)
		w.jobs <- job{w.next, id, t, c, r.Lo + at/size, r.Lo + end/size, data[at:end], compress, last}
		w.next++
	}
	return w.failed()
}

func (w *Writer) checkPut(t Tensor, c *cut, r shard.Range, data []byte) error {
	if err := t.Check(); err != nil {
		return err
	}
	param, err := c.param(t)
	if err != nil {
		return err
	}
	if r.Lo < 0 || r.Hi < r.Lo || r.Hi > param.Numel() {
		return fmt.Errorf("%v: elements [%d, %d) of %d", t, r.Lo, r.Hi, param.Numel())
	}
	if len(data) != r.Len()*t.DType.Size() {
		panic(fmt.Sprintf("checkpoint: %v: %d bytes for %d elements of %s", t, len(data), r.Len(), t.DType))
	}
	return w.failed()
}

// tensor returns the index of a tensor, adding it if it is new.
func (w *Writer) tensor(t Tensor) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i, ok := w.ids[t.key()]; ok {
		if !w.part.Tensors[i].same(t) {
			return 0, fmt.Errorf("%v: put as %s%v and as %s%v", t, t.DType, t.Shape, w.part.Tensors[i].DType, w.part.Tensors[i].Shape)
		}
		return i, nil
	}
	if t.Shape == nil {
		t.Shape = []int{}
	}
	w.ids[t.key()] = len(w.part.Tensors)
	w.part.Tensors = append(w.part.Tensors, t)
	return len(w.part.Tensors) - 1, nil
}

// fail records the first error.
func (w *Writer) fail(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	return err
}

func (w *Writer) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// work runs a worker: it encodes a chunk, waits for its turn to get an offset, and writes it there.
func (w *Writer) work() {
	var c *coder
	var buf []byte
	for j := range w.jobs {
		e := extent{Tensor: j.tensor, Lo: j.lo, Hi: j.hi, Cut: j.cut, Codec: codecRaw}
		out := j.data
		if w.failed() == nil {
			if c == nil && (j.compress || w.opt.Tuner != nil) {
				c = newCoder()
			}
			w.opt.Tuner.sample(c, j.t, j.data)
			if j.compress {
				if buf == nil { // a block grows by at most one byte
					buf = make([]byte, 0, chunkBytes+chunkBytes/blockBytes)
				}
				buf = encodeChunk(c, buf[:0], j, &e)
				out = buf
			} else {
				checksums(j.data, &e)
			}
		}
		w.write(j, e, out)
		j.last()
	}
}

// checksums sets the CRCs of a raw extent.
func checksums(b []byte, e *extent) {
	for len(b) > 0 {
		n := min(len(b), blockBytes)
		e.CRC = append(e.CRC, crc(b[:n]))
		b = b[n:]
	}
}

// encodeChunk appends the encoded blocks of a job to buf and describes them in e.
func encodeChunk(c *coder, buf []byte, j job, e *extent) []byte {
	e.Codec = codecPlanes
	for at := 0; at < len(j.data); at += blockBytes {
		start := len(buf)
		buf = c.encode(buf, j.data[at:min(len(j.data), at+blockBytes)], j.t.DType)
		e.Stored = append(e.Stored, int32(len(buf)-start))
		e.CRC = append(e.CRC, crc(buf[start:]))
	}
	return buf
}

// write gives a chunk its offset, in the order of the jobs, and writes it.
func (w *Writer) write(j job, e extent, b []byte) {
	w.mu.Lock()
	for w.done != j.seq {
		w.turn.Wait()
	}
	var f *outFile
	if w.err == nil {
		f, w.err = w.allocate(j.t, &e, int64(len(b)))
	}
	failed := w.err != nil
	w.done++
	w.turn.Broadcast()
	w.mu.Unlock()
	if failed {
		return
	}
	if _, err := f.f.WriteAt(b, e.Offset); err != nil {
		w.fail(fmt.Errorf("%s: %v, elements [%d, %d), offset %d: %w", f.desc.Name, j.t, e.Lo, e.Hi, e.Offset, err))
	}
}

// allocate appends an extent of n bytes to the last data file, or to a new one if that is
// full. An extent that continues the previous one is merged with it. The caller holds mu.
func (w *Writer) allocate(t Tensor, e *extent, n int64) (*outFile, error) {
	need := headerNeed(t, e.Cut)
	if k := len(w.files); k > 0 {
		f := w.files[k-1]
		joins := f.continues(e, t.DType.Size())
		if f.desc.Bytes+n <= w.opt.fileBytes && (joins || f.used+need <= w.opt.headerBytes) {
			e.Offset = f.desc.Bytes
			f.desc.Bytes += n
			if joins {
				f.extend(e)
			} else {
				f.used += need
				f.desc.Extents = append(f.desc.Extents, *e)
			}
			return f, nil
		}
	}
	name := dataName(w.part.Writer, len(w.files))
	out, err := w.fsys.Create(vfs.Join(w.dir, name))
	if err != nil {
		return nil, err
	}
	h := int64(w.opt.headerBytes)
	e.Offset = h
	f := &outFile{f: out, used: 16 + need, desc: dataFile{Name: name, Header: h, Bytes: h + n, Extents: []extent{*e}}}
	w.files = append(w.files, f)
	return f, nil
}

// continues reports whether e continues the last extent: the next elements of the same tensor,
// after whole blocks, in the same codec.
func (f *outFile) continues(e *extent, size int) bool {
	l := &f.desc.Extents[len(f.desc.Extents)-1]
	return l.Tensor == e.Tensor && l.Cut.same(e.Cut) && l.Hi == e.Lo && l.Codec == e.Codec && l.raw(size)%blockBytes == 0
}

func (f *outFile) extend(e *extent) {
	l := &f.desc.Extents[len(f.desc.Extents)-1]
	l.Hi = e.Hi
	l.Stored = append(l.Stored, e.Stored...)
	l.CRC = append(l.CRC, e.CRC...)
}

// PartFile identifies a writer's part file by size and digest. It is sent to the process that
// commits.
type PartFile struct {
	Writer int    `json:"writer"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Data   int64  `json:"data"` // bytes of the data files
}

// Finish writes everything that is outstanding, makes the files durable and describes them in
// the part file. After an error the save cannot be committed. When it returns, all buffers are
// released.
func (w *Writer) Finish() (PartFile, error) {
	if err := w.end(); err != nil {
		return PartFile{}, w.wrap(errors.Join(err, w.close()))
	}
	if err := w.seal(); err != nil {
		return PartFile{}, w.wrap(errors.Join(w.fail(err), w.close()))
	}
	w.opt.Tuner.end(w.clock, &w.part)
	if w.part.cuts() {
		w.part.Format = formatCuts
	}
	b, err := json.Marshal(&w.part)
	if err != nil {
		panic("checkpoint: " + err.Error())
	}
	name := partName(w.part.Writer)
	if len(b) > maxJSON {
		return PartFile{}, w.wrap(w.fail(fmt.Errorf("%s would have %d bytes, at most %d can be read: save by more ranks", name, len(b), maxJSON)))
	}
	if err := vfs.WriteFile(w.fsys, vfs.Join(w.dir, name), b); err != nil {
		return PartFile{}, w.wrap(fmt.Errorf("%s: %w", name, w.fail(err)))
	}
	if err := w.fsys.SyncDir(w.dir); err != nil { // needed because the committing process may be on another machine
		return PartFile{}, w.wrap(w.fail(err))
	}
	return PartFile{w.part.Writer, int64(len(b)), digest(b), w.part.bytes()}, nil
}

func (w *Writer) wrap(err error) error {
	return fmt.Errorf("save of step %d, writer %d: %w", w.part.Step, w.part.Writer, err)
}

// Abort releases everything outstanding without writing it. Files remain until Save.Abort or the next
// save removes them.
func (w *Writer) Abort() error {
	w.fail(errors.New("aborted"))
	w.end()
	return w.close()
}

// end stops the workers after the queued jobs and returns the first error.
func (w *Writer) end() error {
	w.put.Lock() // wait for a Put in progress
	again := w.closed
	w.closed = true
	w.put.Unlock()
	if again {
		return errEnded
	}
	close(w.jobs)
	w.wg.Wait()
	return w.failed()
}

// seal writes headers, syncs and closes the files, and completes the part's description.
func (w *Writer) seal() error {
	for _, f := range w.files {
		head, err := w.header(f)
		if err != nil {
			return err
		}
		f.desc.HeaderCRC = crcs{crc(head)}
		f.desc.CRC = crcs{f.desc.sum(w.part.Tensors)}
		if _, err := f.f.WriteAt(head, 0); err != nil {
			return fmt.Errorf("%s: header: %w", f.desc.Name, err)
		}
		if err := f.f.Sync(); err != nil {
			return fmt.Errorf("%s: sync: %w", f.desc.Name, err)
		}
		w.part.Files = append(w.part.Files, f.desc)
	}
	return w.close()
}

// sum returns the CRC32C of the whole file, derived from those of its blocks.
func (d *dataFile) sum(ts []Tensor) uint32 {
	sum := d.HeaderCRC[0]
	for i := range d.Extents {
		e := &d.Extents[i]
		size := ts[e.Tensor].DType.Size()
		for k, c := range e.CRC {
			n := 0
			if e.Codec == codecRaw {
				n = e.rawBlock(k, size)
			} else {
				n = int(e.Stored[k])
			}
			sum = vfs.JoinCRC(sum, c, int64(n))
		}
	}
	return sum
}

func (w *Writer) close() error {
	var errs []error
	for _, f := range w.files {
		errs = append(errs, f.f.Close())
	}
	w.files = nil
	return errors.Join(errs...)
}

// header returns the safetensors header of a data file, with a tensor for each extent.
func (w *Writer) header(f *outFile) ([]byte, error) {
	ts := make([]safetensors.Tensor, len(f.desc.Extents))
	for i := range ts {
		e := &f.desc.Extents[i]
		t := w.part.Tensors[e.Tensor]
		begin := e.Offset - f.desc.Header
		n := e.bytes(t.DType.Size())
		ts[i] = safetensors.Tensor{Spec: entrySpec(t, e, n), Begin: begin, End: begin + n}
	}
	b, err := safetensors.AppendHeader(nil, ts, nil, 8, int(f.desc.Header))
	if err == nil && int64(len(b)) != f.desc.Header {
		panic(fmt.Sprintf("checkpoint: header of %d extents needs %d bytes, %d reserved", len(ts), len(b), f.desc.Header))
	}
	return b, err
}

// entrySpec returns the entry of an extent of n stored bytes in a data file's header: raw
// elements as a vector, encoded ones as bytes.
func entrySpec(t Tensor, e *extent, n int64) safetensors.Spec {
	name := fmt.Sprintf("%s:%s%v[%d:%d]", t.Name, t.Kind, e.Cut, e.Lo, e.Hi)
	if e.Codec == codecRaw {
		return safetensors.Spec{Name: name, DType: t.DType, Shape: []int{e.Hi - e.Lo}}
	}
	return safetensors.Spec{Name: name + "." + e.Codec, DType: safetensors.U8, Shape: []int{int(n)}}
}

// headerNeed returns an upper bound of the bytes of a tensor's entry: its names as JSON, five
// numbers of at most 19 digits, the part's name, and the rest.
func headerNeed(t Tensor, c *cut) int {
	name, err := json.Marshal(t.Name)
	if err != nil {
		panic("checkpoint: " + err.Error())
	}
	return len(name) + len(t.Kind) + len(c.String()) + 5*19 + 96
}

// saveClock records when a writer began, for the tuner.
type saveClock struct {
	nonce string
	start time.Time
}

func defaultWorkers() int { return min(2, runtime.GOMAXPROCS(0)) }
