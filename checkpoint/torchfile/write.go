package torchfile

import (
	"archive/zip"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"zeroth/checkpoint/safetensors"
)

// Spec describes a tensor to write.
type Spec = safetensors.Spec

// Pickler writes a pickle of protocol 2. Its methods push values and cannot fail.
type Pickler struct{ b []byte }

// NewPickler begins a pickle.
func NewPickler() *Pickler { return &Pickler{[]byte{0x80, 2}} }

// Bytes ends the pickle and returns it.
func (p *Pickler) Bytes() []byte { return append(p.b, '.') }

// Op appends instructions without arguments.
func (p *Pickler) Op(ops string) { p.b = append(p.b, ops...) }

// Global pushes a class or a function.
func (p *Pickler) Global(module, name string) { p.b = append(p.b, "c"+module+"\n"+name+"\n"...) }

// Text pushes a string.
func (p *Pickler) Text(s string) {
	p.b = append(binary.LittleEndian.AppendUint32(append(p.b, 'X'), uint32(len(s))), s...)
}

// Int pushes a number.
func (p *Pickler) Int(n int64) {
	if n == int64(int32(n)) {
		p.b = binary.LittleEndian.AppendUint32(append(p.b, 'J'), uint32(n))
		return
	}
	p.b = binary.LittleEndian.AppendUint64(append(p.b, 0x8a, 8), uint64(n))
}

// Ints pushes a tuple of numbers.
func (p *Pickler) Ints(ns []int) {
	p.Op("(")
	for _, n := range ns {
		p.Int(int64(n))
	}
	p.Op("t")
}

// storageClass returns the name of a type's storage, or "" if the type has none.
func storageClass(t safetensors.DType) string {
	for name, dtype := range storages {
		if dtype == t && name != "UntypedStorage" {
			return name
		}
	}
	return ""
}

// tensor pushes a tensor in C order, with the storage of the given key.
func (p *Pickler) tensor(s Spec, key string) {
	n, _ := product(s.Shape)
	p.Global("torch._utils", "_rebuild_tensor_v2")
	p.Op("((")
	p.Text("storage")
	p.Global("torch", storageClass(s.DType))
	p.Text(key)
	p.Text("cpu")
	p.Int(int64(n))
	p.Op("tQ")
	p.Int(0)
	p.Ints(s.Shape)
	p.Ints(Strides(s.Shape))
	p.Op("\x89") // requires no gradient
	p.Global("collections", "OrderedDict")
	p.Op(")RtR")
}

// Write writes a torch.save file: a dictionary of tensors, or one tensor if its name is empty. data
// must write each tensor's bytes in C order.
func Write(w io.Writer, stem string, specs []Spec, data func(s Spec, write func([]byte) error) error) error {
	p := NewPickler()
	single := len(specs) == 1 && specs[0].Name == ""
	if !single {
		p.Op("}(")
	}
	for i, s := range specs {
		if _, ok := product(s.Shape); !ok || storageClass(s.DType) == "" {
			return fmt.Errorf("%s: torch.save has no form for %s%v", s.Name, s.DType, s.Shape)
		}
		if !single {
			p.Text(s.Name)
		}
		p.tensor(s, strconv.Itoa(i))
	}
	if !single {
		p.Op("u")
	}
	a := &archive{out: &Counter{W: w}, stem: stem}
	a.zip = zip.NewWriter(a.out)
	for _, e := range []struct{ name, text string }{{"data.pkl", string(p.Bytes())}, {".format_version", "1"}, {".storage_alignment", "64"}, {"byteorder", "little"}} {
		if err := a.entry(e.name, func(w io.Writer) error { _, err := io.WriteString(w, e.text); return err }); err != nil {
			return err
		}
	}
	for i, s := range specs {
		n, _ := product(s.Shape)
		left := int64(n) * int64(s.DType.Size())
		err := a.entry("data/"+strconv.Itoa(i), func(w io.Writer) error {
			if left == 0 {
				return nil
			}
			return data(s, func(b []byte) error {
				left -= int64(len(b))
				_, err := w.Write(b)
				return err
			})
		})
		if err != nil {
			return err
		}
		if left != 0 {
			panic(fmt.Sprintf("torchfile: %d bytes of %s are missing", left, s.Name))
		}
	}
	if err := a.entry("version", func(w io.Writer) error { _, err := io.WriteString(w, "3\n"); return err }); err != nil {
		return err
	}
	return a.zip.Close()
}

// archive writes entries like PyTorch: uncompressed, at multiples of 64 bytes.
type archive struct {
	out  *Counter
	zip  *zip.Writer
	stem string
	tail int64 // bytes that the zip writer appends to the last entry when the next begins
}

func (a *archive) entry(name string, write func(io.Writer) error) error {
	if err := a.zip.Flush(); err != nil {
		return err
	}
	h := &zip.FileHeader{Name: a.stem + "/" + name, Method: zip.Store}
	const fixed, field = 30, 4 // bytes of a local header, and of an extra field's head
	pad := -(a.out.N + a.tail + fixed + int64(len(h.Name)) + field) & 63
	h.Extra = append(binary.LittleEndian.AppendUint16([]byte("FB"), uint16(pad)), strings.Repeat("Z", int(pad))...)
	w, err := a.zip.CreateHeader(h)
	if err != nil {
		return err
	}
	body := &Counter{W: w}
	err = write(body)
	if a.tail = 16; body.N > math.MaxUint32 {
		a.tail = 24
	}
	return err
}

// Counter counts the bytes written.
type Counter struct {
	W io.Writer
	N int64
}

func (c *Counter) Write(b []byte) (int, error) {
	n, err := c.W.Write(b)
	c.N += int64(n)
	return n, err
}
