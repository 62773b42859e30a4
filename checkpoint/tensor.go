package checkpoint

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"zeroth/checkpoint/safetensors"
	"zeroth/shard"
)

// DType is an element type, by its name in the safetensors format.
type DType = safetensors.DType

const (
	F32  = safetensors.F32
	BF16 = safetensors.BF16
	F16  = safetensors.F16
)

// Master is the kind of the parameters themselves; optimizer states have the
// names their rule gives them ("m", "v").
const Master = "master"

// Previous is the kind of tensor that holds parameters from before the last update.
const Previous = "previous"

// features are what a checkpoint may use that not every program knows, by the kind of tensor
// that shows it.
var features = map[string]string{Previous: "parameters from before the last update"}

// partsUsed is the feature of a checkpoint of format 2.
const partsUsed = "parts of tensors"

// Tensor is a logical tensor: what is saved, without how it is cut.
type Tensor struct {
	Name  string `json:"name"` // of the parameter
	Kind  string `json:"kind"`
	DType DType  `json:"dtype"`
	Shape []int  `json:"shape"`
}

// Numel is the number of elements.
func (t Tensor) Numel() int {
	n, _ := safetensors.Numel(t.Shape)
	return n
}

// Bytes is the size of all elements.
func (t Tensor) Bytes() int64 { return int64(t.Numel()) * int64(t.DType.Size()) }

func (t Tensor) key() key { return key{t.Name, t.Kind} }

// String is the tensor for people; a name that is not plain text is quoted.
func (t Tensor) String() string { return fmt.Sprintf("%s (%s)", Plain(t.Name), t.Kind) }

// key is what a tensor is called.
type key struct{ name, kind string }

// Limits of the format on names, in bytes, so that an entry always fits in the
// header of a data file.
const (
	maxName = 1024
	maxKind = 64
)

// check is what of a tensor can be wrong.
func (t Tensor) check() error {
	if t.Name == "" || len(t.Name) > maxName || !utf8.ValidString(t.Name) {
		return fmt.Errorf("tensor name %.40q: must be 1 to %d bytes of UTF-8", t.Name, maxName)
	}
	if t.Kind == "" || len(t.Kind) > maxKind || strings.Trim(t.Kind, kindLetters) != "" {
		return fmt.Errorf("%s: kind %.40q: must be 1 to %d of %s", Plain(t.Name), t.Kind, maxKind, kindLetters)
	}
	size := t.DType.Size()
	if size == 0 {
		return fmt.Errorf("%v: dtype %.20q is not known or not whole bytes", t, t.DType)
	}
	if len(t.Shape) > maxDims {
		return fmt.Errorf("%v: a shape of %d dimensions, at most %d expected", t, len(t.Shape), maxDims)
	}
	if n, ok := safetensors.Numel(t.Shape); !ok || n > math.MaxInt/size {
		return fmt.Errorf("%v: shape %v is negative or overflows", t, t.Shape)
	}
	return nil
}

const kindLetters = "abcdefghijklmnopqrstuvwxyz0123456789_-"

// same is whether two tensors of one key agree.
func (t Tensor) same(o Tensor) bool { return t.DType == o.DType && slices.Equal(t.Shape, o.Shape) }

// byKey sorts tensors by name, then kind: the order of a manifest.
func byKey(ts []Tensor) {
	sort.Slice(ts, func(i, j int) bool {
		if ts[i].Name != ts[j].Name {
			return ts[i].Name < ts[j].Name
		}
		return ts[i].Kind < ts[j].Kind
	})
}

// covered checks that ranges sorted by Lo cover [0, n) exactly once.
func covered(n int, sorted []shard.Range) error {
	at := 0
	for _, r := range sorted {
		if r.Lo > at {
			return fmt.Errorf("elements [%d, %d) of %d are missing", at, r.Lo, n)
		}
		if r.Lo < at {
			return fmt.Errorf("elements [%d, %d) of %d are there twice", r.Lo, min(at, r.Hi), n)
		}
		at = r.Hi
	}
	if at != n {
		return fmt.Errorf("elements [%d, %d) of %d are missing", min(at, n), max(at, n), n)
	}
	return nil
}
