package nn

import "reflect"

// Shape contains the fields common to the shapes of all families. The tag says names a field in
// messages: its key in the model section of a job file, if it has one, or a description.
type Shape struct {
	Layers  int     `says:"layers"`
	Heads   int     `says:"heads"` // of queries
	Width   int     `says:"width"` // C of the residual stream
	Context int     // maximum tokens of a sequence
	Vocab   int     `says:"vocab"`
	Eps     float64 `says:"the epsilon of norms"`
	Scale   float64 `says:"the scale of attention scores"` // scores are multiplied by Scale^-1/2; 0: by D^-1/2, with D the width of a head
	Dropout Dropout // in training
	LoRA    LoRA
	Cut     Cut // the part of the matrices that the modules have
}

// Differ calls f for every field that affects what a model computes and that differs between two
// values of the same shape type, with the field's name in messages.
func Differ[S any](a, b S, f func(name string, a, b any)) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for _, field := range reflect.VisibleFields(x.Type()) {
		name, ok := field.Tag.Lookup("says")
		if !ok || field.Anonymous {
			continue
		}
		p, q := x.FieldByIndex(field.Index).Interface(), y.FieldByIndex(field.Index).Interface()
		if !reflect.DeepEqual(p, q) {
			f(name, p, q)
		}
	}
}
