package jsonread

// Value is a JSON value. Objects keep their order.
type Value struct {
	Kind  Kind
	Text  string // a string, or a number as it is written
	True  bool
	Items []Value
	Pairs []Pair
}

// Pair is a key of an object and its value.
type Pair struct {
	Key   string
	Value Value
}

// Get is the value of a key; its kind is None where there is none.
func (v Value) Get(key string) Value {
	for _, p := range v.Pairs {
		if p.Key == key {
			return p.Value
		}
	}
	return Value{}
}

// Value reads a value of at most MaxValues, whose objects have no key twice.
func (r *Reader) Value() (v Value, err error) {
	if r.made++; r.made > MaxValues {
		return v, r.Wrong("more than %d values", MaxValues)
	}
	switch v.Kind = r.Next(); v.Kind {
	case Object:
		err = r.object(&v)
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
			err = r.Wrong("no JSON: %.10q", r.text[r.at:])
		}
	}
	return v, err
}

// fewKeys is up to how many keys are compared with each other one by one.
const fewKeys = 8

func (r *Reader) object(v *Value) error {
	var seen map[string]bool
	return r.Object(func(key string) error {
		twice := seen[key]
		if seen == nil {
			twice = v.Get(key).Kind != None
		}
		if twice {
			return r.Wrong("the key %.40q is there twice", key)
		}
		value, err := r.Value()
		v.Pairs = append(v.Pairs, Pair{key, value})
		if seen == nil && len(v.Pairs) > fewKeys {
			seen = map[string]bool{}
			for _, p := range v.Pairs {
				seen[p.Key] = true
			}
		} else if seen != nil {
			seen[key] = true
		}
		return err
	})
}

// Parse is the one value that a text is.
func Parse(text []byte) (Value, error) {
	r := New(text)
	v, err := r.Value()
	if err == nil {
		err = r.End()
	}
	return v, err
}
