package foreign

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/torchfile"
	"zeroth/internal/input"
	"zeroth/shard"
)

// Writer writes the tensors of a source in PyTorch's formats.
type Writer struct {
	Source   checkpoint.Source
	Name     func(string) (string, bool) // returns a parameter's name in the file, or false to omit it
	Step     int64                       // updates so far; 0 writes no step
	DType    checkpoint.DType            // of the parameters; moments are F32
	Progress func(add int64)
}

// chunk is the number of elements read at once.
const chunk = 1 << 20

// written is a tensor and its name in the file.
type written struct {
	checkpoint.Tensor
	as    string
	dtype checkpoint.DType
}

// list returns the tensors to write: the parameters, and the optimizer's state if states is set.
func (w *Writer) list(states bool) (list []written) {
	for _, t := range w.Source.All() {
		as, ok := w.Name(t.Name)
		switch {
		case !ok || t.Kind == checkpoint.Attached:
		case t.Kind == checkpoint.Master:
			list = append(list, written{t, as, w.DType})
		case states:
			list = append(list, written{t, as, checkpoint.F32})
		}
	}
	return list
}

// data writes the elements of a tensor.
func (w *Writer) data(ctx context.Context, t written, write func([]byte) error) error {
	x := make([]float32, min(chunk, t.Numel()))
	b := make([]byte, len(x)*t.dtype.Size())
	for lo := 0; lo < t.Numel(); lo += chunk {
		r := shard.Range{Lo: lo, Hi: min(t.Numel(), lo+chunk)}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.Source.ReadF32(t.Tensor.Name, t.Kind, r, x[:r.Len()], 1); err != nil {
			return err
		}
		out := b[:r.Len()*t.dtype.Size()]
		if err := safetensors.Narrow(out, x[:r.Len()], t.dtype, t.as, lo); err != nil {
			return err
		}
		if err := write(out); err != nil {
			return err
		}
		w.Progress(int64(len(out)))
	}
	return nil
}

// Torch writes a file of torch.save: a dictionary of the parameters.
func (w *Writer) Torch(ctx context.Context, path string) error {
	var specs []torchfile.Spec
	byName := map[string]written{}
	for _, t := range w.list(false) {
		specs = append(specs, torchfile.Spec{Name: t.as, DType: t.dtype, Shape: t.Shape})
		byName[t.as] = t
	}
	return input.Write(path, func(out io.Writer) error {
		return torchfile.Write(out, "pytorch_model", specs, func(s torchfile.Spec, write func([]byte) error) error {
			return w.data(ctx, byName[s.Name], write)
		})
	})
}

// entry locates a tensor in a DCP file.
type entry struct {
	fqn   string
	path  []string // in the saved dictionary
	spec  torchfile.Spec
	at, n int64
}

const dcpData = "__0_0.distcp"

// DCP writes a folder of torch.distributed.checkpoint, {"model": …, "optim": {"state": …}}, as a
// world of one rank. It writes .metadata last.
func (w *Writer) DCP(ctx context.Context, folder string) error {
	var list []entry
	err := input.Write(filepath.Join(folder, dcpData), func(out io.Writer) error {
		b := bufio.NewWriterSize(out, 1<<20)
		at := &torchfile.Counter{W: b}
		for _, t := range w.list(true) {
			p := entry{fqn: "model." + t.as, path: []string{"model", t.as}, at: at.N}
			if t.Kind != checkpoint.Master {
				p.fqn, p.path = "optim.state."+t.as+"."+t.Kind, []string{"optim", "state", t.as, t.Kind}
			}
			p.spec = torchfile.Spec{DType: t.dtype, Shape: t.Shape}
			err := torchfile.Write(at, "archive", []torchfile.Spec{p.spec}, func(_ torchfile.Spec, write func([]byte) error) error { return w.data(ctx, t, write) })
			if err != nil {
				return err
			}
			p.n = at.N - p.at
			list = append(list, p)
			if t.Kind != "exp_avg" || w.Step == 0 {
				continue
			}
			if p, err = writeStep(at, t.as, w.Step); err != nil {
				return err
			}
			list = append(list, p)
		}
		return b.Flush()
	})
	if err == nil {
		err = input.WriteBytes(filepath.Join(folder, ".metadata"), metadata(list))
	}
	if err != nil {
		_ = os.Remove(filepath.Join(folder, dcpData)) // err is the one to report
		return fmt.Errorf("%s: %w", folder, err)
	}
	return nil
}

// writeStep writes the number of a parameter's updates as a float32, as torch's AdamW does.
func writeStep(at *torchfile.Counter, name string, step int64) (entry, error) {
	p := entry{fqn: "optim.state." + name + ".step", path: []string{"optim", "state", name, "step"}, spec: torchfile.Spec{DType: checkpoint.F32}, at: at.N}
	var b [4]byte
	safetensors.Encode(b[:], []float32{float32(step)}, checkpoint.F32)
	err := torchfile.Write(at, "archive", []torchfile.Spec{p.spec}, func(_ torchfile.Spec, write func([]byte) error) error { return write(b[:]) })
	p.n = at.N - p.at
	return p, err
}

// metadata returns the pickle of torch.distributed.checkpoint.metadata.Metadata.
func metadata(list []entry) []byte {
	const module = "torch.distributed.checkpoint.metadata"
	p := torchfile.NewPickler()
	object := func(module, class string, fields func()) {
		p.Global(module, class)
		p.Op(")\x81}(")
		fields()
		p.Op("ub")
	}
	size := func(shape []int) {
		p.Global("torch", "Size")
		p.Ints(shape)
		p.Op("\x85R")
	}
	object(module, "Metadata", func() {
		p.Text("state_dict_metadata")
		p.Op("}(")
		for _, x := range list {
			p.Text(x.fqn)
			object(module, "TensorStorageMetadata", func() {
				p.Text("properties")
				p.Global(module, "TensorProperties")
				p.Op(")\x81(")
				p.Global("torch", torchfile.TypeName(x.spec.DType))
				p.Global("torch.serialization", "_get_layout")
				p.Text("torch.strided")
				p.Op("\x85R\x89")
				p.Global(module, "_MEM_FORMAT_ENCODING")
				p.Int(0) // contiguous
				p.Op("\x85R\x89tb")
				p.Text("size")
				size(x.spec.Shape)
				p.Text("chunks")
				p.Op("](")
				object(module, "ChunkStorageMetadata", func() {
					p.Text("offsets")
					size(make([]int, len(x.spec.Shape)))
					p.Text("sizes")
					size(x.spec.Shape)
				})
				p.Op("e")
			})
		}
		p.Op("u")
		p.Text("planner_data")
		p.Op("}(")
		for _, x := range list {
			p.Text(x.fqn)
			p.Op("(")
			for _, key := range x.path {
				p.Text(key)
			}
			p.Op("t")
		}
		p.Op("u")
		p.Text("storage_data")
		p.Op("}(")
		for _, x := range list {
			object(module, "MetadataIndex", func() {
				p.Text("fqn")
				p.Text(x.fqn)
				p.Text("offset")
				size(make([]int, len(x.spec.Shape)))
				p.Text("index")
				p.Int(0)
			})
			object("torch.distributed.checkpoint.filesystem", "_StorageInfo", func() {
				p.Text("relative_path")
				p.Text(dcpData)
				p.Text("offset")
				p.Int(x.at)
				p.Text("length")
				p.Int(x.n)
			})
		}
		p.Op("u")
	})
	return p.Bytes()
}
