package parquet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	reference "github.com/parquet-go/parquet-go"

	"zeroth/data/parquet"
	"zeroth/internal/input/jsonread"
)

const (
	long     = 1 << 20 // bytes of a text
	rows     = 128
	mostTake = 16 * long // bytes that a text of that length may need
)

// allocated is the bytes that f takes from memory, given back or not, with nothing in
// pools before.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // the first keeps what was in pools for the second
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// firstRow is the first row of a file as the program reads it.
func firstRow(file []byte) (text string, err error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	err = parquet.Rows(ctx, bytes.NewReader(file), int64(len(file)), func([]string) ([]string, error) { return []string{"text"}, nil }, func(_ int, record jsonread.Value, wrong error) {
		text = record.Get("text").Text
		stop()
	})
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return text, err
}

// referenceRow is the first row as parquet-go reads it.
func referenceRow(file []byte) (text string, err error) {
	f, err := reference.OpenFile(bytes.NewReader(file), int64(len(file)), reference.SkipPageIndex(true), reference.SkipBloomFilters(true))
	if err != nil {
		return "", err
	}
	all := f.RowGroups()[0].Rows()
	defer all.Close()
	row := make([]reference.Row, 1)
	if n, err := all.ReadRows(row); n < 1 {
		return "", errors.Join(err, io.ErrUnexpectedEOF)
	}
	return row[0][0].String(), nil
}

// repeated is a file of one page, in which each text says that it begins as the one
// before: each has the same bytes, which the page has once, and compressed.
func repeated(t *testing.T) []byte {
	type record struct {
		Text string `parquet:"text,delta,zstd"`
	}
	var file bytes.Buffer
	w := reference.NewGenericWriter[record](&file, reference.PageBufferSize(2*rows*long), reference.DataPageStatistics(false), reference.SkipPageBounds("text"))
	text := strings.Repeat("x", long)
	for range rows {
		if _, err := w.Write([]record{{text}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// TestPageOfPrefixes checks a page with an honest, small header and footer that expands to as many
// bytes as its values demand. parquet-go decodes a page at once; the program's reader decodes a
// row.
func TestPageOfPrefixes(t *testing.T) {
	file := repeated(t)
	f, err := reference.OpenFile(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range f.Metadata().RowGroups {
		if c := g.Columns[0].MetaData; c.NumValues != rows || c.TotalUncompressedSize > 2*long || len(file) > 4096 {
			t.Fatalf("%d values, %d bytes, %d in a file of %d: a check of headers would refuse it", c.NumValues, c.TotalUncompressedSize, c.TotalCompressedSize, len(file))
		}
	}
	for name, c := range map[string]struct {
		read        func([]byte) (string, error)
		least, most int
	}{
		"parquet-go": {referenceRow, rows * long, 1 << 40},
		"zeroth":     {firstRow, 0, mostTake},
	} {
		var text string
		var err error
		n := allocated(func() { text, err = c.read(file) })
		t.Logf("%s: %d bytes for the first row of a file of %d", name, n, len(file))
		if err != nil || len(text) != long || n < c.least || n > c.most {
			t.Errorf("%s: a text of %d bytes, %v; %d bytes allocated, want from %d to %d", name, len(text), err, n, c.least, c.most)
		}
	}
}

// TestFooterOfLists checks a footer of a few bytes that announces a list of a million items, for
// which parquet-go allocates memory.
func TestFooterOfLists(t *testing.T) {
	const items = 1 << 20
	footer := []byte{0x15, 2, 0x19, 0xfc} // version 1; a list of structs: the schema
	footer = binary.AppendUvarint(footer, items)
	file := append([]byte("PAR1"), footer...)
	file = binary.LittleEndian.AppendUint32(file, uint32(len(footer)))
	file = append(file, "PAR1"...)
	for name, c := range map[string]struct {
		read        func([]byte) (string, error)
		least, most int
	}{
		"parquet-go": {referenceRow, 64 * items, 1 << 40},
		"zeroth":     {firstRow, 0, 1 << 16},
	} {
		var err error
		n := allocated(func() { _, err = c.read(file) })
		t.Logf("%s: %d bytes for a file of %d", name, n, len(file))
		if err == nil || n < c.least || n > c.most {
			t.Errorf("%s: %v; %d bytes allocated, want from %d to %d", name, err, n, c.least, c.most)
		}
	}
}
