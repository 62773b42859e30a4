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

	"zeroth/input/jsonread"
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

// Rows calls emit for every row of a file, numbered from 1, with an object of the chosen columns or
// the error in the row. choose selects from the columns of the file. Rows returns errors of choose
// and of the file.
func Rows(ctx context.Context, r io.ReaderAt, size int64, choose func(have []string) ([]string, error), emit func(row int, record jsonread.Value, wrong error)) error {
	f, err := open(r, size, choose)
	if err != nil {
		return err
	}
	columns := make([]*column, len(f.columns))
	for i, n := range f.columns {
		columns[i] = &column{file: r, node: n}
		defer columns[i].close()
	}
	row := 0
	for _, g := range f.groups {
		for i, c := range columns {
			c.open(g.chunks[i])
		}
		for range g.rows {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			row++
			record, wrong, err := f.row(columns)
			if err != nil {
				return fmt.Errorf("row %d: %w", row, err)
			}
			emit(row, record, wrong)
		}
		for _, c := range columns {
			if _, more, err := c.peek(); err != nil {
				return err
			} else if more {
				return fmt.Errorf("column %q has more rows than the %d of its group", c.node.path, g.rows)
			}
		}
	}
	return nil
}

func open(r io.ReaderAt, size int64, choose func([]string) ([]string, error)) (*file, error) {
	var ends [12]byte
	if size < int64(len(ends)) {
		return nil, fmt.Errorf("%d bytes are too short for a parquet file", size)
	}
	if _, err := r.ReadAt(ends[:4], 0); err != nil {
		return nil, err
	}
	if _, err := r.ReadAt(ends[4:], size-8); err != nil {
		return nil, err
	}
	if string(ends[8:]) == "PARE" {
		return nil, fmt.Errorf("encrypted files are not supported")
	}
	if string(ends[:4]) != magic || string(ends[8:]) != magic {
		return nil, fmt.Errorf("no parquet magic at the ends of the file; is it complete?")
	}
	n := int64(binary.LittleEndian.Uint32(ends[4:]))
	if n > maxFooter || n > size-int64(len(ends)) {
		return nil, fmt.Errorf("a footer of %d bytes in a file of %d; the limit is %d", n, size, maxFooter)
	}
	footer := make([]byte, n)
	if _, err := r.ReadAt(footer, size-8-n); err != nil {
		return nil, err
	}
	f := &file{}
	if err := f.read(footer, size-8-n, choose); err != nil {
		return nil, err
	}
	return f, nil
}

// read parses a footer; all pages must be before byte end.
func (f *file) read(footer []byte, end int64, choose func([]string) ([]string, error)) error {
	d := &decoder{b: footer}
	var wrong error
	d.fields(kindStruct, func(id int, kind byte) bool {
		switch {
		case wrong != nil:
			return false
		case id == 2:
			var all []element
			d.list(kind, func(kind byte) {
				if len(all) > maxColumns {
					d.fail("more than %d fields", maxColumns)
				}
				all = append(all, element{})
				all[len(all)-1].read(d, kind)
			})
			if d.err == nil {
				wrong = f.schema(all, choose)
			}
		case id == 4:
			d.list(kind, func(kind byte) {
				if wrong == nil {
					wrong = f.group(d, kind, end)
				} else {
					d.skipItem(kind)
				}
			})
		case id == 8:
			wrong = fmt.Errorf("encrypted files are not supported")
		default:
			return false
		}
		return true
	})
	if wrong == nil && d.err == nil && f.root == nil {
		wrong = fmt.Errorf("the file has no schema")
	}
	if wrong == nil && d.err != nil {
		wrong = fmt.Errorf("footer: %w", d.err)
	}
	return wrong
}

// schema finds the chosen columns, which become the root's fields.
func (f *file) schema(all []element, choose func([]string) ([]string, error)) (err error) {
	columns := 0
	if f.root, err = tree(&all, nil, &columns, 0); err != nil {
		return err
	}
	if len(all) > 0 || f.root.leaves == 0 {
		return fmt.Errorf("invalid schema: %d columns, and %d fields that belong to none", f.root.leaves, len(all))
	}
	var have []string
	for _, n := range f.root.fields {
		have = append(have, n.name)
	}
	names, err := choose(have)
	if err != nil {
		return fmt.Errorf("%w; the file has the columns %s", err, f.root.names())
	}
	var fields []*node
	for _, name := range names {
		var found *node
		for _, n := range f.root.fields {
			if n.name == name && found == nil {
				found = n
			} else if n.name == name {
				return fmt.Errorf("two columns are named %.40q", name)
			}
		}
		if found == nil {
			return fmt.Errorf("no column %.40q; the file has the columns %s", name, f.root.names())
		}
		fields = append(fields, found)
		f.columns = append(f.columns, found.columns()...)
	}
	for _, n := range f.columns {
		if _, err := n.kind(); err != nil {
			return err
		}
	}
	f.root.fields = fields
	return nil
}

// group parses a row group.
func (f *file) group(d *decoder, kind byte, end int64) (wrong error) {
	if f.root == nil {
		return fmt.Errorf("a row group before the schema")
	}
	g, at := group{chunks: make([]chunk, len(f.columns))}, 0
	d.fields(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			d.list(kind, func(kind byte) {
				var k chunk
				if err := k.read(d, kind); err != nil && wrong == nil {
					wrong = err
				}
				for i, n := range f.columns {
					if n.leaf == at {
						g.chunks[i] = k
						if wrong == nil && k.values != 0 && (k.start < 4 || k.size < 0 || k.size > end || k.start > end-k.size || k.values < 0) {
							wrong = fmt.Errorf("column %q has %d values in %d bytes at byte %d, but pages end at byte %d", n.path, k.values, k.size, k.start, end)
						}
					}
				}
				at++
			})
		case 3:
			g.rows = d.int(kind)
		default:
			return false
		}
		return true
	})
	if d.err != nil || wrong != nil {
		return wrong
	}
	if at != f.root.leaves || g.rows < 0 {
		return fmt.Errorf("a group of %d rows has %d columns, but the schema has %d", g.rows, at, f.root.leaves)
	}
	f.groups = append(f.groups, g)
	return nil
}

// read parses the location of a column's pages.
func (k *chunk) read(d *decoder, kind byte) (wrong error) {
	var data, dictionary int64
	d.fields(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			if name := d.text(kind); name != "" {
				wrong = fmt.Errorf("columns in another file (%.80q) are not supported", name)
			}
		case 3:
			d.fields(kind, func(id int, kind byte) bool {
				switch id {
				case 4:
					k.codec = d.small(kind)
				case 5:
					k.values = d.int(kind)
				case 7:
					k.size = d.int(kind)
				case 9:
					data = d.int(kind)
				case 11:
					dictionary = d.int(kind)
				default:
					return false
				}
				return true
			})
		case 8:
			wrong = fmt.Errorf("encrypted columns are not supported")
		default:
			return false
		}
		return true
	})
	if k.start = data; dictionary > 0 && dictionary < data {
		k.start = dictionary
	}
	return wrong
}

// row returns the next row of columns, an error in the row, or an error in the file.
func (f *file) row(columns []*column) (record jsonread.Value, wrong, err error) {
	cells, count, bytes := make([][]cell, len(columns)), 0, 0
	for i, c := range columns {
		for {
			x, more, err := c.peek()
			if err != nil {
				return record, nil, err
			}
			if first := len(cells[i]) == 0; first && (!more || x.rep != 0) {
				return record, nil, fmt.Errorf("column %q ends before this row", c.node.path)
			} else if !first && (!more || x.rep == 0) {
				break
			}
			count, bytes = count+1, bytes+len(x.text)
			if count > jsonread.MaxValues || bytes > maxRow {
				return record, nil, fmt.Errorf("more than %d values or %d bytes", jsonread.MaxValues, maxRow)
			}
			if wrong == nil && !utf8.ValidString(x.text) {
				wrong = fmt.Errorf("%q is not UTF-8", c.node.path)
			}
			cells[i], c.has = append(cells[i], *x), false
		}
	}
	record, err = f.root.group(cells)
	return record, wrong, err
}

// group returns a struct, given the cells of each column below it.
func (n *node) group(cells [][]cell) (v jsonread.Value, err error) {
	v.Kind = jsonread.Object
	for _, f := range n.fields {
		x, err := f.field(cells[:f.leaves])
		if err != nil {
			return v, err
		}
		v.Pairs = append(v.Pairs, jsonread.Pair{Key: f.name, Value: x})
		cells = cells[f.leaves:]
	}
	return v, nil
}

// field returns the value of a field, which is an array if the field is repeated.
func (n *node) field(cells [][]cell) (v jsonread.Value, err error) {
	if n.repeat != repeated {
		if cells[0][0].def < n.def {
			return jsonread.Value{Kind: jsonread.Null}, nil
		}
		return n.value(cells)
	}
	v.Kind = jsonread.Array
	if cells[0][0].def < n.def {
		return v, nil
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
				return v, fmt.Errorf("column %q: its fields have different numbers of items", n.path)
			}
			item[i], rest[i] = column[:end], column[end:]
		}
		x, err := n.item(item)
		if err != nil {
			return v, err
		}
		v.Items = append(v.Items, x)
	}
	for _, column := range rest {
		if len(column) > 0 {
			return v, fmt.Errorf("column %q: its fields have different numbers of items", n.path)
		}
	}
	return v, nil
}

func (n *node) item(cells [][]cell) (jsonread.Value, error) {
	if n.unwrap {
		return n.fields[0].field(cells)
	}
	return n.value(cells)
}

// value returns a value that is not null.
func (n *node) value(cells [][]cell) (v jsonread.Value, err error) {
	switch {
	case n.leaf < 0 && n.list:
		return n.fields[0].field(cells)
	case n.leaf < 0 && n.pairs:
		return n.object(cells)
	case n.leaf < 0:
		return n.group(cells)
	}
	v.Kind, err = n.kind()
	v.Text = cells[0][0].text
	if v.Kind == jsonread.Bool {
		v.True, v.Text = v.Text == "true", ""
	}
	return v, err
}

// object returns a map as an object.
func (n *node) object(cells [][]cell) (v jsonread.Value, err error) {
	list, err := n.fields[0].field(cells)
	if err != nil {
		return v, err
	}
	v.Kind = jsonread.Object
	seen := map[string]bool{}
	for _, pair := range list.Items {
		key := pair.Pairs[0].Value
		if key.Kind != jsonread.String || seen[key.Text] {
			return v, fmt.Errorf("column %q: a map's keys are not strings, each of which occurs once", n.path)
		}
		seen[key.Text] = true
		v.Pairs = append(v.Pairs, jsonread.Pair{Key: key.Text, Value: pair.Pairs[1].Value})
	}
	return v, nil
}
