package checkpoint

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"zeroth/checkpoint/safetensors"
	"zeroth/shard"
)

// DType is an element type, named as in the safetensors format.
type DType = safetensors.DType

const (
	F32  = safetensors.F32
	BF16 = safetensors.BF16
	F16  = safetensors.F16
	U32  = safetensors.U32
)

// Master is the kind of the parameters themselves; optimizer states have the names given by
// their rule ("m", "v").
const Master = "master"

// Previous is the kind of tensors with parameters from before the last update.
const Previous = "previous"

// features maps kinds of tensors to the feature that a reader must support.
var features = map[string]feature{
	Previous: "parameters from before the last update",
	"nf4":    "weights in codes of 4 bits",
	"int8":   "weights in codes of 8 bits",
}

// feature is what a reader of a manifest must support.
type feature string

// Check implements jsonread.Checked.
func (f feature) Check() error {
	if f != partsUsed && f != baseUsed && !slices.Contains(slices.Collect(maps.Values(features)), f) {
		return fmt.Errorf("it uses %.80q, which this version does not support", f)
	}
	return nil
}

// partsUsed is the feature of checkpoints of format 2.
const partsUsed = "parts of tensors"

// baseUsed is the feature of checkpoints with a base folder.
const baseUsed = "tensors in a base folder"

// Tensor is a logical tensor, independent of how it is divided.
type Tensor struct {
	Name  string `json:"name"` // name of the parameter
	Kind  string `json:"kind"`
	DType DType  `json:"dtype"`
	Shape []int  `json:"shape"`
}

// Numel returns the number of elements.
func (t Tensor) Numel() int {
	n, _ := safetensors.Numel(t.Shape)
	return n
}

// Bytes returns the size of all elements.
func (t Tensor) Bytes() int64 { return int64(t.Numel()) * int64(t.DType.Size()) }

func (t Tensor) key() key { return key{t.Name, t.Kind} }

// String returns the tensor's name and kind for messages; an unprintable name is quoted.
func (t Tensor) String() string { return fmt.Sprintf("%s (%s)", Plain(t.Name), t.Kind) }

// key identifies a tensor.
type key struct{ name, kind string }

// Limits of the format on names, in bytes, such that an entry always fits in the header of a
// data file.
const (
	maxName = 1024
	maxKind = 64
)

// Check returns an error if a field is not valid. It implements jsonread.Checked.
func (t Tensor) Check() error {
	if t.Name == "" || len(t.Name) > maxName || !utf8.ValidString(t.Name) {
		return fmt.Errorf("tensor name %.40q: must be 1 to %d bytes of UTF-8", t.Name, maxName)
	}
	if t.Kind == "" || len(t.Kind) > maxKind || strings.Trim(t.Kind, kindLetters) != "" {
		return fmt.Errorf("%s: kind %.40q: must be 1 to %d of %s", Plain(t.Name), t.Kind, maxKind, kindLetters)
	}
	size := t.DType.Size()
	if size == 0 {
		return fmt.Errorf("%v: dtype %.20q is unknown or has no whole bytes", t, t.DType)
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

// same reports whether two tensors with the same key agree.
func (t Tensor) same(o Tensor) bool { return t.DType == o.DType && slices.Equal(t.Shape, o.Shape) }

// compareKeys orders tensors by name, then kind.
func compareKeys(a, b Tensor) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
}

// byKey sorts tensors by name, then kind, as in a manifest.
func byKey(ts []Tensor) {
	slices.SortFunc(ts, compareKeys)
}

// checkCovered checks that ranges sorted by Lo cover [0, n) exactly once.
func checkCovered(n int, sorted []shard.Range) error {
	at := 0
	for _, r := range sorted {
		if r.Lo > at {
			return fmt.Errorf("elements [%d, %d) of %d are missing", at, r.Lo, n)
		}
		if r.Lo < at {
			return fmt.Errorf("elements [%d, %d) of %d are stored twice", r.Lo, min(at, r.Hi), n)
		}
		at = r.Hi
	}
	if at != n {
		return fmt.Errorf("elements [%d, %d) of %d are missing", min(at, n), max(at, n), n)
	}
	return nil
}
