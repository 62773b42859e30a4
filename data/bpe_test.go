package data

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tiktoken-go/tokenizer/codec"
	"pgregory.net/rapid"

	"zeroth/data/tokenizer"
	"zeroth/tests/nightly"
)

// nasty are texts that are hard for tokenizers.
var nasty = []string{
	"", " ", "  ", "\n", "\t\t x", "a  b", "a \n b", " \n\n  x", "x   ", "\r\n\r\n",
	"I'm you're we'll they'd it's can't I've 'S 'Re ''s '", "'s's", " 's", "!'s", "x'\u00a0y",
	"héllo wörld", "日本語のテキスト。", "안녕하세요 세계", "🤷🏽‍♂️ 👨‍👩‍👧‍👦", "e\u0301", "\u200b\u200d\ufeff",
	"x\u00a0y\u2003z\u3000", "\u0085\u2028", "٣٤٥ ½ Ⅷ 1²", "ǅ ʰ ª", "\x00\x01\x1c\x1f\x7f",
	"func main() {\n\tfmt.Println(\"%v\\n\", x...)\n}\n", "0x1F600 1e-9 1_000_000", "https://a.b/c?d=e&f#g",
	"<|endoftext|>", "<|endoftext|", strings.Repeat("a", 3000), strings.Repeat("=", 3000), strings.Repeat("ab ", 900),
	strings.Repeat(" ", 1000) + "x", strings.Repeat("\n", 999), "\U000e0001\U0010ffff", "\u2028\u2029 x",
}

// broken are byte sequences that are not UTF-8.
var broken = []string{
	"\xff", "a\xffb", "\xc3", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80", " \x80\x81 \xfe\n", "x\x85\xa0y", "日\xe6\x97 本",
}

func TestTokenizersRoundTrip(t *testing.T) {
	for name, tok := range map[string]Tokenizer{"bytes": Bytes{}, "gpt2": gpt2()} {
		for _, text := range slices.Concat(nasty, broken) {
			ids := tok.Encode([]byte(text))
			for _, id := range ids {
				if id < 0 || int(id) >= tok.Vocab() {
					t.Fatalf("%s: %q has id %d of %d", name, text, id, tok.Vocab())
				}
			}
			if got := tok.Decode(ids); string(got) != text {
				t.Errorf("%s: %q decodes to %q", name, text, got)
			}
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	for _, text := range slices.Concat(nasty, broken) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, tok := range []Tokenizer{Bytes{}, gpt2()} {
			if got := tok.Decode(tok.Encode(text)); !bytes.Equal(got, text) {
				t.Errorf("%T: %q decodes to %q", tok, text, got)
			}
		}
	})
}

// oracle returns the library's own encoder, which is correct for valid UTF-8 without DEL: in
// v0.10.0 its regular expression does not match \x7f, which drops it.
func oracle(t testing.TB) func(text string) []int32 {
	c := codec.NewR50kBase()
	return func(text string) []int32 {
		ids, _, err := c.Encode(text)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]int32, len(ids))
		for i, id := range ids {
			out[i] = int32(id)
		}
		return out
	}
}

func TestGPT2AgreesWithTiktoken(t *testing.T) {
	want, tok := oracle(t), gpt2()
	same := func(t rapid.TB, text string) {
		text = strings.ReplaceAll(text, "\x7f", "")
		if got, want := tok.Encode([]byte(text)), want(text); !slices.Equal(got, want) {
			t.Fatalf("%q: %v, want %v", text, got, want)
		}
	}
	for _, text := range nasty {
		same(t, text)
	}
	for _, name := range []string{"fmt/print.go", "unicode/utf8/utf8_test.go", "net/http/server.go", "time/format_test.go", "html/entity.go"} {
		text, err := os.ReadFile(filepath.Join(root(t), "src", name))
		if err != nil {
			t.Fatal(err)
		}
		same(t, string(text))
	}
	rapid.Check(t, func(t *rapid.T) { same(t, rapid.String().Draw(t, "text")) })
	pieces := rapid.SliceOf(rapid.SampledFrom([]string{" ", "  ", "\n", "\t", "'", "'s", "re", "a", "the", "é", "1", "½", "!", "--", "\u00a0", "世"}))
	rapid.Check(t, func(t *rapid.T) { same(t, strings.Join(pieces.Draw(t, "pieces"), "")) })
}

// root returns the Go installation, whose source is used as test text.
func root(t testing.TB) string {
	dir, err := goroot()
	if err != nil {
		t.Skip(err)
	}
	return dir
}

// TestGPT2Known compares with ids published with GPT-2 and tiktoken.
func TestGPT2Known(t *testing.T) {
	tok := gpt2()
	for text, want := range map[string][]int32{
		"Hello world":                 {15496, 995},
		"hello world":                 {31373, 995},
		"This is some text":           {1212, 318, 617, 2420},
		"Hello, my dog is cute":       {15496, 11, 616, 3290, 318, 13779},
		"\x1f\x7f\x80":                {219, 221, 222},
		"indivisible values  are, \n": {521, 452, 12843, 3815, 220, 389, 11, 220, 198},
	} {
		if got := tok.Encode([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if tok.Vocab() != 50257 || tok.Separator() != 50256 || string(tok.Decode([]int32{50256})) != EndOfText {
		t.Errorf("vocabulary %d, separator %d", tok.Vocab(), tok.Separator())
	}
}

// TestEveryTokenEncodesToItself checks that the text of each token encodes to that token alone, so
// no lookup of whole pieces is needed.
func TestEveryTokenEncodesToItself(t *testing.T) {
	v, m := gpt2(), tokenizer.Merger{}
	for id, s := range v.tokens[:50256] {
		for _, b := range []byte(s) {
			m.Push(v.bytes[b])
		}
		if got := m.Append(nil, &v.merges); len(got) != 1 || got[0] != uint32(id) {
			t.Fatalf("token %d %q encodes to %v", id, s, got)
		}
	}
}

func TestUnknownIDs(t *testing.T) {
	for _, c := range []struct {
		tok Tokenizer
		ids []int32
	}{{Bytes{}, []int32{'a', -1, 256, 'b'}}, {gpt2(), []int32{64, -1, 50257, 65}}} {
		if got := string(c.tok.Decode(c.ids)); got != "a\uFFFD\uFFFDb" {
			t.Errorf("%T: %q", c.tok, got)
		}
	}
	if id := (Bytes{}).Separator(); id != -1 {
		t.Errorf("bytes have the separator %d", id)
	}
}

// TestCachesForget encodes more different pieces than an encoder caches.
func TestCachesForget(t *testing.T) {
	nightly.Long(t)
	var text []byte
	for i := range 1<<16 + 100 {
		text = fmt.Appendf(text, " %d", i*7919)
	}
	e := newEncoder(gpt2())
	first := e.Append(nil, text, false)
	if !slices.Equal(first, e.Append(nil, text, false)) {
		t.Error("encoding again gives a different result")
	}
}

// TestChunksAreTheWhole compares encoding chunk by chunk with encoding a text at once.
func TestChunksAreTheWhole(t *testing.T) {
	nightly.Long(t)
	unit := strings.Join(nasty, "y ") + "ends\n\n \t  begins"
	for _, text := range []string{
		strings.Repeat(unit, 1+2*chunkBytes/len(unit)),
		strings.Repeat("x", chunkBytes+9), // nowhere to cut
		strings.Repeat("\n", chunkBytes+9),
	} {
		e := newEncoder(gpt2())
		var got []uint32
		cuts := 0
		for rest := []byte(text); len(rest) > 0; cuts++ {
			n := gpt2().cut(rest)
			got = e.Append(got, rest[:n], false)
			rest = rest[n:]
		}
		if !slices.Equal(got, e.Append(nil, []byte(text), false)) {
			t.Errorf("%d chunks of %.10q... differ from the whole", cuts, text)
		}
		if text[0] == unit[0] && text[1] == unit[1] && cuts < 3 {
			t.Errorf("only %d chunks", cuts)
		}
	}
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// small returns a vocabulary with ids not in merge order: the 256 bytes from id 10 on, then
// tokens of two and three bytes.
func small(merges string) (vocab string, file string) {
	ids := map[string]int{"bc": 0, "ab": 1, "abc": 2, "aa": 3, "Ġa": 4}
	for b, r := range tokenizer.Alphabet {
		ids[string(r)] = 10 + b
	}
	text, _ := json.Marshal(ids)
	return string(text), merges
}

func TestMergesGoByRank(t *testing.T) {
	for _, c := range []struct {
		merges, text string
		want         []int32
	}{
		{"b c\na bc\na b\n", "abc", []int32{2}},                    // "b c" is first
		{"a b\nb c\na bc\n", "abc", []int32{1, 10 + 'c'}},          // now "a b" is
		{"#version: 0.2\nab c\na b\n", "abc", []int32{2}},          // a later merge makes the pair of an earlier one
		{"a a\n", "aaaaa", []int32{3, 3, 10 + 'a'}},                // leftmost first
		{"Ġ a\r\na a\r\n", "b aa", []int32{10 + 'b', 4, 10 + 'a'}}, // a space is Ġ
		{"", "\xff\n", []int32{10 + 255, 10 + '\n'}},
	} {
		dir := t.TempDir()
		vocab, merges := small(c.merges)
		writeFolder(t, dir, vocab, merges)
		tok, err := NewTokenizer(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode([]byte(c.text)); !slices.Equal(got, c.want) {
			t.Errorf("merges %q: %q is %v, want %v", c.merges, c.text, got, c.want)
		}
		if tok.Separator() != -1 || tok.Vocab() != 266 {
			t.Errorf("separator %d, vocabulary %d", tok.Separator(), tok.Vocab())
		}
	}
}

// writeFolder writes a tokenizer that claims to be GPT-2's kind.
func writeFolder(t *testing.T, dir, vocab, merges string) {
	t.Helper()
	write(t, filepath.Join(dir, "vocab.json"), vocab)
	write(t, filepath.Join(dir, "merges.txt"), merges)
	write(t, filepath.Join(dir, "tokenizer_config.json"), `{"tokenizer_class": "GPT2Tokenizer"}`)
}

func TestBrokenVocabularies(t *testing.T) {
	good, _ := small("")
	for _, c := range []struct{ vocab, merges string }{
		{"{\n\"a\": 1,\n\"b\": x}", ""},
		{"{\n\"a\": 1,\n\"b\": -1}", ""},
		{`{"a": 1}`, ""},
		{`{"a": 4000000000}`, ""},
		{good, "#version: 0.2\na b\nabc"},
		{good, "a b c"},
		{good, "a b\nx y"},
		{good, "a b\nqq y"},
		{good, "a b\nb c\na b"},
	} {
		dir := t.TempDir()
		writeFolder(t, dir, c.vocab, c.merges)
		_, err := NewTokenizer(dir)
		said.Same(t, c.vocab[:min(len(c.vocab), 40)]+" "+c.merges, err)
	}
	twice := t.TempDir()
	writeFolder(t, twice, `{"a": 1, "b": 1}`, "")
	for _, name := range []string{"gpt3", "", t.TempDir(), twice} {
		if _, err := NewTokenizer(name); err == nil || name != "" && !strings.Contains(err.Error(), name) {
			t.Errorf("tokenizer %q: %v", name, err)
		}
	}
}

// BenchmarkEncode encodes packages of the Go library on one core.
func BenchmarkEncode(b *testing.B) {
	var text []byte
	for _, name := range []string{"net/http", "go/types", "runtime", "reflect"} {
		files, err := filepath.Glob(filepath.Join(root(b), "src", name, "*.go"))
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range files {
			more, err := os.ReadFile(f)
			if err != nil {
				b.Fatal(err)
			}
			text = append(text, more...)
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	v := gpt2()
	b.SetBytes(int64(len(text)))
	var ids []uint32
	for b.Loop() {
		ids = newEncoder(v).Append(ids[:0], text, false)
	}
	b.ReportMetric(float64(len(text))/float64(len(ids)), "bytes/token")
}
