package torchfile

import (
	"fmt"
	"io"
	"slices"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/vfs"
)

// Storage is memory in a file, used by one or more tensors.
type Storage struct {
	DType   safetensors.DType
	Key     string // its name in the file
	Bytes   int64
	file    string // for messages
	from    io.ReaderAt
	at      int64 // offset in from
	untyped bool  // the tensors determine the type
}

// Tensor is a view of a storage.
type Tensor struct {
	Storage *Storage
	Offset  int64 // of the first element, in elements
	Shape   []int
	Stride  []int // in elements
	DType   safetensors.DType
}

// Raw returns a tensor with elements in C order from byte at of a file.
func Raw(file string, from io.ReaderAt, at int64, t safetensors.DType, shape []int) (*Tensor, error) {
	n, ok := product(shape)
	if !ok {
		return nil, fmt.Errorf("shape %v", shape)
	}
	s := &Storage{DType: t, Key: "data", Bytes: int64(n) * int64(t.Size()), file: file, from: from, at: at}
	return &Tensor{Storage: s, Shape: shape, Stride: Strides(shape), DType: t}, nil
}

// Strides returns the strides of a tensor in C order, in elements.
func Strides(shape []int) []int {
	s := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		s[i] = n
		n *= max(1, shape[i])
	}
	return s
}

// Numel returns the number of elements.
func (t *Tensor) Numel() int {
	n, _ := product(t.Shape)
	return n
}

// check compares the view with its storage.
func (t *Tensor) check() error {
	n, ok := product(t.Shape)
	size := int64(t.DType.Size())
	if !ok || len(t.Shape) != len(t.Stride) || t.Offset < 0 || size == 0 {
		return fmt.Errorf("a tensor of shape %v with strides %v at %d", t.Shape, t.Stride, t.Offset)
	}
	if n == 0 {
		return nil
	}
	most := t.Storage.Bytes / size // elements
	last := t.Offset
	for i, d := range t.Shape {
		step := int64(t.Stride[i])
		if step < 0 || d > 1 && step > most/int64(d-1) { // the next line cannot overflow
			return fmt.Errorf("a tensor of shape %v with strides %v", t.Shape, t.Stride)
		}
		if last += int64(d-1) * step; d > 1 && int64(d-1) > most || last >= most {
			return fmt.Errorf("a tensor of shape %v with strides %v from element %d, but storage %s has only %d elements", t.Shape, t.Stride, t.Offset, t.Storage.Key, most)
		}
	}
	if int64(n) > most {
		return fmt.Errorf("a tensor of shape %v with strides %v repeats the %d elements of its storage; save its contiguous() form", t.Shape, t.Stride, most)
	}
	return nil
}

// dim is one dimension of a copy: n elements, src and dst apart, in elements.
type dim struct{ n, src, dst int }

// ReadBox reads a box of size elements along each dimension, beginning at start, to dst. dstStride
// gives dst's strides, in elements.
func (t *Tensor) ReadBox(start, size []int, dst []byte, dstStride []int) error {
	at, numel := int(t.Offset), 1
	var dims []dim
	for i, n := range size {
		if start[i] < 0 || n < 0 || start[i]+n > t.Shape[i] {
			panic(fmt.Sprintf("torchfile: elements %v, %v of a tensor of shape %v", start, size, t.Shape))
		}
		at += start[i] * t.Stride[i]
		numel *= n
		if n > 1 {
			dims = append(dims, dim{n, t.Stride[i], dstStride[i]})
		}
	}
	if numel == 0 {
		return nil
	}
	slices.SortStableFunc(dims, func(a, b dim) int { return b.src - a.src })
	merged := dims[:0]
	for _, d := range dims {
		if k := len(merged) - 1; k >= 0 && merged[k].src == d.n*d.src && merged[k].dst == d.n*d.dst {
			merged[k] = dim{merged[k].n * d.n, d.src, d.dst}
			continue
		}
		merged = append(merged, d)
	}
	return t.copy(merged, at, 0, dst)
}

// copy copies dimensions, outermost first, from element src of the storage to element to of dst.
func (t *Tensor) copy(dims []dim, src, to int, dst []byte) error {
	size := t.DType.Size()
	switch {
	case len(dims) == 0:
		return t.read(src, dst[to*size:(to+1)*size])
	case len(dims) == 1 && dims[0].src == 1 && dims[0].dst == 1:
		return t.read(src, dst[to*size:(to+dims[0].n)*size])
	case len(dims) == 1:
		return t.scatter(dims[0], src, to, dst)
	}
	d := dims[0]
	for i := range d.n {
		if err := t.copy(dims[1:], src+i*d.src, to+i*d.dst, dst); err != nil {
			return err
		}
	}
	return nil
}

// scatter copies elements that are not contiguous in the file or in dst, through a buffer.
func (t *Tensor) scatter(d dim, src, to int, dst []byte) error {
	const most = 1 << 18 // bytes
	size := t.DType.Size()
	per := max(1, most/size/max(1, d.src)) // elements of one read
	if d.src*size > 4096 {                 // reading what lies between them costs more than another read
		per = 1
	}
	buf := make([]byte, ((min(per, d.n)-1)*d.src+1)*size)
	for i := 0; i < d.n; i += per {
		n := min(per, d.n-i)
		b := buf[:((n-1)*d.src+1)*size]
		if err := t.read(src+i*d.src, b); err != nil {
			return err
		}
		for k := range n {
			copy(dst[(to+(i+k)*d.dst)*size:][:size], b[k*d.src*size:])
		}
	}
	return nil
}

// read reads contiguous elements of the storage.
func (t *Tensor) read(src int, dst []byte) error {
	at := t.Storage.at + int64(src)*int64(t.DType.Size())
	if err := vfs.ReadFull(t.Storage.from, dst, at); err != nil {
		return fmt.Errorf("%s: storage %s, offset %d: %w", t.Storage.file, t.Storage.Key, at, err)
	}
	return nil
}

// Bytes returns all elements of a tensor of at most limit bytes, in C order.
func (t *Tensor) Bytes(limit int) ([]byte, error) {
	n := t.Numel() * t.DType.Size()
	if n > limit {
		return nil, fmt.Errorf("%s: a tensor of %d bytes; at most %d expected", t.Storage.file, n, limit)
	}
	b := make([]byte, n)
	return b, t.ReadBox(make([]int, len(t.Shape)), t.Shape, b, Strides(t.Shape))
}
