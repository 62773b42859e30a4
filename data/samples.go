package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
)

// Samples is training data that a program provides: any number of samples, each with the same
// fields. What a sample contains must depend only on its number, so that any rank can read any
// sample at any time and a resumed run needs nothing but a counter. All ranks of a process read at
// the same time.
type Samples interface {
	// Len returns the number of samples. Training reads each once per epoch, in an order that
	// depends on train.seed. If it is 0, there is no end: training reads sample 0, 1, 2 and so on.
	Len() int64
	// Fields returns the fields of a sample, the same ones in every call.
	Fields() []Field
	// Read fills the fields of a sample, which are zero, in the order of Fields. It must not retain
	// them.
	Read(sample int64, into []Values) error
}

// Counter is implemented by Samples in which not every position has a loss, because of padding or
// masks. The loss of a step is the sum over all positions divided by the number of those counted.
type Counter interface {
	// Counted returns the number of positions of a sample that have a loss, of the model's Context.
	Counted(sample int64) int
}

// Field is a part of each sample: Len numbers of a type.
type Field struct {
	Name string
	Type Type
	Len  int // numbers per sample
}

// Type is the type of a field's numbers.
type Type uint8

// The types of fields.
const (
	Int32 Type = iota
	Float32
)

// Values are the numbers of one field in a sample, or in consecutive samples. The slice of the
// field's type is set, and the other is nil.
type Values struct {
	I32 []int32
	F32 []float32
}

// Slice returns numbers [lo, hi).
func (v Values) Slice(lo, hi int) Values {
	if v.F32 != nil {
		return Values{F32: v.F32[lo:hi]}
	}
	return Values{I32: v.I32[lo:hi]}
}

// The fields of tokens.
const (
	Input  = "input"  // token ids
	Target = "target" // the id after each of them, Ignored or Padding
	Start  = "start"  // the first position of each position's document, if documents are packed
)

// TokenFields returns the fields of samples of tokens.
func TokenFields(context int, packed bool) []Field {
	fields := []Field{{Input, Int32, context}, {Target, Int32, context}, {Start, Int32, context}}
	if packed {
		return fields
	}
	return fields[:2]
}

// TokensOf returns the slices of fields of tokens; start is nil unless documents are packed.
func TokensOf(v []Values) (input, target, start []int32) {
	if len(v) > 2 {
		start = v[2].I32
	}
	return v[0].I32, v[1].I32, start
}

// mostNumbers limits the numbers of a field in a sample.
const mostNumbers = 1 << 28

// CheckFields returns an error for fields that no sample can have.
func CheckFields(fields []Field) error {
	var errs []error
	if len(fields) == 0 {
		errs = append(errs, errors.New("a sample has no fields"))
	}
	for i, f := range fields {
		switch {
		case f.Name == "" || slices.ContainsFunc(fields[:i], func(g Field) bool { return g.Name == f.Name }):
			errs = append(errs, fmt.Errorf("field %d is named %q; want names, all different", i, f.Name))
		case f.Len < 1 || f.Len > mostNumbers:
			errs = append(errs, fmt.Errorf("field %s has %d numbers per sample; want 1 to %d", f.Name, f.Len, mostNumbers))
		case f.Type > Float32:
			errs = append(errs, fmt.Errorf("field %s has type %d; want Int32 or Float32", f.Name, f.Type))
		}
	}
	return errors.Join(errs...)
}

// program returns the set of a program's samples.
func (s Source) program() (set *Set, err error) {
	n := s.Samples.Len()
	switch {
	case n < 0:
		err = problem("program", "there are %d samples; want 0 if there is no end", n)
	case n > 0 && n < int64(s.Batch):
		err = problem("program", "there are %d samples, fewer than the %d of one global batch", n, s.Batch)
	case s.Held != nil && !slices.Equal(s.Held.Fields(), s.Samples.Fields()):
		err = problem("program", "samples for validation have the fields %v, but those for training %v", s.Held.Fields(), s.Samples.Fields())
	case s.Held != nil && s.Held.Len() < 0:
		err = problem("program", "there are %d samples for validation; want 0 if there is no end", s.Held.Len())
	}
	if err != nil {
		return nil, err
	}
	split := func(of Samples, shuffle bool) *Split {
		return &Split{program: of, below: s.Below, context: int64(s.Context), stretches: stretches{windows: of.Len()}, shuffle: shuffle, seed: s.Seed}
	}
	set = &Set{Context: s.Context, Train: split(s.Samples, true)}
	if s.Held != nil {
		set.Validation = split(s.Held, false)
	}
	set.Fingerprint, err = set.Train.fingerprint()
	return set, err
}

// readOne reads a sample of a program, and checks the numbers that the network uses as indices and the
// number of positions that are counted.
func (s *Split) readOne(fields []Field, sample int64, into []Values) error {
	if err := s.program.Read(sample, into); err != nil {
		return fmt.Errorf("sample %d: %w", sample, err)
	}
	if of, ok := s.program.(Counter); ok {
		if n := of.Counted(sample); n < 0 || int64(n) > s.context {
			return fmt.Errorf("sample %d: Counted says that %d positions have a loss; it has %d", sample, n, s.context)
		}
	}
	for k, f := range fields {
		if k >= len(s.below) || s.below[k] == 0 {
			continue
		}
		least := int32(Ignored)
		switch f.Name {
		case Input:
			least = 0
		case Target:
			least = Padding
		}
		for i, x := range into[k].I32 {
			if x < least || int(x) >= s.below[k] {
				return fmt.Errorf("sample %d: field %s has %d at %d; the network takes %d to %d", sample, f.Name, x, i, least, s.below[k]-1)
			}
		}
	}
	return nil
}

// fingerprint identifies samples by their fields, their number, and the first, the middle and the
// last of them.
func (s *Split) fingerprint() (string, error) {
	of, sum := s.program, sha256.New()
	fmt.Fprintln(sum, of.Len(), of.Fields())
	for _, i := range []int64{0, of.Len() / 2, max(0, of.Len()-1)} {
		var one []Values
		for _, f := range of.Fields() {
			v := Values{I32: make([]int32, f.Len)}
			if f.Type == Float32 {
				v = Values{F32: make([]float32, f.Len)}
			}
			one = append(one, v)
		}
		if err := s.readOne(of.Fields(), i, one); err != nil {
			return "", err
		}
		for _, v := range one {
			_ = binary.Write(sum, binary.LittleEndian, v.I32) // a hash takes everything
			_ = binary.Write(sum, binary.LittleEndian, v.F32)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// read fills consecutive samples of a program, as many as fit.
func (s *Split) read(into []Values, sample int64) error {
	fields := s.program.Fields()
	one := make([]Values, len(fields))
	for i := range max(len(into[0].I32), len(into[0].F32)) / fields[0].Len {
		for k, f := range fields {
			one[k] = into[k].Slice(i*f.Len, (i+1)*f.Len)
			clear(one[k].I32)
			clear(one[k].F32)
		}
		if err := s.readOne(fields, s.Window(sample+int64(i)), one); err != nil {
			return err
		}
	}
	return nil
}
