package jsonread

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// maxErrors limits how many errors Fill reports.
const maxErrors = 16

// Into reads a text consisting of one value into the variable v points to, like Fill.
func Into(text []byte, v any) error {
	return All(text, func(r *Reader) error { return r.Fill(v) })
}

// Fill reads a value into the variable v points to: bools, strings, numbers, types that
// implement encoding.TextUnmarshaler, and structs, slices and maps of them. Keys of a
// struct must match the names in its json tags exactly. A null empties a slice or map
// and leaves a field unchanged. Fill continues after unknown keys and values of the wrong
// type, and reports all of them.
func (r *Reader) Fill(v any) error {
	f := filler{Reader: r}
	err := f.fill(reflect.ValueOf(v).Elem())
	if err == nil && len(f.wrong) == 1 {
		return f.wrong[0]
	}
	var all []error
	for _, e := range f.wrong {
		all = append(all, e)
	}
	if f.more > 0 {
		all = append(all, fmt.Errorf("and %d more", f.more))
	}
	return errors.Join(append(all, err)...)
}

// filler is a Reader that collects the errors it can read past.
type filler struct {
	*Reader
	wrong []*Error // at most maxErrors
	more  int
}

// pass records an error about a value and skips the value.
func (f *filler) pass(err error) error {
	if len(f.wrong) < maxErrors {
		f.wrong = append(f.wrong, f.locate(err).(*Error))
	} else {
		f.more++
	}
	return f.skip()
}

// in fills v, a part of a value, and adds its name to the errors found in it.
func (f *filler) in(name func() string, v reflect.Value) error {
	from := len(f.wrong)
	err := f.fill(v)
	for _, e := range f.wrong[from:] {
		e.in(name())
	}
	return err
}

func (f *filler) fill(v reflect.Value) error {
	want, what := kindOf(v)
	switch got := f.Next(); {
	case got == None:
		return f.syntax(what)
	case got == Null && (v.Kind() == reflect.Slice || v.Kind() == reflect.Map):
		v.SetZero()
		return f.skip()
	case got != want:
		return f.pass(fmt.Errorf("%v where %s is expected", got, what))
	}
	switch want {
	case Object:
		return f.object(v)
	case Array:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		return f.Array(func(i int) error {
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			return f.in(func() string { return fmt.Sprintf("[%d]", i) }, v.Index(i))
		})
	case Bool:
		x, err := f.Bool()
		v.SetBool(x)
		return err
	}
	s, err := f.scalar(want)
	if err == nil {
		if wrong := set(v, s); errors.Is(wrong, strconv.ErrRange) {
			err = fmt.Errorf("%.20s is out of range", s)
		} else if wrong != nil {
			err = fmt.Errorf("%.20s where %s is expected", s, what)
		}
		if err != nil {
			f.at = f.token
			return f.pass(err)
		}
	}
	return err
}

// scalar reads a string, or a number as text.
func (f *filler) scalar(k Kind) (string, error) {
	if k == String {
		return f.String()
	}
	return f.Number()
}

// object fills a struct or a map.
func (f *filler) object(v reflect.Value) error {
	if v.Kind() == reflect.Map {
		v.Set(reflect.MakeMap(v.Type()))
		return f.Object(func(key string) error {
			x := reflect.New(v.Type().Elem()).Elem()
			err := f.in(func() string { return fmt.Sprintf("%.40q", key) }, x)
			v.SetMapIndex(reflect.ValueOf(key), x)
			return err
		})
	}
	var names []string
	fields := map[string]reflect.Value{}
	for _, field := range reflect.VisibleFields(v.Type()) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
			fields[name] = v.FieldByIndex(field.Index)
		}
	}
	return f.Object(func(key string) error {
		field, ok := fields[key]
		if !ok {
			return f.pass(unknown(key, names))
		}
		if f.Null() {
			return nil
		}
		return f.in(func() string { return key }, field)
	})
}

// texts returns v as a TextUnmarshaler, if it is one.
func texts(v reflect.Value) (encoding.TextUnmarshaler, bool) {
	to, ok := v.Addr().Interface().(encoding.TextUnmarshaler)
	return to, ok
}

// kindOf returns the kind of JSON that fills v, and its name in errors.
func kindOf(v reflect.Value) (k Kind, what string) {
	if _, ok := texts(v); ok {
		return String, "a " + v.Type().String()
	}
	switch v.Kind() {
	case reflect.Bool:
		k = Bool
	case reflect.String:
		k = String
	case reflect.Int, reflect.Int32, reflect.Int64:
		return Number, "a whole number"
	case reflect.Float64:
		k = Number
	case reflect.Slice:
		k = Array
	case reflect.Struct, reflect.Map:
		k = Object
	default:
		panic("jsonread: JSON of " + v.Type().String())
	}
	return k, k.String()
}

// set parses s into v.
func set(v reflect.Value, s string) error {
	switch to, ok := texts(v); {
	case ok:
		return to.UnmarshalText([]byte(s))
	case v.Kind() == reflect.String:
		v.SetString(s)
	case v.CanFloat():
		x, err := strconv.ParseFloat(s, 64)
		v.SetFloat(x)
		return err
	default:
		x, err := strconv.ParseInt(s, 10, v.Type().Bits())
		v.SetInt(x)
		return err
	}
	return nil
}
