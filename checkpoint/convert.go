package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"zeroth/checkpoint/safetensors"
	"zeroth/internal/parallel"
	"zeroth/shard"
)

// Export configures the conversion of a checkpoint to a safetensors folder.
type Export struct {
	Kind     string            // default Master
	DType    DType             // default F32
	PartSize int64             // maximum bytes per part; default 5 GB (5e9)
	Metadata map[string]string // of each file; default {"format": "pt"}
	// Name returns the exported name of a parameter, or false to omit it. By default names are
	// unchanged.
	Name func(string) (string, bool)
	// Change returns the exported values of the elements r of a tensor. It is called from several
	// goroutines. By default values are unchanged.
	Change func(t Tensor, r shard.Range, x []float32) []float32
	Walk
}

const defaultPart = 5_000_000_000 // bytes, Hugging Face's 5 GB

func (e Export) withDefaults() Export {
	e.Kind = cmp.Or(e.Kind, Master)
	e.DType = cmp.Or(e.DType, F32)
	e.PartSize = cmp.Or(e.PartSize, defaultPart)
	if e.Metadata == nil {
		e.Metadata = map[string]string{"format": "pt"}
	}
	if e.Name == nil {
		e.Name = func(s string) (string, bool) { return s, true }
	}
	if e.Change == nil {
		e.Change = func(_ Tensor, _ shard.Range, x []float32) []float32 { return x }
	}
	e.Walk = e.Walk.withDefaults()
	return e
}

// Write writes the tensors of one kind of a source to a folder: model.safetensors, or parts and an
// index. path names the source in messages. Write holds one chunk of 4 MiB per worker in memory and
// stores tied tensors once. After any error, including the end of ctx, the folder has no model.
func (e Export) Write(ctx context.Context, src Source, path, dir string) error {
	e = e.withDefaults()
	var specs []safetensors.Spec
	var runs []exportRun
	for _, t := range src.All() {
		name, ok := e.Name(t.Name)
		if t.Kind != e.Kind || !ok {
			continue
		}
		specs = append(specs, safetensors.Spec{Name: name, DType: e.DType, Shape: t.Shape})
		chunks(t, shard.Range{Hi: t.Numel()}, func(r shard.Range) error {
			runs = append(runs, exportRun{t, name, r})
			return nil
		})
	}
	if len(specs) == 0 {
		return fmt.Errorf("export %s: no tensors of kind %s", path, e.Kind)
	}
	w, err := safetensors.CreateFolderIn(e.FS, dir, e.PartSize, specs, e.Metadata)
	if err != nil {
		return fmt.Errorf("export %s: %w", path, err)
	}
	err = parallel.For(ctx, len(runs), e.Workers, func(_ context.Context, i int) error { return e.run(src, w, runs[i]) })
	if err != nil {
		return fmt.Errorf("export %s: %w", path, errors.Join(err, w.Abort()))
	}
	return w.Close()
}

type exportRun struct {
	t  Tensor
	as string
	r  shard.Range
}

func (e Export) run(src Source, w *safetensors.Writer, x exportRun) error {
	buf := make([]float32, x.r.Len())
	if err := src.ReadF32(x.t.Name, x.t.Kind, x.r, buf, 1); err != nil {
		return err
	}
	if err := w.WriteF32(x.as, x.r.Lo, e.Change(x.t, x.r, buf)); err != nil {
		return err
	}
	e.Progress(int64(len(buf) * e.DType.Size()))
	return nil
}

// Import configures the conversion of a source to a checkpoint.
type Import struct {
	Step  int64
	State []byte // state.json of the checkpoint
	Files []Attachment
	// Name returns the name of a tensor in the checkpoint, or false to omit it. By default names
	// are unchanged.
	Name     func(string) (string, bool)
	Options  Options
	Progress func(add int64) // may be nil
}

// Import creates a checkpoint in the folder root from the tensors of a source, widened to
// float32. It returns the checkpoint's folder. After any error, including the end of ctx, there
// is no checkpoint.
func (im Import) Import(ctx context.Context, src Source, root string) (string, error) {
	if im.Name == nil {
		im.Name = func(s string) (string, bool) { return s, true }
	}
	s, err := Begin(root, im.Step, im.Options)
	if err != nil {
		return "", err
	}
	defer s.Abort()
	w := s.Writer(0)
	if err := im.tensors(ctx, src, w); err != nil {
		return "", fmt.Errorf("import: %w", errors.Join(err, w.Abort()))
	}
	part, err := w.Finish()
	if err != nil {
		return "", fmt.Errorf("import: %w", err)
	}
	return s.Commit(Commit{Parts: []PartFile{part}, State: im.State})
}

func (im Import) tensors(ctx context.Context, src Source, w *Writer) error {
	for _, a := range im.Files {
		if err := w.Attach(a); err != nil {
			return err
		}
	}
	p := newPump(ctx, w, im.Progress)
	for _, x := range src.All() {
		name, ok := im.Name(x.Name)
		if !ok {
			continue
		}
		t := Tensor{Name: name, Kind: x.Kind, DType: F32, Shape: x.Shape}
		err := p.run(t, shard.Range{Hi: t.Numel()}, func(r shard.Range, f []float32, b []byte) error {
			err := src.ReadF32(x.Name, x.Kind, r, f, 1)
			if _, same := safetensors.Bytes(f); err == nil && !same {
				safetensors.Encode(b, f, F32) // in place
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pump reads chunks into a few buffers and puts them.
type pump struct {
	ctx      context.Context // of the call that created the pump
	w        *Writer
	progress func(int64)
	free     chan []float32
}

func newPump(ctx context.Context, w *Writer, progress func(int64)) *pump {
	if progress == nil {
		progress = func(int64) {}
	}
	p := &pump{ctx, w, progress, make(chan []float32, w.opt.Workers+1)}
	for range cap(p.free) {
		p.free <- nil // allocated when first used
	}
	return p
}

// run puts the elements r of a tensor, chunk by chunk. read reads the bytes of a chunk to b, whose
// memory begins with that of f, one float32 for each element.
func (p *pump) run(t Tensor, r shard.Range, read func(r shard.Range, f []float32, b []byte) error) error {
	if t.Numel() == 0 { // there are no chunks, but the tensor must be recorded
		return p.w.Put(t, r, nil, nil)
	}
	return chunks(t, r, func(r shard.Range) error {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		buf := <-p.free
		if buf == nil {
			buf = make([]float32, readBytes/4)
		}
		b, _ := safetensors.Bytes(buf)
		b = b[:r.Len()*t.DType.Size()]
		if err := read(r, buf[:min(r.Len(), len(buf))], b); err != nil {
			return err
		}
		return p.w.Put(t, r, b, func() {
			p.progress(int64(len(b)))
			p.free <- buf
		})
	})
}
