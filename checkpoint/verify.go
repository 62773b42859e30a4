package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
	"zeroth/internal/parallel"
	"zeroth/shard"
)

// Walk configures operations over a whole checkpoint.
type Walk struct {
	FS       vfs.FS          // default: the machine's
	Workers  int             // goroutines; default one per processor
	Progress func(add int64) // called with the bytes processed, from any goroutine; may be nil
}

func (w Walk) withDefaults() Walk {
	if w.FS == nil {
		w.FS = store.Files{}
	}
	w.Workers = cmp.Or(w.Workers, runtime.GOMAXPROCS(0))
	if w.Progress == nil {
		w.Progress = func(int64) {}
	}
	return w
}

// Verify reads every byte of a checkpoint and lists all damage, in the order of files and
// offsets. Its error means that reading failed or ctx ended, not that there is damage.
func Verify(ctx context.Context, path string, w Walk) ([]*Damage, error) {
	w = w.withDefaults()
	c, err := OpenIn(w.FS, path)
	var d *Damage
	if errors.As(err, &d) {
		return []*Damage{d}, nil
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	v := verifier{c: c, walk: w}
	for _, src := range c.files {
		v.plan(src)
	}
	if err := parallel.For(ctx, len(v.checks), w.Workers, func(_ context.Context, i int) error { return v.checks[i]() }); err != nil {
		return nil, fmt.Errorf("verify %s: %w", path, err)
	}
	slices.SortFunc(v.bad, func(a, b *Damage) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Offset, b.Offset))
	})
	return v.bad, nil
}

type verifier struct {
	c      *Checkpoint
	walk   Walk
	checks []func() error

	mu  sync.Mutex
	bad []*Damage
}

// plan adds the checks of a file: its header, and groups of its blocks.
func (v *verifier) plan(src *source) {
	v.checks = append(v.checks, func() error { return v.header(src) })
	for i := range src.desc.Extents {
		e := located{&src.desc.Extents[i], src}
		t := src.part.Tensors[e.Tensor]
		n := e.raw(t.DType.Size())
		for lo := int64(0); lo < n; lo += readBytes {
			k := task{from: e, t: t, lo: lo, hi: min(n, lo+readBytes)}
			v.checks = append(v.checks, func() error { return v.blocks(k) })
		}
	}
}

func (v *verifier) note(d *Damage) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bad = append(v.bad, d)
}

// blocks checks the blocks of a task one by one, so that each bad one is reported.
func (v *verifier) blocks(k task) error {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	size := k.t.DType.Size()
	for i := int(k.lo / blockBytes); i < blocks(k.hi); i++ {
		off, n := k.from.block(i, size)
		if s.stored == nil {
			s.stored = make([]byte, blockBytes+1)
		}
		b := s.stored[:n]
		err := v.c.fetch(k, off, b, i)
		var d *Damage
		if errors.As(err, &d) { // even a read error: continue with the other blocks
			v.note(&Damage{d.File, d.Offset, d.Name, d.Kind, d.Range, whyOf(err, d)})
		}
		v.walk.Progress(int64(n))
	}
	return nil
}

// whyOf returns why a block is damaged, including the system's error if there is one.
func whyOf(err error, d *Damage) string {
	if err == error(d) {
		return d.Why
	}
	return err.Error()
}

// header checks a file's header against its checksum and the part file, and the file's
// checksum against those of its blocks.
func (v *verifier) header(src *source) error {
	d := src.desc
	b := make([]byte, d.Header) // at most maxHeader
	defer v.walk.Progress(d.Header)
	if err := vfs.ReadFull(src.f, b, 0); err != nil {
		v.note(&Damage{File: src.name, Why: "header cannot be read: " + err.Error()})
		return nil
	}
	if got := crc(b); got != d.HeaderCRC[0] {
		v.note(&Damage{File: src.name, Why: fmt.Sprintf("header: CRC32C of %d bytes is %08x, but %08x was written", len(b), got, d.HeaderCRC[0])})
		return nil
	}
	if sum := d.sum(src.part.Tensors); sum != d.CRC[0] {
		v.note(&Damage{File: path.Join(path.Dir(src.name), partName(src.writer)), Why: fmt.Sprintf("%s: the CRC32C of its blocks is %08x, but that of the file is given as %08x", d.Name, sum, d.CRC[0])})
	}
	if n := binary.LittleEndian.Uint64(b); n != uint64(d.Header-8) {
		v.note(&Damage{File: src.name, Why: fmt.Sprintf("header: its length is %d bytes, but the part file says %d", n, d.Header-8)})
		return nil
	}
	ts, _, err := safetensors.ParseHeader(bytes.NewReader(b), d.Bytes)
	if err == nil && len(ts) != len(d.Extents) {
		err = fmt.Errorf("%d tensors, the part file has %d extents", len(ts), len(d.Extents))
	}
	for i := 0; err == nil && i < len(ts); i++ {
		if e := d.Extents[i]; ts[i].Begin != e.Offset {
			err = fmt.Errorf("tensor %q at %d, the part file has an extent at %d", ts[i].Name, ts[i].Begin, e.Offset)
		}
	}
	if err != nil {
		v.note(&Damage{File: src.name, Why: "header: " + err.Error()})
	}
	return nil
}

// Digest returns the SHA-256 of the saved content in hexadecimal, independent of how the content is
// divided, encoded and distributed. It hashes for each tensor, in order, a line of name, kind,
// dtype and shape, and its elements.
func (c *Checkpoint) Digest() (string, error) {
	h := sha256.New()
	buf := make([]byte, readBytes)
	for _, t := range c.Tensors {
		fmt.Fprintf(h, "%q %q %q %v\n", t.Name, t.Kind, t.DType, t.Shape)
		err := chunks(t, shard.Range{Hi: t.Numel()}, func(r shard.Range) error {
			b := buf[:r.Len()*t.DType.Size()]
			if err := c.Read(t.Name, t.Kind, r, b); err != nil {
				return err
			}
			_, err := h.Write(b)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// chunks calls f for ranges of elements of at most readBytes.
func chunks(t Tensor, all shard.Range, f func(shard.Range) error) error {
	step := readBytes / t.DType.Size()
	for lo := all.Lo; lo < all.Hi; lo += step {
		if err := f(shard.Range{Lo: lo, Hi: min(all.Hi, lo+step)}); err != nil {
			return err
		}
	}
	return nil
}
