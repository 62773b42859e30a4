package foreign

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zeroth/checkpoint/torchfile"
	"zeroth/tests/nightly"
)

// hostile writes pickles that use the same values again and again.
type hostile struct {
	*torchfile.Pickler
	*rand.Rand
	memo, storages int
	left           int // values that the pickle may still have
}

const storageBytes = 1 << 16

// Int pushes a number.
func (h *hostile) Int(n int64) { h.Pickler.Int(n) }

// object pushes an instance of a class with the state that fields pushes.
func (h *hostile) object(module, class string, fields func()) {
	h.Global(module, class)
	h.Op(")\x81}(")
	fields()
	h.Op("ub")
}

// shared returns a function that pushes what value pushes, mostly by a reference to the first one.
func (h *hostile) shared(value func()) func() {
	if h.IntN(8) > 0 {
		return h.memoized(value)
	}
	return func() {
		if h.full() {
			value = func() { h.Op("N") }
		}
		value()
	}
}

// full reports whether the pickle is large enough.
func (h *hostile) full() bool { return len(h.Bytes()) > 3<<20 }

// memoized returns a function that pushes what value pushes, from the second time on by a reference.
func (h *hostile) memoized(value func()) func() {
	at := -1
	op := func(op byte) { h.Op(string(binary.LittleEndian.AppendUint32([]byte{op}, uint32(at)))) }
	return func() {
		if at >= 0 {
			op('j')
			return
		}
		value()
		at = h.memo
		h.memo++
		op('r')
	}
}

// many returns a drawn number of values.
func (h *hostile) many() int {
	n := min(h.left, 1<<h.IntN(17))
	h.left -= n
	return n
}

// name returns a function that pushes a name, mostly short, sometimes huge.
func (h *hostile) name() func() {
	s := strings.Repeat("x", 1+[]int{8, 8, 200, 4000, 1<<20 - 1}[h.IntN(5)]) + fmt.Sprint(h.IntN(1000))
	s = s[:min(len(s), 1<<20)]
	return h.shared(func() { h.Text(s) })
}

// ints returns a function that pushes a shape, strides or offsets.
func (h *hostile) ints() func() {
	ns := make([]int, []int{0, 1, 1, 2, 2, 3, 20, 64}[h.IntN(8)])
	odd := h.IntN(20) == 0
	for i := range ns {
		if ns[i] = []int{0, 1, 1, 1, 2, 4, 64}[h.IntN(7)]; odd {
			ns[i] = []int{1 << 14, 1 << 40, -1, 1<<63 - 1}[h.IntN(4)]
		}
	}
	return h.shared(func() {
		switch h.IntN(3) {
		case 0:
			h.Ints(ns)
		case 1:
			h.Op("](")
			for _, n := range ns {
				h.Int(int64(n))
			}
			h.Op("e")
		default:
			h.Global("torch", "Size")
			h.Ints(ns)
			h.Op("\x85R")
		}
	})
}

// tensor returns a function that pushes a view of one of a few storages.
func (h *hostile) tensor() func() {
	key, shape, stride := h.IntN(h.storages), h.ints(), h.ints()
	if h.IntN(100) > 0 { // one that fits
		a := 1 << h.IntN(7)
		shape = func() { h.Ints([]int{storageBytes / 4 / 64 / a, a}) }
		stride = func() { h.Ints([][]int{{a, 1}, {1, 128}, {63, 1}, {a, 1}}[h.IntN(4)]) }
	}
	return h.shared(func() {
		h.Global("torch._utils", "_rebuild_tensor_v2")
		h.Op("((")
		h.Text("storage")
		h.Global("torch", "FloatStorage")
		h.Text(fmt.Sprint(key))
		h.Text("cpu")
		h.Int(storageBytes / 4)
		h.Op("tQ")
		h.Int(int64(h.IntN(2) * h.IntN(64)))
		shape()
		stride()
		h.Op("\x89")
		h.Global("collections", "OrderedDict")
		h.Op(")RtR")
	})
}

// dict returns a function that pushes a dictionary of names.
func (h *hostile) dict(value func() func()) func() {
	return h.shared(func() {
		n, v := h.many(), value()
		prefix := strings.Repeat("n", []int{1, 30, 4000}[h.IntN(3)])
		h.Op("}(")
		for i := range min(n, 1<<21/len(prefix)) {
			h.Text(prefix + fmt.Sprint(i))
			if h.IntN(64) == 0 && !h.full() {
				v = value()
			}
			v()
		}
		h.Op("u")
	})
}

// list returns a function that pushes a list.
func (h *hostile) list(value func() func()) func() {
	self := func() { h.Op(string(binary.LittleEndian.AppendUint32([]byte{'j'}, uint32(h.memo-1)))) }
	return h.shared(func() {
		h.Op("]")
		v := value()
		if h.IntN(50) == 0 { // it contains itself
			h.memoized(func() {})()
			v = self
		}
		h.Op("(")
		for range h.many() {
			if h.IntN(64) == 0 && !h.full() {
				v = value()
			}
			v()
		}
		h.Op("e")
	})
}

// doubled returns a function that pushes a tuple of tuples of tuples…, each twice in the next.
func (h *hostile) doubled() func() {
	return h.shared(func() {
		h.Op(")")
		for range h.IntN(40) {
			h.Op("q\x00h\x00\x86")
		}
	})
}

// any returns a function that pushes something that is out of place more often than not.
func (h *hostile) any() func() {
	if h.left < 10 {
		return func() { h.Op("N") }
	}
	kinds := []func() func(){h.name, h.ints, h.tensor, h.doubled, func() func() { return h.dict(h.any) }, func() func() { return h.list(h.any) },
		func() func() { return func() { h.Int(int64(h.IntN(5))) } }}
	return kinds[h.IntN(len(kinds))]()
}

// or returns what f returns, or now and then something else.
func (h *hostile) or(f func() func()) func() {
	if h.IntN(40) == 0 {
		return h.any()
	}
	return f()
}

// fields pushes the entries of a dictionary: keys and values.
func (h *hostile) fields(kv ...any) {
	for i := 0; i < len(kv); i += 2 {
		h.Text(kv[i].(string))
		switch v := kv[i+1].(type) {
		case func() func():
			h.or(v)()
		case func():
			v()
		case int:
			h.Int(int64(v))
		case string:
			h.Text(v)
		}
	}
}

// metadata pushes the metadata of a DCP folder whose parts are bytes [0, n) of a file.
func (h *hostile) metadata(n int) {
	const module = "torch.distributed.checkpoint.metadata"
	of := func(class string, kv ...any) func() func() {
		return func() func() {
			return h.shared(func() { h.object(module, class, func() { h.fields(kv...) }) })
		}
	}
	zero, one := func() { h.Ints([]int{0}) }, func() { h.Ints([]int{1}) }
	offsets := func() func() { return []func(){zero, zero, zero, h.ints()}[h.IntN(4)] }
	sizes := func() func() { return []func(){one, one, one, h.ints()}[h.IntN(4)] }
	chunk := of("ChunkStorageMetadata", "offsets", offsets, "sizes", sizes)
	properties := of("TensorProperties", "dtype", func() { h.Global("torch", "float32") })
	tensor := of("TensorStorageMetadata", "properties", properties, "size", sizes, "chunks", func() func() { return h.list(chunk) })
	fqn := func() func() { return []func(){h.name(), func() { h.Text("n" + fmt.Sprint(h.IntN(64))) }}[h.IntN(2)] }
	index, name := of("MetadataIndex", "fqn", fqn, "offset", offsets, "index", 0), h.name()
	info := func() func() {
		return h.shared(func() {
			h.object("torch.distributed.checkpoint.filesystem", "_StorageInfo", func() { h.fields("relative_path", dcpData, "offset", 0, "length", n) })
		})
	}
	h.object(module, "Metadata", func() {
		h.fields("state_dict_metadata", func() func() { return h.dict(tensor) },
			"planner_data", func() func() { return h.dict(func() func() { return h.list(func() func() { return name }) }) })
		h.Text("storage_data")
		h.Op("}(")
		k, v := index(), info()
		for range h.many() {
			if h.IntN(3) == 0 && !h.full() {
				k, v = index(), info()
			}
			k()
			v()
		}
		h.Op("u")
	})
}

// states pushes the states of DeepSpeed's optimizer, or of a model.
func (h *hostile) states(model bool, stage int) {
	strings, shapes := func() func() { return h.dict(h.name) }, func() func() { return h.dict(h.ints) }
	tensors := func() func() { return h.dict(h.tensor) }
	state := func() func() { return h.dict(func() func() { return h.or(tensors) }) }
	groups := func() func() {
		return h.list(func() func() {
			return h.shared(func() { h.Op("}("); h.fields("lr", 1, "params", func() func() { return h.list(h.any) }); h.Op("u") })
		})
	}
	optimizer := func() { h.Op("}("); h.fields("state", state, "param_groups", groups); h.Op("u") }
	h.Op("}(")
	if model {
		h.fields("module", tensors, "param_shapes", func() func() { return h.list(shapes) }, "buffer_names", func() func() { return h.list(h.name) },
			"shared_params", strings, "frozen_param_shapes", shapes, "frozen_param_fragments", tensors, "global_steps", 3, "optimizer", optimizer)
	} else {
		h.Text("optimizer_state_dict")
		h.Op("}(")
		h.fields("zero_stage", stage, "base_optimizer_state", optimizer, "optimizer_state_dict", optimizer,
			"single_partition_of_fp32_groups", func() func() { return h.list(h.tensor) }, "fp32_flat_groups", func() func() { return h.list(h.tensor) },
			"param_alignment_paddings", func() func() { return h.list(func() func() { return h.list(h.any) }) })
		h.Op("u")
	}
	h.Op("u")
}

// file returns a file of torch.save: a zip archive, or one in the old form.
func (h *hostile) file(old bool) []byte {
	var b bytes.Buffer
	data := make([]byte, storageBytes)
	if old {
		for _, ops := range []string{"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", "M\xe9\x03", "}"} {
			b.WriteString("\x80\x02" + ops + ".")
		}
		b.Write(h.Bytes())
		keys := torchfile.NewPickler()
		keys.Op("](")
		for i := range h.storages {
			keys.Text(fmt.Sprint(i))
		}
		keys.Op("e")
		b.Write(keys.Bytes())
		for range h.storages {
			b.Write(binary.LittleEndian.AppendUint64(nil, storageBytes/4))
			b.Write(data)
		}
		return b.Bytes()
	}
	z := zip.NewWriter(&b)
	put := func(name string, data []byte) {
		if w, err := z.CreateHeader(&zip.FileHeader{Name: "archive/" + name, Method: zip.Store}); err == nil {
			_, _ = w.Write(data) // to memory
		}
	}
	put("data.pkl", h.Bytes())
	for i := range h.storages {
		put(fmt.Sprint("data/", i), data)
	}
	_ = z.Close()
	return b.Bytes()
}

func newHostile(r *rand.Rand) *hostile {
	return &hostile{torchfile.NewPickler(), r, 1, 1 + r.IntN(4), 1 << (4 + r.IntN(14))}
}

// A name of a megabyte that thousands of entries share is counted for each of them, and so is what
// else they share.
func TestSharedNames(t *testing.T) {
	many := newHostile(rand.New(rand.NewPCG(1, 1)))
	long := many.memoized(func() { many.Text(strings.Repeat("x", 1<<20)) })
	many.object("torch.distributed.checkpoint.metadata", "Metadata", func() {
		many.Text("state_dict_metadata")
		many.Op("}")
		many.Text("storage_data")
		many.Op("}(")
		for i := range 9000 {
			many.object("torch.distributed.checkpoint.metadata", "MetadataIndex", func() { many.fields("fqn", long, "offset", func() { many.Ints([]int{i}) }) })
			many.object("torch.distributed.checkpoint.filesystem", "_StorageInfo", func() { many.fields("length", 1) })
		}
		many.Op("u")
	})
	folder := t.TempDir()
	write(t, filepath.Join(folder, ".metadata"), many.Bytes())
	refusedForMemory(t, folder)

	group := newHostile(rand.New(rand.NewPCG(1, 1)))
	shapes := group.memoized(func() {
		group.Op("}(")
		for i := range 500 {
			group.Text(fmt.Sprint(i, strings.Repeat("x", 4000)))
			group.Op(")")
		}
		group.Op("u")
	})
	group.Op("}(")
	group.fields("module", func() { group.Op("}") })
	group.Text("param_shapes")
	group.Op("](")
	for range 9000 {
		shapes()
	}
	group.Op("eu")
	folder = t.TempDir()
	write(t, filepath.Join(folder, "mp_rank_00_model_states.pt"), group.file(false))
	refusedForMemory(t, folder)
}

func refusedForMemory(t *testing.T, folder string) {
	t.Helper()
	if err := readAll(t, folder); err == nil || !strings.Contains(err.Error(), "need more memory") {
		t.Errorf("%v", err)
	}
}

// Pickles whose values are used again and again, contain themselves or are of absurd sizes need no
// more memory than their bytes and 64 MiB, whatever reads them.
func TestSharedValues(t *testing.T) {
	nightly.Long(t)
	opened, slowest := 0, time.Duration(0)
	for i := range nightly.Of(30, 1000) {
		r := rand.New(rand.NewPCG(uint64(i), 42))
		folder := t.TempDir()
		switch i % 5 {
		case 0:
			h := newHostile(r)
			var blob bytes.Buffer
			err := torchfile.Write(&blob, "archive", []torchfile.Spec{{DType: "F32", Shape: []int{1}}}, func(_ torchfile.Spec, w func([]byte) error) error { return w(make([]byte, 4)) })
			if err != nil {
				t.Fatal(err)
			}
			h.metadata(blob.Len())
			write(t, filepath.Join(folder, dcpData), bytes.Repeat(blob.Bytes(), 1+r.IntN(50)))
			write(t, filepath.Join(folder, ".metadata"), h.Bytes())
		case 1, 2:
			h, stage := newHostile(r), r.IntN(3)
			h.states(true, stage)
			write(t, filepath.Join(folder, "mp_rank_00_model_states.pt"), h.file(false))
			if i%5 == 1 {
				for rank := range 1 + r.IntN(3) {
					h := newHostile(r)
					h.states(false, stage)
					write(t, filepath.Join(folder, fmt.Sprintf("zero_pp_rank_%d_mp_rank_00_optim_states.pt", rank)), h.file(false))
				}
			}
		default:
			h := newHostile(r)
			h.storages = 1 // all are used
			h.dict(h.tensor)()
			write(t, filepath.Join(folder, "pytorch_model.bin"), h.file(i%5 == 3))
		}
		begin := time.Now()
		err := readAll(t, folder)
		if took := time.Since(begin); took > slowest {
			slowest = took
			t.Logf("%d: %v: %.200v", i, took, err)
		}
		if err == nil {
			opened++
		} else if len(err.Error()) > 10000 {
			t.Errorf("%d: a message of %d bytes", i, len(err.Error()))
		}
		if t.Failed() {
			t.Fatalf("%d: %.300v", i, err)
		}
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d were read, the others refused; the slowest took %v", opened, slowest)
}
