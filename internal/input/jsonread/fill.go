package jsonread

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// maxErrors limits how many errors Fill reports.
const maxErrors = 16

// Into reads a text consisting of one value into the variable v points to, like Fill.
func Into(text []byte, v any) error {
	return All(text, func(r *Reader) error { return r.Fill(v) })
}

// Checked is a value that knows whether it is valid. Check is called as soon as it is read, and an
// error ends the reading, so that items after an invalid one take no memory.
type Checked interface{ Check() error }

// Strict reads a text consisting of one value into the variable v points to, like Reader.Strict.
func Strict(text []byte, v any) error {
	return All(text, func(r *Reader) error { return r.Strict(v) })
}

// Strict is like Fill for texts that programs write: null is an error, and the first error ends the
// reading.
func (r *Reader) Strict(v any) error {
	f := filler{Reader: r, strict: true}
	return f.fill(reflect.ValueOf(v).Elem())
}

// Fill reads a value into the variable v points to: bools, strings, numbers, types that
// implement encoding.TextUnmarshaler, and structs, pointers, arrays, slices and maps of them.
// Keys of a struct must match the names in its json tags exactly. A null empties a slice or map
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
	strict bool
	wrong  []*Error // at most maxErrors
	more   int
}

// pass records an error about a value and skips the value.
func (f *filler) pass(err error) error {
	if f.strict {
		return f.locate(err)
	}
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
	if f.strict && err != nil {
		return f.Reader.in(name(), err)
	}
	return err
}

func (f *filler) fill(v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	want, what := kindOf(v)
	got, from := f.Next(), f.at
	switch {
	case got == None:
		return f.syntax(what)
	case got == Null && !f.strict && (v.Kind() == reflect.Slice || v.Kind() == reflect.Map):
		v.SetZero()
		return f.skip()
	case got != want:
		return f.pass(fmt.Errorf("%v where %s is expected", got, what))
	}
	var err error
	switch want {
	case Object:
		err = f.object(v)
	case Array:
		return f.array(v)
	case Bool:
		x, err := f.Bool()
		v.SetBool(x)
		return err
	case Number:
		return f.scalar(v, what, f.number)
	default:
		err = f.scalar(v, what, f.chars)
	}
	if c, ok := v.Addr().Interface().(Checked); ok && err == nil {
		if err = c.Check(); err != nil {
			f.token = from
		}
	}
	return err
}

// scalar reads a string or a number.
func (f *filler) scalar(v reflect.Value, what string, read func() ([]byte, error)) error {
	s, err := read()
	if err != nil {
		return err
	}
	switch wrong := set(v, s); {
	case wrong == nil:
		return nil
	case errors.Is(wrong, strconv.ErrRange):
		err = fmt.Errorf("%.20s is out of range", s)
	case v.CanInt() || v.CanUint():
		err = fmt.Errorf("%.20s where %s is expected", s, what)
	default:
		err = fmt.Errorf("%.20s where %s is expected: %.80v", s, what, wrong)
	}
	f.at = f.token
	return f.pass(err)
}

// array fills a slice, or an array, which must have exactly as many items.
func (f *filler) array(v reflect.Value) error {
	n, slice := 0, v.Kind() == reflect.Slice
	if slice {
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	}
	err := f.Array(func(i int) error {
		if n++; slice {
			if i == v.Cap() {
				v.Grow(max(4, i)) // to twice the size
			}
			v.SetLen(n)
		} else if n > v.Len() {
			return f.Wrong("more than %d items", v.Len())
		}
		return f.in(func() string { return fmt.Sprintf("[%d]", i) }, v.Index(i))
	})
	if err == nil && n < v.Len() {
		err = f.Wrong("%d items where %d are expected", n, v.Len())
	}
	return err
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
	known := fieldsOf(v.Type())
	return f.Reader.object(known.names, func(key string) error {
		i := slices.Index(known.names, key)
		if i < 0 {
			return f.pass(unknown(key, known.names))
		}
		if !f.strict && f.Null() {
			return nil
		}
		return f.in(func() string { return key }, v.FieldByIndex(known.at[i]))
	})
}

// fields has the names of a struct's fields in JSON, and their indexes.
type fields struct {
	names []string
	at    [][]int
}

var structs sync.Map // the *fields of types

func fieldsOf(t reflect.Type) *fields {
	if known, ok := structs.Load(t); ok {
		return known.(*fields)
	}
	x := &fields{}
	for _, field := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
			x.names, x.at = append(x.names, name), append(x.at, field.Index)
		}
	}
	structs.Store(t, x)
	return x
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
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32:
		return Number, "a whole number"
	case reflect.Float64:
		k = Number
	case reflect.Slice, reflect.Array:
		k = Array
	case reflect.Struct, reflect.Map:
		k = Object
	default:
		panic("jsonread: JSON of " + v.Type().String())
	}
	return k, k.String()
}

// set parses s into v.
func set(v reflect.Value, s []byte) error {
	switch to, ok := texts(v); {
	case ok:
		return to.UnmarshalText(s)
	case v.Kind() == reflect.String:
		v.SetString(string(s))
	case v.CanFloat():
		x, err := strconv.ParseFloat(string(s), 64)
		v.SetFloat(x)
		return err
	case v.CanUint():
		x, err := strconv.ParseUint(string(s), 10, v.Type().Bits())
		v.SetUint(x)
		return err
	default:
		x, err := strconv.ParseInt(string(s), 10, v.Type().Bits())
		v.SetInt(x)
		return err
	}
	return nil
}
