package nn

import "reflect"

// Shape is what the shapes of all families have in common. The tag says names a field
// for people: its key in the model section of a job file, if it has one, or words.
type Shape struct {
	Layers  int     `says:"layers"`
	Heads   int     `says:"heads"` // of queries
	Width   int     `says:"width"` // C of the residual stream
	Context int     // tokens of the longest sequence
	Vocab   int     `says:"vocab"`
	Eps     float64 `says:"the epsilon of norms"`
	Scale   float64 `says:"the scale of attention scores"` // scores are multiplied by Scale^-1/2; 0: by D^-1/2, with D the width of a head
	Dropout Dropout // of training
	LoRA    LoRA
	Cut     Cut // which part of the matrices the modules have
}

// Differ calls f for every field that says what a model computes and that differs between
// two values of the same shape type, with the field's name for people.
func Differ[S any](a, b S, f func(says string, a, b any)) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for _, field := range reflect.VisibleFields(x.Type()) {
		says, ok := field.Tag.Lookup("says")
		if !ok || field.Anonymous {
			continue
		}
		p, q := x.FieldByIndex(field.Index).Interface(), y.FieldByIndex(field.Index).Interface()
		if !reflect.DeepEqual(p, q) {
			f(says, p, q)
		}
	}
}
