package tokenizer

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"zeroth/internal/input/jsonread"
	"zeroth/tests/nightly"
)

// drawnSteps are decoders. A drawn decoder has some of them in any order.
var drawnSteps = []string{
	`{"type":"ByteLevel"}`, `{"type":"ByteFallback"}`, `{"type":"Fuse"}`, `{"type":"ByteFallback"}`, `{"type":"Fuse"}`,
	`{"type":"Replace","pattern":{"String":"▁"},"content":" "}`,
	`{"type":"Replace","pattern":{"String":"aab"},"content":"é"}`, `{"type":"Replace","pattern":{"String":"é"},"content":"a"}`, `{"type":"Replace","pattern":{"String":" a"},"content":""}`,
	`{"type":"Strip","content":" ","start":1,"stop":0}`, `{"type":"Strip","content":"a","start":2,"stop":3}`, `{"type":"Strip","content":"ab","start":0,"stop":2}`, `{"type":"Strip","content":"é","start":1,"stop":1}`,
	`{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}`, `{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":false}`, `{"type":"Metaspace","replacement":"aa"}`,
}

// drawnDecoder returns a tokenizer with every byte as a token, and the JSON of its decoder, "null" at
// times.
func drawnDecoder(t *testing.T, rng *rand.Rand) (*Tokenizer, string) {
	var steps, vocab []string
	for range rng.IntN(5) {
		steps = append(steps, drawnSteps[rng.IntN(len(drawnSteps))])
	}
	decoder := `{"type":"Sequence","decoders":[` + strings.Join(steps, ",") + `]}`
	if len(steps) == 0 {
		decoder = "null"
	}
	for b := range 256 {
		vocab = append(vocab, fmt.Sprintf(`"<0x%02X>":%d`, b, b))
	}
	for i, s := range []string{"a", "b", "aa", "aab", "ab", "▁", "▁a", "▁▁", "é", "Ã", "©", "Ġ", "Ń", " ", " a", "<0x", "41>", "ភ", "ba", "a▁", "�"} {
		vocab = append(vocab, fmt.Sprintf("%q:%d", s, 256+i))
	}
	tok, err := Parse([]byte(`{"version":"1.0","added_tokens":[{"id":277,"content":"</s>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}],
		"model":{"type":"BPE","byte_fallback":true,"merges":[],"vocab":{` + strings.Join(vocab, ",") + `}},"decoder":` + decoder + `}`))
	if err != nil {
		t.Fatal(decoder, err)
	}
	return tok, decoder
}

// drawIDs draws up to 60 ids: of single tokens, unknown ones, and of the bytes of characters, at times
// without the last.
func drawIDs(rng *rand.Rand, tok *Tokenizer) (ids []int32) {
	for range 1 + rng.IntN(20) {
		if rng.IntN(2) == 0 {
			ids = append(ids, int32(rng.IntN(tok.Vocab()+3))-1)
			continue
		}
		s := []string{"é", "ភ", "👩", "\n", "a", "\u00ad", "�", "\xff", "\xe0\x80"}[rng.IntN(9)]
		for _, b := range []byte(s[:max(1, len(s)-rng.IntN(8)/7)]) {
			if id := tok.fallback[b]; id >= 0 {
				ids = append(ids, int32(id))
			}
		}
	}
	return ids
}

// whole decodes all tokens at once, step by step, as the reference does.
func whole(t *testing.T, tok *Tokenizer, decoder jsonread.Value, ids []int32, plain bool) string {
	var tokens []string
	for _, id := range ids {
		if s := tok.Token(id); s != "" && !(plain && tok.specials[s]) {
			tokens = append(tokens, s)
		}
	}
	all := step{decoder, "decoder"}.steps("decoders")
	for _, s := range all {
		tokens = wholeStep(t, s, tokens)
	}
	return strings.Join(tokens, tok.separator)
}

func wholeStep(t *testing.T, s step, tokens []string) (out []string) {
	switch s.kind() {
	case "Fuse":
		return []string{strings.Join(tokens, "")}
	case "ByteLevel":
		var b []byte
		for _, s := range tokens {
			text, _ := Literal(s)
			b = append(b, text...)
		}
		return []string{valid(b)}
	case "ByteFallback":
		return wholeRuns(tokens)
	case "Replace":
		from, to := s.literal()
		for _, s := range tokens {
			out = append(out, strings.ReplaceAll(s, from, to))
		}
	case "Strip":
		content, start, stop := s.Get("content").Text, 0, 0
		fmt.Sscan(s.Get("start").Text, &start)
		fmt.Sscan(s.Get("stop").Text, &stop)
		for _, s := range tokens {
			for range start {
				s = strings.TrimPrefix(s, content)
			}
			for range stop {
				s = strings.TrimSuffix(s, content)
			}
			out = append(out, s)
		}
	case "Metaspace":
		m := readMetaspace(s)
		for i, s := range tokens {
			if i == 0 && m.scheme != "never" {
				s = strings.ReplaceAll(s, m.mark, "")
			}
			out = append(out, strings.ReplaceAll(s, m.mark, " "))
		}
	}
	return out
}

func wholeRuns(tokens []string) (out []string) {
	var run []byte
	for _, s := range append(tokens, "") {
		if b, ok := byteToken(s); ok {
			run = append(run, b)
			continue
		}
		if !utf8.Valid(run) {
			out = append(out, strings.Split(strings.Repeat("�", len(run)), "")...)
		} else if len(run) > 0 {
			out = append(out, string(run))
		}
		run, out = nil, append(out, s)
	}
	return out[:len(out)-1]
}

// TestDecoder checks that ids decoded one by one have the text of all decoded at once, in whole
// characters, with the decoders of all families and with drawn ones.
func TestDecoder(t *testing.T) {
	rng, parts := rand.New(rand.NewPCG(1, 2)), 0
	check := func(name string, tok *Tokenizer, decoder jsonread.Value) {
		ids, plain := drawIDs(rng, tok), rng.IntN(2) == 0
		var got string
		d := tok.NewDecoder(plain)
		for i := range len(ids) + 1 {
			part := d.Rest
			if i < len(ids) {
				part = func() []byte { return d.Next(ids[i]) }
			}
			b := part()
			if got += string(b); !utf8.Valid(b) {
				t.Fatalf("%s: %v: part %d is %q", name, ids, i, b)
			}
			if len(b) > 0 {
				parts++
			}
		}
		if want := whole(t, tok, decoder, ids, plain); got != want || tok.Decode(ids, plain) != want {
			t.Fatalf("%s: %v, plain %v:\n%q, want\n%q", name, ids, plain, got, want)
		}
	}
	all, err := filepath.Glob("testdata/*.json.gz")
	if err != nil || len(all) == 0 {
		t.Fatal(len(all), err)
	}
	n := nightly.Of(300, 100_000)
	for _, path := range all {
		text := gunzip(t, path)
		tok, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		file, err := jsonread.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for range n / 2 / len(all) {
			check(path, tok, file.Get("decoder"))
		}
	}
	for range n / 20 {
		tok, decoder := drawnDecoder(t, rng)
		v, err := jsonread.Parse([]byte(decoder))
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			check(decoder, tok, v)
		}
	}
	if parts < 3*n {
		t.Errorf("%d parts of %d texts", parts, n)
	}
}

// TestDecoderHoldsLittle checks that text comes as soon as no id can change it.
func TestDecoderHoldsLittle(t *testing.T) {
	for _, c := range []struct {
		family string
		tokens []string
		want   []string // part by part
	}{
		{"llama2", []string{"▁a", "<0xE1>", "<0x9E>", "<0x97>", "b"}, []string{"a", "", "", "", "ភb"}},
		{"llama2", []string{"<0xE1>", "b"}, []string{"", "�b"}},
		{"llama3", []string{"a", "Ã", "©"}, []string{"a", "", "é"}},
		{"metafirst1", []string{"▁a", "▁a", "▁"}, []string{"a", " a", " "}},
	} {
		tok, err := Parse(gunzip(t, "testdata/"+c.family+".json.gz"))
		if err != nil {
			t.Fatal(err)
		}
		d := tok.NewDecoder(false)
		for i, s := range c.tokens {
			id := int32(-1)
			for k, token := range tok.tokens {
				if token == s {
					id = int32(k)
				}
			}
			if got := string(d.Next(id)); id < 0 || got != c.want[i] {
				t.Errorf("%s: %q, id %d: %q, want %q", c.family, s, id, got, c.want[i])
			}
		}
		if rest := d.Rest(); len(rest) > 0 {
			t.Errorf("%s: rest %q", c.family, rest)
		}
	}
}
