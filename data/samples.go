package data

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
	Target = "target" // the id after each of them, or Ignored
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

// Tokens returns the values of the fields of tokens; start is nil unless documents are packed.
func Tokens(input, target, start []int32) []Values {
	if start == nil {
		return []Values{{I32: input}, {I32: target}}
	}
	return []Values{{I32: input}, {I32: target}, {I32: start}}
}

// TokensOf returns the slices of fields of tokens; start is nil unless documents are packed.
func TokensOf(v []Values) (input, target, start []int32) {
	if len(v) > 2 {
		start = v[2].I32
	}
	return v[0].I32, v[1].I32, start
}
