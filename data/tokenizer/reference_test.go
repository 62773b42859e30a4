package tokenizer

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/tests/nightly"
)

// testdata/reference.py records, as checksums, the reference's ids of testdata/strings.gz and
// the texts it decodes from ids; see there.

func gunzip(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func unpack(t testing.TB, b []byte) (all [][]byte) {
	t.Helper()
	for len(b) > 0 {
		n := binary.LittleEndian.Uint32(b)
		all, b = append(all, b[4:4+n]), b[4+n:]
	}
	return all
}

func sumIDs(ids []uint32) uint32 {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return crc32.ChecksumIEEE(b)
}

// around returns the ids of a text with the tokens the template puts around it.
func (t *Tokenizer) around(text []byte) []uint32 {
	return slices.Concat(t.before, t.Encode(text), t.after)
}

func signed(ids []uint32) []int32 {
	out := make([]int32, len(ids))
	for i, id := range ids {
		out[i] = int32(id)
	}
	return out
}

// compare counts differences between a tokenizer and the reference, and reports the first ones.
func compare(t *testing.T, tok *Tokenizer, texts [][]byte, want []byte) (encoded, decoded, drawn int) {
	t.Helper()
	sum := func(i int) uint32 { return binary.LittleEndian.Uint32(want[4*i:]) }
	e := tok.NewEncoder()
	for i, text := range texts {
		plain := e.Append(nil, text, false)
		ids := slices.Concat(tok.before, plain, tok.after)
		if sumIDs(ids) != sum(2*i) {
			if encoded++; encoded <= 3 {
				t.Errorf("encode %.200q: %.40v", text, tok.written(ids))
			}
		}
		if back := tok.Decode(signed(plain), false); crc32.ChecksumIEEE([]byte(back)) != sum(2*i+1) {
			if decoded++; decoded <= 3 {
				t.Errorf("decode %.40v: %.200q", tok.written(plain), back)
			}
		}
	}
	x := uint64(1)
	for i := range texts {
		ids := make([]int32, 12)
		for k := range ids {
			x = x*6364136223846793005 + 1442695040888963407
			ids[k] = int32((x >> 33) % uint64(tok.Vocab()))
		}
		if text := tok.Decode(ids, true); crc32.ChecksumIEEE([]byte(text)) != sum(2*len(texts)+i) {
			if drawn++; drawn <= 3 {
				t.Errorf("decode %v: %q", ids, text)
			}
		}
	}
	return encoded, decoded, drawn
}

func (t *Tokenizer) written(ids []uint32) (tokens []string) {
	for _, id := range ids {
		tokens = append(tokens, t.Token(int32(id)))
	}
	return tokens
}

// TestReference compares small tokenizers in the manner of every family with the reference, both
// encoding and decoding.
func TestReference(t *testing.T) {
	nightly.Long(t)
	texts := unpack(t, gunzip(t, "testdata/strings.gz"))
	all, err := filepath.Glob("testdata/*.json.gz")
	if err != nil || len(all) < 18 || len(texts) != 2000 {
		t.Fatal(len(all), len(texts), err)
	}
	for _, path := range all {
		name := strings.TrimSuffix(path, ".json.gz")
		t.Run(filepath.Base(name), func(t *testing.T) {
			tok, err := Parse(gunzip(t, path))
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(name + ".ref")
			if err != nil || len(want) != 12*len(texts) {
				t.Fatal(len(want), err)
			}
			if a, b, c := compare(t, tok, texts, want); a+b+c > 0 {
				t.Errorf("%d ids and %d texts of %d differ, and %d texts of drawn ids", a, b, len(texts), c)
			}
		})
	}
}

// TestParts checks that splitting a text where Cut says does not change its ids.
func TestParts(t *testing.T) {
	nightly.Long(t)
	texts := unpack(t, gunzip(t, "testdata/strings.gz"))
	whole := bytes.Join(texts, []byte("word and "))
	all, err := filepath.Glob("testdata/*.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		tok, err := Parse(gunzip(t, path))
		if err != nil {
			t.Fatal(err)
		}
		e, parts := tok.NewEncoder(), 0
		var ids []uint32
		for rest := whole; len(rest) > 0; parts++ {
			n := tok.Cut(rest, 10)
			ids = e.Append(ids, rest[:n], parts > 0)
			rest = rest[n:]
		}
		if !slices.Equal(ids, tok.Encode(whole)) {
			t.Errorf("%s: different ids in %d parts", path, parts)
		}
		one := strings.Contains(path, "never0") || strings.Contains(path, "strip") || strings.Contains(path, "unigrambytes") // a mark in the text may begin a token
		if !one && parts < 100 {
			t.Errorf("%s: %d parts", path, parts)
		}
	}
}

// real runs f for the tokenizers in ZEROTH_TOKENIZERS, a folder prepared by
// testdata/reference.py.
func real(t testing.TB, f func(name, folder string, tok *Tokenizer)) {
	dir := os.Getenv("ZEROTH_TOKENIZERS")
	if dir == "" {
		t.Skip("set ZEROTH_TOKENIZERS to a folder of tokenizers")
	}
	all, err := filepath.Glob(filepath.Join(dir, "*", "tokenizer.json"))
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		f(filepath.Base(filepath.Dir(path)), filepath.Dir(path), tok)
	}
}

// TestRealTokenizers compares complete vocabularies with the reference.
func TestRealTokenizers(t *testing.T) {
	dir := os.Getenv("ZEROTH_TOKENIZERS")
	real(t, func(name, folder string, tok *Tokenizer) {
		packed, err := os.ReadFile(filepath.Join(dir, "strings.bin"))
		if err != nil {
			t.Fatal(err)
		}
		texts := unpack(t, packed)
		want, err := os.ReadFile(filepath.Join(folder, "reference.bin"))
		if err != nil {
			t.Fatal(err)
		}
		a, b, c := compare(t, tok, texts, want)
		t.Logf("%s: of %d strings %d ids and %d texts differ, and %d texts of drawn ids", name, len(texts), a, b, c)
		if text, err := os.ReadFile(filepath.Join(dir, "text.txt")); err == nil {
			ids := tok.around(text)
			same := sumIDs(ids) == binary.LittleEndian.Uint32(want[12*len(texts):])
			t.Logf("%s: %d bytes of text, %d tokens, equal: %v", name, len(text), len(ids), same)
			if !same {
				t.Errorf("%s: different ids for text.txt", name)
			}
		}
	})
}

// TestDrawnTokenizers checks that each tokenizer generated by testdata/reference.py is either
// refused or agrees with the reference.
func TestDrawnTokenizers(t *testing.T) {
	dir := os.Getenv("ZEROTH_DRAWN_TOKENIZERS")
	if dir == "" {
		t.Skip("set ZEROTH_DRAWN_TOKENIZERS to a folder of tokenizers")
	}
	all, err := filepath.Glob(filepath.Join(dir, "*", "tokenizer.json"))
	packed, wrong := os.ReadFile(filepath.Join(dir, "strings.bin"))
	if err != nil || wrong != nil || len(all) == 0 {
		t.Fatal(len(all), err, wrong)
	}
	texts := unpack(t, packed)
	read, refused, alone := 0, 0, 0
	for _, path := range all {
		folder := filepath.Dir(path)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := Parse(text)
		why, _ := os.ReadFile(filepath.Join(folder, "refused"))
		switch {
		case err != nil:
			refused++
			t.Logf("%s: refused: %v (the reference: %q)", folder, err, why)
			continue
		case why != nil:
			alone++
			t.Logf("%s: only the reference refuses: %s", folder, why)
			continue
		}
		read++
		want, err := os.ReadFile(filepath.Join(folder, "reference.bin"))
		if err != nil {
			t.Fatal(err)
		}
		if a, b, c := compare(t, tok, texts, want); a+b+c > 0 {
			t.Errorf("%s: %d ids and %d texts of %d differ, and %d texts of drawn ids", folder, a, b, len(texts), c)
		}
	}
	t.Logf("%d tokenizers: %d read, %d refused, %d refused only by the reference", len(all), read, refused, alone)
}

func BenchmarkParse(b *testing.B) {
	all, _ := filepath.Glob(filepath.Join(os.Getenv("ZEROTH_TOKENIZERS"), "*", "tokenizer.json"))
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(filepath.Base(filepath.Dir(path)), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := Parse(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
