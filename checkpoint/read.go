package checkpoint

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/vfs"
	"zeroth/internal/parallel"
	"zeroth/shard"
)

// readBytes is the maximum number of raw bytes that one goroutine reads per task.
const readBytes = 16 * blockBytes

// scratch is the work space of one reading goroutine.
type scratch struct {
	raw    []byte // a block of which only some bytes are requested
	stored []byte // a block as stored; allocated for the first encoded one
	coder  *coder // allocated for the first encoded block
}

// scratches belong to no checkpoint: a pool of each would outlive it until the second collection.
var scratches = sync.Pool{New: func() any { return &scratch{raw: make([]byte, blockBytes)} }}

// Request requests elements of a tensor, or of a part of one, no matter how the tensor was divided
// when written. The elements are read to Into, in the tensor's dtype, little-endian.
type Request struct {
	Name, Kind string
	Cut        shard.Cut // part in which Range counts
	Range      shard.Range
	Into       []byte
}

// Read reads elements of a tensor, no matter which writers wrote them. It reads and verifies whole
// blocks and reports an altered one as a *Damage.
func (c *Checkpoint) Read(name, kind string, r shard.Range, into []byte) error {
	return c.ReadAll([]Request{{name, kind, shard.Cut{}, r, into}}, 1)
}

// RequestF32 requests elements of a tensor of floats, widened to float32, or the bits of U32.
type RequestF32 struct {
	Name, Kind string
	Cut        shard.Cut // part in which Range counts
	Range      shard.Range
	Into       []float32 // (Range.Len())
}

// ReadF32 is like Read with the given number of goroutines (0: one per processor), widening to
// float32.
func (c *Checkpoint) ReadF32(name, kind string, r shard.Range, into []float32, workers int) error {
	return c.ReadAllF32([]RequestF32{{name, kind, shard.Cut{}, r, into}}, workers)
}

// ReadAllF32 is like ReadAll, widening to float32.
func (c *Checkpoint) ReadAllF32(reqs []RequestF32, workers int) error {
	straight := make([]Request, 0, len(reqs)) // directly to the destination
	for _, q := range reqs {
		s, _, err := c.find(q.Name, q.Kind, q.Cut, q.Range)
		if err != nil {
			return err
		}
		dtype := s.t.DType
		if dtype == U32 { // bits pass as they are
			dtype = F32
		}
		if !dtype.Float() {
			return fmt.Errorf("checkpoint %s: %v is %s, not a float", c.Path, s.t, s.t.DType)
		}
		if b, ok := safetensors.Bytes(q.Into); ok && dtype == F32 {
			straight = append(straight, Request{q.Name, q.Kind, q.Cut, q.Range, b})
		} else if err := c.widen(q, dtype, workers); err != nil {
			return err
		}
	}
	return c.ReadAll(straight, workers)
}

// widen reads elements of another type piece by piece.
func (c *Checkpoint) widen(q RequestF32, t DType, workers int) error {
	size, r := t.Size(), q.Range
	buf := make([]byte, min(r.Len()*size, readBytes))
	for n := 0; n < r.Len(); n += len(buf) / size {
		lo, hi := r.Lo+n, min(r.Hi, r.Lo+n+len(buf)/size)
		b := buf[:(hi-lo)*size]
		if err := c.ReadAll([]Request{{q.Name, q.Kind, q.Cut, shard.Range{Lo: lo, Hi: hi}, b}}, workers); err != nil {
			return err
		}
		safetensors.Decode(q.Into[n:n+hi-lo], b, t)
	}
	return nil
}

// ReadAll reads many ranges with the given number of goroutines (0: one per processor), in the order
// of their positions in the files. Even a single range is distributed among the goroutines. After
// the first error, which ReadAll returns, the buffers' content is undefined.
func (c *Checkpoint) ReadAll(reqs []Request, workers int) error {
	workers = cmp.Or(workers, runtime.GOMAXPROCS(0))
	tasks, err := c.plan(reqs, workers)
	if err != nil {
		return err
	}
	if err := parallel.For(context.Background(), len(tasks), workers, func(_ context.Context, i int) error { return c.run(tasks[i]) }); err != nil {
		return fmt.Errorf("checkpoint %s: %w", c.Path, err)
	}
	return nil
}

// task is the part of a request in one extent. It begins and ends at block boundaries or at the
// request's.
type task struct {
	from   located
	t      Tensor
	lo, hi int64 // raw bytes of the extent
	into   []byte
	moves  []move // destinations instead of into, if the request is for another part than the stored one
}

// move is a destination for raw bytes of an extent, from offset at on.
type move struct {
	at   int64
	into []byte
}

// find returns a tensor and the part of it in which r counts elements.
func (c *Checkpoint) find(name, kind string, cut shard.Cut, r shard.Range) (*stored, shard.Param, error) {
	s, ok := c.index[key{name, kind}]
	if !ok {
		return nil, shard.Param{}, fmt.Errorf("checkpoint %s: has no %s (%s)", c.Path, name, kind)
	}
	if cut.Full != nil && !slices.Equal(cut.Full, s.t.Shape) {
		return nil, shard.Param{}, fmt.Errorf("checkpoint %s: %v has shape %v, but a part of a tensor of shape %v was requested", c.Path, s.t, s.t.Shape, cut.Full)
	}
	p, err := cutOf(cut).param(s.t)
	if err != nil {
		return nil, p, fmt.Errorf("checkpoint %s: %w", c.Path, err)
	}
	if r.Lo < 0 || r.Hi < r.Lo || r.Hi > p.Numel() {
		return nil, p, fmt.Errorf("checkpoint %s: %v: elements [%d, %d) of %d", c.Path, s.t, r.Lo, r.Hi, p.Numel())
	}
	return s, p, nil
}

// plan divides requests at extents and, within them, into tasks of readBytes, or fewer if workers
// would otherwise be idle.
func (c *Checkpoint) plan(reqs []Request, workers int) ([]task, error) {
	var total int64
	for _, q := range reqs {
		total += int64(len(q.Into))
	}
	most := min(readBytes, max(1, total/int64(workers)/blockBytes)*blockBytes)
	var out []task
	for _, q := range reqs {
		s, p, err := c.find(q.Name, q.Kind, q.Cut, q.Range)
		if err != nil {
			return nil, err
		}
		if len(q.Into) != q.Range.Len()*s.t.DType.Size() {
			panic(fmt.Sprintf("checkpoint: %d bytes for %d elements of %v, %s", len(q.Into), q.Range.Len(), s.t, s.t.DType))
		}
		if same := s.byCut[cutOf(q.Cut).String()]; same != nil {
			out = same.tasks(out, s.t, q, most)
			continue
		}
		for _, part := range s.parts {
			out = part.scattered(out, s.t, p, q, most)
		}
	}
	slices.SortFunc(out, func(a, b task) int {
		return cmp.Or(strings.Compare(a.from.from.name, b.from.from.name), cmp.Compare(a.from.Offset+a.lo, b.from.Offset+b.lo))
	})
	return out, nil
}

// scattered appends the tasks of a request for elements of p, a part of the tensor other than s.
func (s *storedPart) scattered(out []task, t Tensor, p shard.Param, q Request, most int64) []task {
	size, at := int64(t.DType.Size()), 0 // at: index in ext
	var k *task
	for tensor, wanted := range p.Runs(q.Range) {
		for has, local := range s.param.Runs(s.param.Within(tensor)) {
			lo := int64(wanted.Lo+has.Lo-tensor.Lo-q.Range.Lo) * size
			into := q.Into[lo : lo+int64(local.Len())*size]
			for len(into) > 0 {
				for s.ext[at].Hi <= local.Lo {
					at++
				}
				e := s.ext[at]
				from := int64(local.Lo-e.Lo) * size
				n := min(int64(len(into)), e.raw(int(size))-from, most)
				if k == nil || k.from.extent != e.extent || from+n-k.lo > most {
					out = append(out, task{from: e, t: t, lo: from / blockBytes * blockBytes})
					k = &out[len(out)-1]
				}
				if last := len(k.moves) - 1; last >= 0 && k.hi == from && follows(k.moves[last].into, into) {
					k.moves[last].into = k.moves[last].into[:len(k.moves[last].into)+int(n)]
				} else {
					k.moves = append(k.moves, move{from, into[:n]})
				}
				k.hi = from + n
				into, local.Lo = into[n:], local.Lo+int(n/size)
			}
		}
	}
	return out
}

// follows reports whether b begins where a ends in memory, so that a can be extended.
func follows(a, b []byte) bool {
	return cap(a) > len(a) && &a[:len(a)+1][len(a)] == &b[0]
}

// tasks appends the tasks of a request, each of up to most bytes.
func (s *storedPart) tasks(out []task, t Tensor, q Request, most int64) []task {
	size := t.DType.Size()
	i := sort.Search(len(s.ext), func(i int) bool { return s.ext[i].Hi > q.Range.Lo })
	for ; i < len(s.ext) && s.ext[i].Lo < q.Range.Hi; i++ {
		e := s.ext[i]
		in := e.rng().Intersect(q.Range)
		into := q.Into[(in.Lo-q.Range.Lo)*size : (in.Hi-q.Range.Lo)*size]
		lo, hi := int64(in.Lo-e.Lo)*int64(size), int64(in.Hi-e.Lo)*int64(size)
		for lo < hi {
			end := min(hi, lo/most*most+most)
			out = append(out, task{from: e, t: t, lo: lo, hi: end, into: into[:end-lo]})
			into, lo = into[end-lo:], end
		}
	}
	return out
}

// run reads and verifies the blocks of a task and copies them to their destination.
func (c *Checkpoint) run(k task) error {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	if k.moves != nil {
		return c.runMoves(k, s)
	}
	if k.from.Codec != codecRaw {
		return c.runEncoded(k, s)
	}
	for k.lo < k.hi {
		first := int(k.lo / blockBytes)
		whole := int(k.hi / blockBytes) // first block that ends after the task
		if k.hi == k.from.raw(k.t.DType.Size()) {
			whole = blocks(k.hi)
		}
		var n int64
		var err error
		if k.lo%blockBytes == 0 && first < whole {
			n, err = c.rawWhole(k, first, whole)
		} else {
			n, err = c.rawPartly(k, first, s)
		}
		if err != nil {
			return err
		}
		k.lo, k.into = k.lo+n, k.into[n:]
	}
	return nil
}

// runMoves reads the blocks of a task and copies the requested bytes to their destinations.
func (c *Checkpoint) runMoves(k task, s *scratch) error {
	for moves := k.moves; len(moves) > 0; {
		i := int(moves[0].at / blockBytes)
		b, err := c.rawBlock(k, i, s)
		if err != nil {
			return err
		}
		for start := int64(i) * blockBytes; len(moves) > 0 && moves[0].at < start+int64(len(b)); {
			m := &moves[0]
			n := copy(m.into, b[m.at-start:])
			if m.at, m.into = m.at+int64(n), m.into[n:]; len(m.into) > 0 {
				break // continued in the next block
			}
			moves = moves[1:]
		}
	}
	return nil
}

// rawBlock verifies block i and returns it in the work space.
func (c *Checkpoint) rawBlock(k task, i int, s *scratch) ([]byte, error) {
	size := k.t.DType.Size()
	off, n := k.from.block(i, size)
	raw := s.raw[:k.from.rawBlock(i, size)]
	b := raw
	if k.from.Codec != codecRaw {
		if s.stored == nil {
			s.stored = make([]byte, blockBytes+1)
		}
		b = s.stored[:n]
	}
	if err := c.fetch(k, off, b, i); err != nil || k.from.Codec == codecRaw {
		return raw, err
	}
	if s.coder == nil {
		s.coder = newCoder()
	}
	if err := s.coder.decode(raw, b, k.t.DType); err != nil {
		return nil, k.damage(i, err.Error())
	}
	return raw, nil
}

// rawWhole reads blocks [i, j) directly to their destination and returns their number of bytes. It
// verifies each block while it is in the cache.
func (c *Checkpoint) rawWhole(k task, i, j int) (int64, error) {
	n := int64(0)
	for ; i < j; i++ {
		off, size := k.from.block(i, k.t.DType.Size())
		b := k.into[n : n+int64(size)]
		if err := c.fetch(k, off, b, i); err != nil {
			return 0, err
		}
		n += int64(size)
	}
	return n, nil
}

// rawPartly reads block i into the work space and copies the requested part.
func (c *Checkpoint) rawPartly(k task, i int, s *scratch) (int64, error) {
	off, n := k.from.block(i, k.t.DType.Size())
	b := s.raw[:n]
	if err := c.fetch(k, off, b, i); err != nil {
		return 0, err
	}
	start := int64(i) * blockBytes
	return int64(copy(k.into, b[k.lo-start:])), nil
}

// runEncoded reads, verifies and decodes the encoded blocks of a task.
func (c *Checkpoint) runEncoded(k task, s *scratch) error {
	if s.coder == nil {
		s.coder = newCoder()
	}
	if s.stored == nil { // one byte more than a block, in case it was stored raw
		s.stored = make([]byte, blockBytes+1)
	}
	i, j := int(k.lo/blockBytes), blocks(k.hi)
	off, _ := k.from.block(i, k.t.DType.Size())
	for ; i < j; i++ {
		b := s.stored[:k.from.Stored[i]]
		if err := c.fetch(k, off, b, i); err != nil {
			return err
		}
		n, err := k.decode(s, b, i)
		if err != nil {
			return err
		}
		off, k.lo, k.into = off+int64(len(b)), k.lo+n, k.into[n:]
	}
	return nil
}

// decode decodes block i to its destination and returns the number of bytes used.
func (k *task) decode(s *scratch, b []byte, i int) (int64, error) {
	n := k.from.rawBlock(i, k.t.DType.Size())
	start := int64(i) * blockBytes
	dst, whole := s.raw[:n], k.lo == start && len(k.into) >= n
	if whole {
		dst = k.into[:n:n]
	}
	if err := s.coder.decode(dst, b, k.t.DType); err != nil {
		return 0, k.damage(i, err.Error())
	}
	if whole {
		return int64(n), nil
	}
	return int64(copy(k.into, dst[k.lo-start:])), nil
}

// fetch reads and verifies block i of the extent, at offset off of the file.
func (c *Checkpoint) fetch(k task, off int64, b []byte, i int) error {
	c.read.Add(int64(len(b)))
	if err := vfs.ReadFull(k.from.from.f, b, off); err != nil {
		return fmt.Errorf("%w: %w", k.damage(i, "cannot be read"), err)
	}
	if got, want := crc(b), k.from.CRC[i]; got != want {
		return k.damage(i, fmt.Sprintf("CRC32C of %d bytes is %08x, but %08x was written", len(b), got, want))
	}
	return nil
}

// damage describes block i of the task's extent as damaged.
func (k *task) damage(i int, why string) *Damage {
	size := k.t.DType.Size()
	off, _ := k.from.block(i, size)
	lo := k.from.Lo + i*(blockBytes/size)
	lost := shard.Range{Lo: lo, Hi: lo + k.from.rawBlock(i, size)/size}
	if p, err := k.from.Cut.param(k.t); err == nil && k.from.Cut != nil { // all elements from the first to the last
		first := true
		for r := range p.Runs(lost) {
			if first {
				lost.Lo, first = r.Lo, false
			}
			lost.Hi = r.Hi
		}
	}
	return &Damage{k.from.from.name, off, k.t.Name, k.t.Kind, lost, why}
}
