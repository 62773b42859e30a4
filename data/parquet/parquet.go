// Package parquet reads rows of a Parquet file (apache/parquet-format 2.11) as JSON records,
// using the file's own schema. It reads the requested columns: strings, numbers and booleans,
// in structs and lists of any depth.
//
// Files are untrusted. Every size is compared with a limit, or with the bytes available,
// before memory is allocated. For each column, memory holds one page (at most 128 MiB,
// compressed and uncompressed) and its dictionary (32 MiB). Pages may be plain or compressed
// with snappy, gzip or zstd; values may be plain, dictionary-encoded or delta-encoded.
// Anything else is refused by name.
//
// We do not use parquet-go because it decodes a page at once: a valid page of a few hundred
// bytes with shared string prefixes can expand to gigabytes. `cd tests/interop/parquet &&
// go test ./...` measures both readers.
package parquet

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"unicode/utf8"

	"zeroth/internal/input"
	"zeroth/internal/input/jsonread"
)

// Limits of a file.
const (
	maxFooter     = 16 << 20  // bytes
	maxColumns    = 10_000    // in the file, not just those read
	maxPage       = 128 << 20 // bytes
	maxDictionary = 32 << 20  // bytes
	maxValues     = 1 << 24   // per page
	maxRow        = 64 << 20  // bytes of text
)

const magic = "PAR1"

// file is the parsed footer.
type file struct {
	root    *node
	columns []*node // the requested columns
	groups  []group
}

// group is a row group.
type group struct {
	rows   int64
	chunks []chunk // by requested column
}

// failure is the error that ends the reading of a file. The readers panic with it, and Rows returns
// it.
type failure struct{ error }

func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// must ends the reading if there is an error.
func must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Rows calls emit for every row of a file, numbered from 1, with an object of the chosen columns or
// the error in the row. choose selects from the columns of the file. Rows returns errors of choose
// and of the file.
func Rows(ctx context.Context, r io.ReaderAt, size int64, choose func(have []string) ([]string, error), emit func(row int, record jsonread.Value, wrong error)) (err error) {
	row, inRow := 0, false
	defer input.Catch(func(e failure) {
		if err = e.error; inRow {
			err = fmt.Errorf("row %d: %w", row, err)
		}
	})
	f := open(r, size, choose)
	columns := make([]*column, len(f.columns))
	for i, n := range f.columns {
		columns[i] = &column{file: r, node: n}
		defer columns[i].close()
	}
	for _, g := range f.groups {
		for i, c := range columns {
			c.open(g.chunks[i])
		}
		for range g.rows {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			row, inRow = row+1, true
			record, wrong := f.row(columns)
			inRow = false
			emit(row, record, wrong)
		}
		for _, c := range columns {
			if c.peek() != nil {
				fail("column %q has more rows than the %d of its group", c.node.path, g.rows)
			}
		}
	}
	return nil
}

func open(r io.ReaderAt, size int64, choose func([]string) ([]string, error)) *file {
	read := func(b []byte, at int64) {
		_, err := r.ReadAt(b, at)
		must(err)
	}
	var ends [12]byte
	if size < int64(len(ends)) {
		fail("%d bytes are too short for a parquet file", size)
	}
	read(ends[:4], 0)
	read(ends[4:], size-8)
	if string(ends[8:]) == "PARE" {
		fail("encrypted files are not supported")
	}
	if string(ends[:4]) != magic || string(ends[8:]) != magic {
		fail("no parquet magic at the ends of the file; is it complete?")
	}
	n := int64(binary.LittleEndian.Uint32(ends[4:]))
	if n > maxFooter || n > size-int64(len(ends)) {
		fail("a footer of %d bytes in a file of %d; the limit is %d", n, size, maxFooter)
	}
	footer := make([]byte, n)
	read(footer, size-8-n)
	f := &file{}
	f.read(footer, size-8-n, choose)
	return f
}

// read parses a footer; all pages must be before byte end.
func (f *file) read(footer []byte, end int64, choose func([]string) ([]string, error)) {
	d := &decoder{b: footer}
	d.read(kindStruct, map[int]any{
		2: func(kind byte) {
			var all []element
			d.list(kind, func(kind byte) {
				if len(all) > maxColumns {
					d.fail("more than %d fields", maxColumns)
				}
				all = append(all, element{})
				all[len(all)-1].read(d, kind)
			})
			if d.err == nil {
				f.schema(all, choose)
			}
		},
		4: func(kind byte) { d.list(kind, func(kind byte) { f.group(d, kind, end) }) },
		8: func(byte) { fail("encrypted files are not supported") },
	})
	if d.err != nil {
		fail("footer: %w", d.err)
	}
	if f.root == nil {
		fail("the file has no schema")
	}
}

// schema finds the chosen columns, which become the root's fields.
func (f *file) schema(all []element, choose func([]string) ([]string, error)) {
	columns := 0
	f.root = tree(&all, nil, &columns, 0)
	if len(all) > 0 || f.root.leaves == 0 {
		fail("invalid schema: %d columns, and %d fields that belong to none", f.root.leaves, len(all))
	}
	var have []string
	for _, n := range f.root.fields {
		have = append(have, n.name)
	}
	names, err := choose(have)
	if err != nil {
		fail("%w; the file has the columns %s", err, f.root.names())
	}
	var fields []*node
	for _, name := range names {
		var found *node
		for _, n := range f.root.fields {
			if n.name == name && found == nil {
				found = n
			} else if n.name == name {
				fail("two columns are named %.40q", name)
			}
		}
		if found == nil {
			fail("no column %.40q; the file has the columns %s", name, f.root.names())
		}
		fields = append(fields, found)
		f.columns = append(f.columns, found.columns()...)
	}
	for _, n := range f.columns {
		n.kind() // supported
	}
	f.root.fields = fields
}

// group parses a row group.
func (f *file) group(d *decoder, kind byte, end int64) {
	if f.root == nil {
		fail("a row group before the schema")
	}
	g, at := group{chunks: make([]chunk, len(f.columns))}, 0
	d.read(kind, map[int]any{3: &g.rows, 1: func(kind byte) {
		d.list(kind, func(kind byte) {
			var k chunk
			k.read(d, kind)
			for i, n := range f.columns {
				if n.leaf != at {
					continue
				}
				g.chunks[i] = k
				if k.values != 0 && (k.start < 4 || k.size < 0 || k.size > end || k.start > end-k.size || k.values < 0) {
					fail("column %q has %d values in %d bytes at byte %d, but pages end at byte %d", n.path, k.values, k.size, k.start, end)
				}
			}
			at++
		})
	}})
	if d.err == nil && (at != f.root.leaves || g.rows < 0) {
		fail("a group of %d rows has %d columns, but the schema has %d", g.rows, at, f.root.leaves)
	}
	f.groups = append(f.groups, g)
}

// read parses the location of a column's pages.
func (k *chunk) read(d *decoder, kind byte) {
	var data, dictionary int64
	other := ""
	d.read(kind, map[int]any{
		1: &other,
		3: func(kind byte) {
			d.read(kind, map[int]any{4: &k.codec, 5: &k.values, 7: &k.size, 9: &data, 11: &dictionary})
		},
		8: func(byte) { fail("encrypted columns are not supported") },
	})
	if other != "" {
		fail("columns in another file (%.80q) are not supported", other)
	}
	if k.start = data; dictionary > 0 && dictionary < data {
		k.start = dictionary
	}
}

// row returns the next row of columns, or the error in it.
func (f *file) row(columns []*column) (record jsonread.Value, wrong error) {
	cells, count, bytes := make([][]cell, len(columns)), 0, 0
	for i, c := range columns {
		for {
			x := c.peek()
			if first := len(cells[i]) == 0; first && (x == nil || x.rep != 0) {
				fail("column %q ends before this row", c.node.path)
			} else if !first && (x == nil || x.rep == 0) {
				break
			}
			count, bytes = count+1, bytes+len(x.text)
			if count > jsonread.MaxValues || bytes > maxRow {
				fail("more than %d values or %d bytes", jsonread.MaxValues, maxRow)
			}
			if wrong == nil && !utf8.ValidString(x.text) {
				wrong = fmt.Errorf("%q is not UTF-8", c.node.path)
			}
			cells[i], c.has = append(cells[i], *x), false
		}
	}
	return f.root.group(cells), wrong
}

// group returns a struct, given the cells of each column below it.
func (n *node) group(cells [][]cell) (v jsonread.Value) {
	v.Kind = jsonread.Object
	for _, f := range n.fields {
		v.Pairs = append(v.Pairs, jsonread.Pair{Key: f.name, Value: f.field(cells[:f.leaves])})
		cells = cells[f.leaves:]
	}
	return v
}

// field returns the value of a field, which is an array if the field is repeated.
func (n *node) field(cells [][]cell) (v jsonread.Value) {
	if n.repeat != repeated {
		if cells[0][0].def < n.def {
			return jsonread.Value{Kind: jsonread.Null}
		}
		return n.value(cells)
	}
	v.Kind = jsonread.Array
	if cells[0][0].def < n.def {
		return v
	}
	rest := append([][]cell(nil), cells...)
	for len(rest[0]) > 0 {
		item := make([][]cell, len(rest))
		for i, column := range rest {
			end := 1
			for end < len(column) && column[end].rep > n.rep {
				end++
			}
			if len(column) == 0 {
				fail("column %q: its fields have different numbers of items", n.path)
			}
			item[i], rest[i] = column[:end], column[end:]
		}
		v.Items = append(v.Items, n.item(item))
	}
	for _, column := range rest {
		if len(column) > 0 {
			fail("column %q: its fields have different numbers of items", n.path)
		}
	}
	return v
}

func (n *node) item(cells [][]cell) jsonread.Value {
	if n.unwrap {
		return n.fields[0].field(cells)
	}
	return n.value(cells)
}

// value returns a value that is not null.
func (n *node) value(cells [][]cell) (v jsonread.Value) {
	switch {
	case n.leaf < 0 && n.list:
		return n.fields[0].field(cells)
	case n.leaf < 0 && n.pairs:
		return n.object(cells)
	case n.leaf < 0:
		return n.group(cells)
	}
	v.Kind, v.Text = n.kind(), cells[0][0].text
	if v.Kind == jsonread.Bool {
		v.True, v.Text = v.Text == "true", ""
	}
	return v
}

// object returns a map as an object.
func (n *node) object(cells [][]cell) (v jsonread.Value) {
	v.Kind = jsonread.Object
	seen := map[string]bool{}
	for _, pair := range n.fields[0].field(cells).Items {
		key := pair.Pairs[0].Value
		if key.Kind != jsonread.String || seen[key.Text] {
			fail("column %q: a map's keys are not strings, each of which occurs once", n.path)
		}
		seen[key.Text] = true
		v.Pairs = append(v.Pairs, jsonread.Pair{Key: key.Text, Value: pair.Pairs[1].Value})
	}
	return v
}
