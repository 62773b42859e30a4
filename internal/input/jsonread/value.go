package jsonread

// Value is a JSON value. Objects keep their order.
type Value struct {
	Kind  Kind
	Text  string // a string, or the text of a number
	True  bool
	Items []Value
	Pairs []Pair
}

// Pair is a key of an object and its value.
type Pair struct {
	Key   string
	Value Value
}

// Get returns the value of a key, or a Value of kind None.
func (v Value) Get(key string) Value {
	for _, p := range v.Pairs {
		if p.Key == key {
			return p.Value
		}
	}
	return Value{}
}

// Value reads a value as a tree. All trees of a reader together have at most MaxValues.
func (r *Reader) Value() (v Value, err error) {
	if r.made++; r.made > MaxValues {
		return v, r.Wrong("more than %d values", MaxValues)
	}
	switch v.Kind = r.Next(); v.Kind {
	case Object:
		err = r.Object(func(key string) error {
			value, err := r.Value()
			v.Pairs = append(v.Pairs, Pair{key, value})
			return err
		})
	case Array:
		err = r.Array(func(int) error {
			item, err := r.Value()
			v.Items = append(v.Items, item)
			return err
		})
	case String:
		v.Text, err = r.String()
	case Number:
		v.Text, err = r.Number()
	case Bool:
		v.True, err = r.Bool()
	default:
		if !r.Null() {
			err = r.syntax("a value")
		}
	}
	return v, err
}

// Parse reads a text consisting of one value.
func Parse(text []byte) (v Value, err error) {
	err = All(text, func(r *Reader) (err error) {
		v, err = r.Value()
		return err
	})
	return v, err
}
