package data

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/data/tokenizer"
)

// llmcFile returns a token file as written by llm.c's data scripts.
func llmcFile(magic, version uint32, width int, claimed int, ids ...uint32) string {
	b := make([]byte, headerBytes)
	binary.LittleEndian.PutUint32(b[0:], magic)
	binary.LittleEndian.PutUint32(b[4:], version)
	binary.LittleEndian.PutUint32(b[8:], uint32(claimed))
	return string(b) + string(littleEndian(ids, width))
}

// TestTokenFileBytes checks the three formats byte for byte.
func TestTokenFileBytes(t *testing.T) {
	zeros := strings.Repeat("\x00", 253*4)
	for name, c := range map[string]struct {
		bytes string
		want  []int32
	}{
		"llm.c gpt2":  {"\x88\xd8\x34\x01\x01\x00\x00\x00\x03\x00\x00\x00" + zeros + "\x50\xc4\x0f\x00\xff\x01", []int32{50256, 15, 511}},
		"llm.c llama": {"\xa1\xd9\x34\x01\x07\x00\x00\x00\x02\x00\x00\x00" + zeros + "\x00\xf4\x01\x00\x01\x00\x00\x00", []int32{128000, 1}},
		"nanoGPT":     {"\x50\xc4\x0f\x00\xff\x01", []int32{50256, 15, 511}},
	} {
		dir := tree(t, map[string]string{"x.bin": c.bytes})
		set := open(t, Source{Tokens: []string{"x.bin"}, Dir: dir, Context: 1})
		if !slices.Equal(all(set), c.want) {
			t.Errorf("%s: %v, want %v", name, all(set), c.want)
		}
		if set.Vocab != int(slices.Max(c.want))+1 || set.Tokenizer != nil {
			t.Errorf("%s: vocabulary %d", name, set.Vocab)
		}
	}
}

func TestTokenFilesAreJoined(t *testing.T) {
	dir := tree(t, map[string]string{
		"1.bin": string(littleEndian([]uint32{1, 2, 3}, 2)),
		"2.bin": llmcFile(20240801, 7, 4, 2, 4, 100000),
		"3.bin": llmcFile(20240520, 1, 2, 1, 6),
	})
	done := int64(0)
	set := open(t, Source{Tokens: []string{"*.bin"}, Dir: dir, Context: 2, Progress: func(d, _ int64) { done = d }})
	if want := []int32{1, 2, 3, 4, 100000, 6}; !slices.Equal(all(set), want) || done != 3*2+2*4+2 {
		t.Errorf("%v, want %v; progress %d", all(set), want, done)
	}
	input, target := make([]int32, 4), make([]int32, 4)
	(&Split{corpus: set.Train.corpus, context: 2, stretches: set.Train.stretches}).Batch(Tokens(input, target, nil), 0)
	if !slices.Equal(input, []int32{1, 2, 3, 4}) || !slices.Equal(target, []int32{2, 3, 4, 100000}) {
		t.Errorf("input %v, target %v", input, target)
	}
}

func TestBrokenTokenFiles(t *testing.T) {
	far := make([]uint32, blockBytes/2+100)
	for i := range far {
		far[i] = 7 // as zeros could be of any type
	}
	far[blockBytes/2+7] = 50257
	for i, c := range []struct {
		bytes string
		vocab int
	}{
		{"", 0},
		{"abc", 0},
		{llmcFile(20240520, 1, 2, 3, 1, 2), 0},
		{llmcFile(20240520, 1, 2, 1, 1, 2), 0},
		{llmcFile(20240520, 1, 2, 0), 0},
		{llmcFile(20240520, 1, 2, -1), 0},
		{llmcFile(20240801, 7, 4, 2, 1), 0},
		{llmcFile(20240520, 2, 2, 1, 1), 0},
		{llmcFile(20240520, 1, 2, 1, 1)[:100], 0},
		{llmcFile(20240520, 1, 2, 4, 1, 256, 300, 2), 256},
		{llmcFile(20240801, 7, 4, 2, 1, 1<<31), 0},
		{string(littleEndian(far, 2)), 50257},
	} {
		dir := tree(t, map[string]string{"bad.bin": c.bytes, "good.bin": "\x01\x00\x02\x00"})
		_, err := Open(t.Context(), Source{Tokens: []string{"*.bin"}, Dir: dir, Context: 1, Vocab: c.vocab})
		said.Same(t, fmt.Sprint(i), err)
	}
}

// wideFile returns ids in a type of 2, 4 or 8 bytes, without a header.
func wideFile(width int, ids ...int64) string {
	var b []byte
	for _, id := range ids {
		b = append(b, binary.LittleEndian.AppendUint64(nil, uint64(id))[:width]...)
	}
	return string(b)
}

// TestWideTokenFiles checks that ids of more than two bytes are read if the job gives their
// type, and never misread as twice as many of two bytes.
func TestWideTokenFiles(t *testing.T) {
	small, large := []int64{15496, 995, 50256, 31373, 995, 11}, []int64{128000, 9906, 1917, 0, 0, 128001, 5}
	for _, c := range []struct {
		width int
		ids   []int64
		dtype string
		vocab int
		fails bool
	}{
		{2, small, "", 50257, false},
		{2, small, "uint16", 50257, false},
		{4, small, "", 50257, true},
		{8, small, "", 50257, true},
		{4, small, "", 0, true},
		{8, small, "", 0, true},
		{4, small, "uint32", 50257, false},
		{4, small, "int32", 50257, false},
		{8, small, "int64", 50257, false},
		{4, large, "", 128256, true},
		{8, large, "", 128256, true},
		{4, large, "int32", 128256, false},
		{8, large, "int64", 128256, false},
		{2, small, "", 128256, true},
		{2, small, "uint16", 128256, false},
		{4, small[:5], "int64", 50257, true},
		{2, small[:5], "uint32", 50257, true},
		{2, small, "uint32", 50257, true},
		{4, small, "int64", 50257, true},
		{8, []int64{5, -100, 7}, "int64", 50257, true},
		{4, []int64{5, -100, 7}, "int32", 50257, true},
		{2, []int64{0, 0, 0, 0}, "", 50257, true},
		{2, small, "uint8", 50257, true},
	} {
		dir := tree(t, map[string]string{"x.bin": wideFile(c.width, c.ids...)})
		set, err := Open(t.Context(), Source{Tokens: []string{"x.bin"}, Dir: dir, DType: c.dtype, Vocab: c.vocab, Context: 1})
		if said.Fails(t, fmt.Sprint(c.width, " bytes an id, ", c.dtype, ", vocabulary ", c.vocab, ", ", c.ids), err, c.fails); err != nil {
			continue
		}
		for i, id := range all(set) {
			if int64(id) != c.ids[i] || len(all(set)) != len(c.ids) {
				t.Errorf("%d bytes an id: %v, want %v", c.width, all(set), c.ids)
				break
			}
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}
	dir := tree(t, map[string]string{"x.bin": llmcFile(20240801, 7, 4, 2, 1, 2), "y.txt": "text"})
	for dtype, want := range map[string]string{"": "", "uint32": "", "int32": "", "uint16": "its llm.c header says ids of 4 bytes, but data.dtype is uint16", "int64": "is int64"} {
		set, err := Open(t.Context(), Source{Tokens: []string{"x.bin"}, Dir: dir, DType: dtype, Context: 1})
		if want == "" && (err != nil || !slices.Equal(all(set), []int32{1, 2})) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("with a header and %q: %v", dtype, err)
		}
		if err == nil {
			_ = set.Close() // only read from
		}
	}
	if _, err := (Source{Text: []string{"y.txt"}, Dir: dir, Tokenizer: "bytes", DType: "uint16", Context: 1}).Check(); !slices.Equal(problems(err), []string{"dtype"}) {
		t.Errorf("text with a dtype: %v", err)
	}
}

// FuzzTokenFile checks that any file is either refused, or has only ids in the vocabulary, as
// many as fit in it.
func FuzzTokenFile(f *testing.F) {
	f.Add(uint8(0), []byte(llmcFile(20240520, 1, 2, 3, 1, 2, 3)))
	f.Add(uint8(1), []byte(llmcFile(20240801, 7, 4, 2, 128000, 1)))
	f.Add(uint8(0), []byte(llmcFile(20240520, 1, 2, -1)))
	f.Add(uint8(3), []byte(wideFile(8, 1, 2, 3)))
	f.Add(uint8(0), []byte(wideFile(4, 1, 2, 3)))
	f.Add(uint8(0), []byte("\x93NUMPY"))
	dtypes := []string{"", "uint16", "uint32", "int64"}
	path := filepath.Join(f.TempDir(), "x.bin")
	f.Fuzz(func(t *testing.T, which uint8, content []byte) {
		write(t, path, string(content))
		set, err := Open(t.Context(), Source{Tokens: []string{path}, DType: dtypes[int(which)%len(dtypes)], Vocab: 50257, Context: 1})
		if err != nil {
			return
		}
		for _, id := range all(set) {
			if id < 0 || id >= 50257 {
				t.Fatalf("id %d", id)
			}
		}
		if set.Tokens < 2 || 2*set.Tokens > int64(len(content)) {
			t.Fatalf("%d tokens of %d bytes", set.Tokens, len(content))
		}
		if err := set.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestWideVocabulary covers ids of more than 16 bits, and a special token not spelled in the
// byte alphabet.
func TestWideVocabulary(t *testing.T) {
	ids := map[string]int{"ab": 70000, EndOfText: 70001, "<日 本>": 70002}
	for b, r := range tokenizer.Alphabet {
		ids[string(r)] = b
	}
	vocab, err := json.Marshal(ids)
	if err != nil {
		t.Fatal(err)
	}
	dir := tree(t, map[string]string{"x.txt": "abba"})
	writeFolder(t, filepath.Join(dir, "voc"), string(vocab), "a b\n")
	set := open(t, Source{Text: []string{"*.txt"}, Dir: dir, Tokenizer: filepath.Join(dir, "voc"), Context: 1})
	if want := []int32{70000, 'b', 'a', 70001}; !slices.Equal(all(set), want) || set.Vocab != 70003 {
		t.Errorf("%v, want %v; vocabulary %d", all(set), want, set.Vocab)
	}
	if got := string(set.Tokenizer.Decode([]int32{70002, 300, 70000})); got != "<日 本>\uFFFDab" {
		t.Errorf("%q", got)
	}
}
