// Package parquet reads rows of a Parquet file (apache/parquet-format 2.11) as records
// of JSON, by the file's own schema, of the columns that are asked for: texts, numbers
// and truths, in structs and lists to any depth that other programs write.
//
// A file may come from anybody. Nothing is allocated before it is compared with a limit
// or with the bytes there are; what is held at a time is, of each column, a page (at
// most 128 MiB, compressed and not) and its dictionary (32 MiB). Pages are plain or
// compressed with snappy, gzip or zstd; values are plain, by dictionary, or by one of
// the encodings of differences. Anything else is refused by name.
//
// It is a reader of our own because parquet-go decodes a page at once: a page of a few
// hundred bytes whose texts begin as the one before becomes gigabytes, though its header
// says the truth. `cd tests/interop/parquet && go test ./...` measures both readers.
package parquet

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"unicode/utf8"

	"zeroth/input/jsonread"
)

// What a file may have.
const (
	maxFooter     = 16 << 20  // bytes
	maxColumns    = 10_000    // of which few are read
	maxPage       = 128 << 20 // bytes
	maxDictionary = 32 << 20  // bytes
	maxValues     = 1 << 24   // of a page
	maxRow        = 64 << 20  // bytes of text
)

const magic = "PAR1"

// file is what is read of a footer.
type file struct {
	root    *node
	columns []*node // those that are asked for
	groups  []group
}

// group is some rows.
type group struct {
	rows   int64
	chunks []chunk // of each of the columns
}

// Rows calls tell with every row of a file, from 1 on: as an object of the columns of
// these names, which have to be there, or why it is none. What is wrong with the file
// is returned.
func Rows(ctx context.Context, r io.ReaderAt, size int64, names []string, tell func(row int, record jsonread.Value, wrong error)) error {
	f, err := open(r, size, names)
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
			tell(row, record, wrong)
		}
		for _, c := range columns {
			if _, more, err := c.peek(); err != nil {
				return err
			} else if more {
				return fmt.Errorf("column %q has more than the %d rows of a group", c.node.path, g.rows)
			}
		}
	}
	return nil
}

func open(r io.ReaderAt, size int64, names []string) (*file, error) {
	var ends [12]byte
	if size < int64(len(ends)) {
		return nil, fmt.Errorf("%d bytes are no parquet file", size)
	}
	if _, err := r.ReadAt(ends[:4], 0); err != nil {
		return nil, err
	}
	if _, err := r.ReadAt(ends[4:], size-8); err != nil {
		return nil, err
	}
	if string(ends[8:]) == "PARE" {
		return nil, fmt.Errorf("it is encrypted, which is not read")
	}
	if string(ends[:4]) != magic || string(ends[8:]) != magic {
		return nil, fmt.Errorf("it does not end as a parquet file does; was it written to its end?")
	}
	n := int64(binary.LittleEndian.Uint32(ends[4:]))
	if n > maxFooter || n > size-int64(len(ends)) {
		return nil, fmt.Errorf("a footer of %d bytes in a file of %d; at most %d are read", n, size, maxFooter)
	}
	footer := make([]byte, n)
	if _, err := r.ReadAt(footer, size-8-n); err != nil {
		return nil, err
	}
	f := &file{}
	if err := f.read(footer, size-8-n, names); err != nil {
		return nil, err
	}
	return f, nil
}

// read takes a footer apart; pages are before byte end.
func (f *file) read(footer []byte, end int64, names []string) error {
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
				wrong = f.schema(all, names)
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
			wrong = fmt.Errorf("it is encrypted, which is not read")
		default:
			return false
		}
		return true
	})
	if wrong == nil && d.err == nil && f.root == nil {
		wrong = fmt.Errorf("it has no schema")
	}
	if wrong == nil && d.err != nil {
		wrong = fmt.Errorf("its footer: %w", d.err)
	}
	return wrong
}

// schema finds the columns of the names, which become the root's fields.
func (f *file) schema(all []element, names []string) (err error) {
	columns := 0
	if f.root, err = tree(&all, nil, &columns, 0); err != nil {
		return err
	}
	if len(all) > 0 || f.root.leaves == 0 {
		return fmt.Errorf("a schema of %d columns and %d fields that belong to none", f.root.leaves, len(all))
	}
	var fields []*node
	for _, name := range names {
		var found *node
		for _, n := range f.root.fields {
			if n.name == name && found == nil {
				found = n
			} else if n.name == name {
				return fmt.Errorf("it has two columns %.40q", name)
			}
		}
		if found == nil {
			return fmt.Errorf("it has no column %.40q; it has %s", name, f.root.names())
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

// group reads a row group.
func (f *file) group(d *decoder, kind byte, end int64) (wrong error) {
	if f.root == nil {
		return fmt.Errorf("rows come before the schema")
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
							wrong = fmt.Errorf("column %q has %d values in %d bytes from byte %d of a file with pages up to byte %d", n.path, k.values, k.size, k.start, end)
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
		return fmt.Errorf("a group of %d rows has %d columns, of %d", g.rows, at, f.root.leaves)
	}
	f.groups = append(f.groups, g)
	return nil
}

// read reads where a column's pages are.
func (k *chunk) read(d *decoder, kind byte) (wrong error) {
	var data, dictionary int64
	d.fields(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			if name := d.text(kind); name != "" {
				wrong = fmt.Errorf("its columns are in another file, %.80q", name)
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
			wrong = fmt.Errorf("it has encrypted columns, which are not read")
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

// row is the next row of columns, or what is wrong with it or with the file.
func (f *file) row(columns []*column) (record jsonread.Value, wrong, err error) {
	cells, count, bytes := make([][]cell, len(columns)), 0, 0
	for i, c := range columns {
		for {
			x, more, err := c.peek()
			if err != nil {
				return record, nil, err
			}
			if first := len(cells[i]) == 0; first && (!more || x.rep != 0) {
				return record, nil, fmt.Errorf("column %q has no such row", c.node.path)
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

// group is a struct of cells, those of each column below it.
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

// field is a field's value: an array where it is repeated.
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

// value is one that is there.
func (n *node) value(cells [][]cell) (v jsonread.Value, err error) {
	switch {
	case n.leaf < 0 && n.list:
		return n.fields[0].field(cells)
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
