package parquet

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"zeroth/internal/input/jsonread"
	"zeroth/tests/nightly"
)

// plainOf converts a value to the form that encoding/json produces.
func plainOf(t *testing.T, v jsonread.Value) any {
	t.Helper()
	switch v.Kind {
	case jsonread.String:
		return v.Text
	case jsonread.Bool:
		return v.True
	case jsonread.Number:
		return json.Number(v.Text)
	case jsonread.Array:
		all := []any{}
		for _, x := range v.Items {
			all = append(all, plainOf(t, x))
		}
		return all
	case jsonread.Object:
		all := map[string]any{}
		for _, p := range v.Pairs {
			all[p.Key] = plainOf(t, p.Value)
		}
		return all
	case jsonread.Null:
		return nil
	}
	t.Fatalf("a value of kind %v", v.Kind)
	return nil
}

// only chooses columns by their names, whether the file has them or not.
func only(names ...string) func([]string) ([]string, error) {
	return func([]string) ([]string, error) { return names, nil }
}

// rowsOf reads columns of a fixture.
func rowsOf(t *testing.T, raw []byte, names ...string) (rows []any, err error) {
	t.Helper()
	err = Rows(t.Context(), bytes.NewReader(raw), int64(len(raw)), only(names...), func(row int, v jsonread.Value, wrong error) {
		if wrong != nil || row != len(rows)+1 {
			t.Fatalf("row %d after %d: %v", row, len(rows), wrong)
		}
		rows = append(rows, plainOf(t, v))
	})
	return rows, err
}

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestFixtures compares every column of every fixture with the values its writer read back:
// all codecs, both page versions, all encodings, lists from three writers.
func TestFixtures(t *testing.T) {
	d := json.NewDecoder(bytes.NewReader(fixture(t, "expect.json")))
	d.UseNumber()
	var expect map[string]any
	if err := d.Decode(&expect); err != nil {
		t.Fatal(err)
	}
	plain := expect["plain"].([]any)
	for name, x := range expect {
		want, isList := x.([]any)
		if !isList {
			want = expect[x.(string)].([]any)
		}
		var all []string
		like := plain
		if len(want) > 0 {
			like = want
		}
		for key := range like[0].(map[string]any) {
			all = append(all, key)
		}
		slices.Sort(all)
		got, err := rowsOf(t, fixture(t, name+".parquet"), all...)
		if err != nil || len(got) != len(want) {
			t.Errorf("%s: %d rows, want %d: %v", name, len(got), len(want), err)
			continue
		}
		for i := range want {
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("%s: row %d is\n%v, want\n%v", name, i+1, got[i], want[i])
			}
		}
		for _, key := range all { // each separately
			one, err := rowsOf(t, fixture(t, name+".parquet"), key)
			if err != nil || len(one) != len(want) {
				t.Fatalf("%s: column %s: %v", name, key, err)
			}
			for i := range want {
				if w := want[i].(map[string]any)[key]; !reflect.DeepEqual(one[i].(map[string]any)[key], w) {
					t.Fatalf("%s: row %d has %s %v, want %v", name, i+1, key, one[i], w)
				}
			}
		}
	}
}

// TestLongDeltas reads many blocks of differences, including negative ones.
func TestLongDeltas(t *testing.T) {
	words := []string{"", "a", "ab", "abc", "Grüße", "naïve ☃", strings.Repeat("x", 90), "abcdabcdabcd"}
	got, err := rowsOf(t, fixture(t, "long.parquet"), "text", "id")
	if err != nil || len(got) != 3000 {
		t.Fatal(len(got), err)
	}
	for i, row := range got {
		text := words[i%len(words)]
		if i%3 > 0 {
			text += fmt.Sprint(i)
		}
		want := map[string]any{"text": strings.Repeat(text, i%5), "id": json.Number(fmt.Sprint(i * 7919 % 100_003 * (1 - i%2*2)))}
		if !reflect.DeepEqual(row, want) {
			t.Fatalf("row %d is %v, want %v", i+1, row, want)
		}
	}
}

// TestMaps checks that maps are read as objects.
func TestMaps(t *testing.T) {
	got, err := rowsOf(t, fixture(t, "map.parquet"), "map", "deep")
	want := []any{
		map[string]any{"map": map[string]any{"k": "v", "é": nil}, "deep": []any{map[string]any{"m": map[string]any{"a": map[string]any{"x": json.Number("1")}, "b": map[string]any{}}}}},
		map[string]any{"map": nil, "deep": []any{}},
		map[string]any{"map": map[string]any{}, "deep": nil},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// TestRefusals checks that the errors name what is not supported.
func TestRefusals(t *testing.T) {
	raw := fixture(t, "plain.parquet")
	cut := raw[:len(raw)-20]
	for _, c := range []struct {
		what string
		raw  []byte
		name string
		want string
	}{
		{"brotli", fixture(t, "brotli.parquet"), "text", `column "text": compression with brotli is not supported; write the file with zstd, gzip, snappy or none`},
		{"dates", fixture(t, "dates.parquet"), "when", `column "when" contains dates, decimals or another kind`},
		{"a map of numbers", fixture(t, "map.parquet"), "numbers", `row 1: column "numbers": a map's keys are not strings, each of which occurs once`},
		{"a key twice", fixture(t, "map.parquet"), "twice", `row 1: column "twice": a map's keys`},
		{"split bytes", fixture(t, "split.parquet"), "text", "values of physical type 5 in encoding 9 are not supported"},
		{"no column", raw, "txt", `no column "txt"; the file has the columns "text", "maybe", "id", "small"`},
		{"cut", cut, "text", "no parquet magic"},
		{"short", []byte("PAR1"), "text", "4 bytes are too short for a parquet file"},
		{"encrypted", append([]byte("PAR1\x00\x00\x00\x00"), "\x00\x00\x00\x00PARE"...), "text", "encrypted"},
		{"a long footer", append([]byte("PAR1xxxx"), "\xff\xff\xff\x7fPAR1"...), "text", "a footer of 2147483647 bytes in a file of 16"},
	} {
		_, err := rowsOf(t, c.raw, c.name)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.what, err, c.want)
		}
	}
}

// TestFlippedBits flips bits: nothing panics or allocates much memory, and with page checksums
// a page is either read correctly or refused.
func TestFlippedBits(t *testing.T) {
	nightly.Long(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"v2-snappy", "snappy", "gzip", "zstd", "delta", "polars", "duckdb", "many"} {
		raw := fixture(t, name+".parquet")
		names := []string{"text"}
		if name != "many" {
			names = []string{"text", "maybe", "id", "messages"}
		}
		want := digest(t, raw, names)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 150 {
			bad := slices.Clone(raw)
			at := 4 + rng.IntN(len(bad)-12)
			bad[at] ^= 1 << rng.IntN(8)
			got := digest(t, bad, names)
			pages := len(raw) - 8 - int(binary.LittleEndian.Uint32(raw[len(raw)-8:]))
			if summed := strings.HasSuffix(name, "snappy"); summed && got != want && !strings.HasPrefix(got, "error") && at < pages {
				t.Errorf("%s: different rows after flipping byte %d", name, at)
			}
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 4<<30 {
			t.Errorf("%s: %d bytes were allocated", name, took)
		}
	}
}

// digest returns a checksum of the rows, or the error.
func digest(t *testing.T, raw []byte, names []string) string {
	t.Helper()
	h := fnv.New64()
	err := Rows(t.Context(), bytes.NewReader(raw), int64(len(raw)), only(names...), func(row int, v jsonread.Value, wrong error) {
		fmt.Fprint(h, v, wrong)
	})
	if err != nil {
		return "error: " + err.Error()
	}
	return fmt.Sprintf("%x", h.Sum64())
}

// TestLimits checks that sizes in a file are compared with limits before memory is allocated.
func TestLimits(t *testing.T) {
	attempt := func(f func()) (err error) {
		defer func() { err, _ = recover().(error) }()
		f()
		return nil
	}
	c := &column{node: &node{element: element{physical: int(byteArray), converted: -1, logic: -1}}}
	if attempt(func() { c.newValues(deltaLengthBytes, []byte{0x80, 1, 4, 0xff, 0xff, 0xff, 0xff, 7, 0}, 100) }) == nil {
		t.Error("more lengths than values")
	}
	if attempt(func() { c.newValues(deltaBytes, []byte{0x80, 1, 4, 1, 10, 0x80, 1, 4, 1, 0}, 100).next() }) == nil {
		t.Error("a prefix longer than the previous string")
	}
	for _, h := range []hybrid{{b: []byte{}, width: 1}, {b: []byte{2}, width: 9}, {b: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 1}, width: 1}, {b: []byte{3}, width: 33}} {
		if err := attempt(func() { h.next() }); err != (failure{errEnds}) {
			t.Errorf("%+v: %v", h, err)
		}
	}
	d := decoder{b: []byte{0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 7}}
	d.fields(kindStruct, func(_ int, kind byte) bool { d.list(kind, func(byte) { t.Error("an item") }); return true })
	if !d.short {
		t.Error("a list of more items than bytes")
	}
	deep := decoder{b: bytes.Repeat([]byte{0x1c}, 1000)}
	deep.skip(kindStruct)
	if deep.err == nil || !strings.Contains(deep.err.Error(), "more than 32 deep") {
		t.Errorf("%v", deep.err)
	}
	page := &column{page: nil, chunk: chunk{codec: 6}}
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	zeros := e.EncodeAll(make([]byte, 1<<20), nil)
	if err := page.unpack(zeros, 10, false); err == nil || !strings.Contains(err.Error(), "unpacks to more") {
		t.Errorf("%v", err)
	}
	if err := page.unpack(zeros, 1<<20, false); err != nil {
		t.Error(err)
	}
}

func TestCancelled(t *testing.T) {
	raw := fixture(t, "plain.parquet")
	ctx, cancel := context.WithCancelCause(t.Context())
	n, why := 0, errors.New("enough")
	err := Rows(ctx, bytes.NewReader(raw), int64(len(raw)), only("text"), func(int, jsonread.Value, error) {
		if n++; n == 3 {
			cancel(why)
		}
	})
	if n != 3 || err != why {
		t.Errorf("%d rows, %v", n, err)
	}
}

func FuzzRows(f *testing.F) {
	for _, name := range []string{"many", "polars", "duckdb", "split", "brotli"} {
		f.Add(fixture(f, name+".parquet"))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		rows := 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_ = Rows(ctx, bytes.NewReader(raw), int64(len(raw)), only("text"), func(int, jsonread.Value, error) {
			if rows++; rows > 10_000 {
				cancel()
			}
		})
	})
}
