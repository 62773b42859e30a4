package torchfile

import "fmt"

// A value of a pickle is nil, bool, int64, float64, string, Tuple, *List, *Dict, Global, *Object,
// *Tensor or *Storage.
type (
	// Tuple is a tuple or a torch.Size.
	Tuple []any
	// List is a list or a set.
	List struct {
		Items []any
		inner
	}
	// Global is the name of a class or a function. It cannot be called.
	Global struct{ Module, Name string }
	// Object is an instance of a class: the arguments of its constructor and its state.
	Object struct {
		Class Global
		Args  Tuple
		State any
		built *Object // this object with its state, in which this one is; nil for others
		inner
	}
	// Dict is a dictionary in insertion order.
	Dict struct {
		Keys, Values []any
		index        map[any]int // of keys that are strings or numbers
		inner
	}
	// inner describes a value that contains others.
	inner struct {
		weight int64 // of what it contains; see machine.weigh
		lent   bool  // by the memo; it does not change any more
	}
)

// String formats the name as in Python.
func (g Global) String() string { return g.Module + "." + g.Name }

// Is reports whether an object's class has this name, in any module.
func (o *Object) Is(name string) bool { return o != nil && o.Class.Name == name }

// Field returns a field of an object's state, or nil.
func (o *Object) Field(name string) any {
	if o == nil {
		return nil
	}
	for _, part := range stateParts(o.State) {
		if v, ok := part.Find(name); ok {
			return v
		}
	}
	return nil
}

// stateParts returns the dictionaries of a state: one, or a pair of one and another of slots. Longer
// tuples have no fields; objects can share one, so that searching it for each would take forever.
func stateParts(state any) []*Dict {
	if t, ok := state.(Tuple); ok && len(t) == 2 {
		a, _ := t[0].(*Dict)
		b, _ := t[1].(*Dict)
		return []*Dict{a, b}
	}
	d, _ := state.(*Dict)
	return []*Dict{d}
}

// Find returns the value of a key, which must be a string or an int64.
func (d *Dict) Find(key any) (any, bool) {
	if d == nil {
		return nil, false
	}
	switch key.(type) {
	case string, int64: // others may not be hashable
		if i, ok := d.index[key]; ok {
			return d.Values[i], true
		}
	}
	return nil, false
}

// At returns the value of a key, or nil.
func (d *Dict) At(key any) any {
	v, _ := d.Find(key)
	return v
}

// Dict returns the value of a key if it is a dictionary, otherwise nil.
func (d *Dict) Dict(key any) *Dict {
	v, _ := d.At(key).(*Dict)
	return v
}

// set adds or replaces an entry.
func (d *Dict) set(key, value any) {
	switch key.(type) {
	case string, int64:
		if i, ok := d.index[key]; ok {
			d.Values[i] = value
			return
		}
		if d.index == nil {
			d.index = map[any]int{}
		}
		d.index[key] = len(d.Keys)
	}
	d.Keys, d.Values = append(d.Keys, key), append(d.Values, value)
}

// Items returns the elements of a list or a tuple, or nil.
func Items(v any) []any {
	switch v := v.(type) {
	case Tuple:
		return v
	case *List:
		return v.Items
	}
	return nil
}

// Ints returns the numbers of a tuple or a list.
func Ints(v any) ([]int, error) {
	if o, ok := v.(*Object); ok && o.Is("Size") && len(o.Args) == 1 {
		v = o.Args[0]
	}
	switch v.(type) {
	case Tuple, *List:
	default:
		return nil, fmt.Errorf("%s where numbers were expected", Kind(v))
	}
	items := Items(v)
	if len(items) > maxDims {
		return nil, fmt.Errorf("%d dimensions; at most %d expected", len(items), maxDims)
	}
	out := make([]int, len(items))
	for i, x := range items {
		n, ok := x.(int64)
		if !ok {
			return nil, fmt.Errorf("%s where a number was expected", Kind(x))
		}
		out[i] = int(n)
	}
	return out, nil
}

// Kind describes a value briefly for messages. Printing the value itself may never end: a pickle
// can nest a tuple in itself twice, thirty times over.
func Kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case string:
		return fmt.Sprintf("%.80q", v)
	case bool, int64, float64:
		return fmt.Sprint(v)
	case Tuple:
		return "a tuple"
	case *List:
		return "a list"
	case *Dict:
		return "a dictionary"
	case *Storage:
		return "a storage"
	case Global:
		return v.String()
	case *Object:
		return "an object of " + v.Class.String()
	case *Tensor:
		return fmt.Sprintf("a tensor of shape %v", v.Shape)
	}
	panic(fmt.Sprintf("torchfile: a value of type %T", v))
}
