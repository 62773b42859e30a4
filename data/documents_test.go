package data

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"zeroth/internal/input/s3/s3test"
)

// records returns lines of JSON.
func records(t testing.TB, all ...any) string {
	t.Helper()
	var b strings.Builder
	for _, x := range all {
		text, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.String()
}

// sampleOf returns a sample as text: the input up to the last target, and the targets, with a
// dot for each without a loss.
func sampleOf(s *Split, sample int64) (in, out string) {
	input, target := make([]int32, s.context), make([]int32, s.context)
	s.Batch(Tokens(input, target, nil), sample)
	last := 0
	for i, id := range target {
		if id >= 0 {
			last = i
		}
	}
	for i, id := range target[:last+1] {
		in += string(rune(input[i]))
		if id < 0 {
			out += "."
		} else {
			out += string(rune(id))
		}
	}
	return in, out
}

// TestFormats checks which tokens of a record are learned.
func TestFormats(t *testing.T) {
	type m = map[string]any
	for name, c := range map[string]struct {
		documents Documents
		record    any
		in, out   string
	}{
		"text":       {Documents{Format: "text"}, m{"text": "abc"}, "ab", "bc"},
		"other key":  {Documents{Format: "text", Keys: map[string]string{"text": "body"}}, m{"text": "no", "body": "abc"}, "ab", "bc"},
		"prompt":     {Documents{Format: "prompt"}, m{"prompt": "abc", "completion": "de"}, "abcd", "..de"},
		"other keys": {Documents{Format: "prompt", Keys: map[string]string{"prompt": "q", "completion": "a"}}, m{"q": "ab", "a": "c"}, "ab", ".c"},
		"cut":        {Documents{Format: "prompt"}, m{"prompt": "abc", "completion": "0123456789"}, "abc01234", "..012345"},
	} {
		dir := tree(t, map[string]string{"a.jsonl": records(t, c.record)})
		c.documents.Files = []string{"*.jsonl"}
		set := open(t, Source{Documents: c.documents, Dir: dir, Tokenizer: "bytes", Context: 8})
		in, out := sampleOf(set.Train, 0)
		if in != c.in || out != c.out || set.Train.Windows() != 1 || set.Train.Learned(0, 1) != len(strings.ReplaceAll(c.out, ".", "")) {
			t.Errorf("%s: %s %s, want %s %s; %d learned", name, in, out, c.in, c.out, set.Train.Learned(0, 1))
		}
		if want := "documents longer than 9 tokens: 1, cut by 4 tokens in all"; name == "cut" && !slices.Equal(set.Notes, []string{want}) {
			t.Errorf("notes %q", set.Notes)
		}
	}
}

// TestChatDocuments checks that the assistant's messages and the tokens that end them are
// learned, with generation marks in the template or without. A template that obscures their
// position is refused.
func TestChatDocuments(t *testing.T) {
	talk := map[string]any{"messages": []any{
		map[string]string{"role": "user", "content": "Hi"}, map[string]string{"role": "assistant", "content": "you"},
		map[string]string{"role": "user", "content": "and?"}, map[string]string{"role": "assistant", "content": "me"},
	}}
	marked := "{% for m in messages %}<|im_start|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
	for name, c := range map[string]struct{ template, want string }{
		"plain":   {chatML, "you<|im_end|>\nme<|im_end|>\n"},
		"marked":  {marked, "youme"},
		"hiding":  {"{% for m in messages %}{{ messages | length }}{% endfor %}", "the template renders the messages before message 4 differently depending on it"},
		"failing": {"{{ raise_exception('no') }}", "a.jsonl:1: chat_template.jinja: chat template: line 1, column 19: the template raised: no"},
	} {
		dir := tree(t, map[string]string{"a.jsonl": records(t, talk)})
		ownFolder(t, filepath.Join(dir, "tok"), "qwen", map[string]string{"chat_template.jinja": c.template})
		s := Source{Documents: Documents{Files: []string{"a.jsonl"}, Format: "chat"}, Dir: dir, Tokenizer: "tok", Context: 200}
		set, err := Open(t.Context(), s)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", name, err, c.want)
			}
			continue
		}
		input, target := make([]int32, 200), make([]int32, 200)
		set.Train.Batch(Tokens(input, target, nil), 0)
		learned := slices.DeleteFunc(target, func(id int32) bool { return id < 0 })
		if got := string(set.Tokenizer.Decode(learned)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestDocumentOrder checks that every epoch has every document once, in an order determined by
// the seed and the epoch, that plain and compressed files give the same samples, and that
// validation documents are separate.
func TestDocumentOrder(t *testing.T) {
	var all []any
	for i := range 100 {
		all = append(all, map[string]string{"text": fmt.Sprintf("%c%03d", 'a'+i%26, i)})
	}
	text := records(t, all...)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	fmt.Fprint(z, text[:len(text)/3*2])
	z.Close()
	z = gzip.NewWriter(&zipped) // a second member
	fmt.Fprint(z, text[len(text)/3*2:])
	z.Close()
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := tree(t, map[string]string{"a.jsonl": text + "\n \n", "b.jsonl.gz": zipped.String(), "c.zst": string(e.EncodeAll([]byte(text), nil)), "dev.jsonl": records(t, map[string]string{"text": "dev"})})
	source := func(file string) Source {
		return Source{Documents: Documents{Files: []string{file}, Format: "text"}, Dir: dir, Tokenizer: "bytes", Context: 4, Validation: 0.1, Seed: 7}
	}
	first := open(t, source("a.jsonl"))
	for _, file := range []string{"b.jsonl.gz", "c.zst"} {
		if set := open(t, source(file)); set.Fingerprint != first.Fingerprint || set.Tokens != first.Tokens {
			t.Errorf("%s differs from a.jsonl", file)
		}
	}
	if first.Train.Windows() != 90 || first.Validation.Windows() != 10 {
		t.Fatalf("%d and %d documents", first.Train.Windows(), first.Validation.Windows())
	}
	seen, epochs := map[string]int{}, [2]string{}
	for i := range int64(180) {
		_, out := sampleOf(first.Train, i)
		seen[out]++
		epochs[i/90] += out
	}
	if len(seen) != 90 || epochs[0] == epochs[1] {
		t.Errorf("%d documents in an epoch", len(seen))
	}
	for i := range int64(10) {
		if _, out := sampleOf(first.Validation, i); seen[out] > 0 {
			t.Errorf("%s is in both", out)
		}
	}
	s := source("a.jsonl")
	s.Documents.Validation = []string{"dev.jsonl"}
	held := open(t, s)
	if _, out := sampleOf(held.Validation, 0); out != "ev" || held.Train.Windows() != 100 {
		t.Errorf("validation on %q with %d training documents", out, held.Train.Windows())
	}
}

// TestBrokenDocuments checks that all broken lines are counted and the first twenty listed
// with file and line.
func TestBrokenDocuments(t *testing.T) {
	bad := map[string]string{
		`{"text": 5}`: `"text" is a number, not a string`, `{"other": "x"}`: `no key "text"`, `[1]`: "an array, not an object", `{"text": "\ud800"}`: `\ud800 is half of a surrogate pair`,
		"{\"text\": \"\xff\"}": "invalid UTF-8", `{"text": "a", "text": "b"}`: `duplicate key "text"`, `{"text": "a"`: "the text ends where the next item or } should be",
	}
	for line, want := range bad {
		dir := tree(t, map[string]string{"a.jsonl": `{"text": "fine"}` + "\n\n" + line + "\n"})
		_, err := Open(t.Context(), Source{Documents: Documents{Files: []string{"a.jsonl"}, Format: "text"}, Dir: dir, Tokenizer: "bytes", Context: 4})
		if p := (*Problem)(nil); !errors.As(err, &p) || p.Key != "documents" || !strings.Contains(err.Error(), "a.jsonl:3: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", line, err, want)
		}
	}
	marked := tree(t, map[string]string{"a.jsonl": "\ufeff" + `{"text": "fine"}` + "\n" + `{"text": "more"}` + "\n"})
	if set := open(t, Source{Documents: Documents{Files: []string{"a.jsonl"}, Format: "text"}, Dir: marked, Tokenizer: "bytes", Context: 4}); set.Train.Windows() != 2 {
		t.Errorf("a byte order mark before the first line: %d documents", set.Train.Windows())
	}
	different := ""
	for i := range 50 {
		different += fmt.Sprintf("%c\n", 'A'+i%26)
	}
	dir := tree(t, map[string]string{"a.jsonl": different, "same.jsonl": strings.Repeat("x\n", 50), "cut.gz": "\x1f\x8b\x08\x00", "list.json": "[\n{}]", "p": "PAR1xxxxyyyyzzzz", "short.jsonl": records(t, map[string]string{"text": "a"})})
	for file, want := range map[string]string{"same.jsonl": "where a value should be\nand 47 more broken lines", "a.jsonl": `a.jsonl:20: "T" where a value should be`, "cut.gz": "unexpected EOF", "list.json": "a JSON array, not one record per line", "p": "p: no parquet magic",
		"short.jsonl": "make the batch smaller; documents without a token to learn: 1, left out: a text or answer is empty or a single token (the first is "} {
		_, err := Open(t.Context(), Source{Documents: Documents{Files: []string{file}, Format: "text"}, Dir: dir, Tokenizer: "bytes", Context: 4})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", file, err, want)
		}
		if file == "a.jsonl" && (!strings.Contains(err.Error(), "and 30 more broken lines") || strings.Contains(err.Error(), "a.jsonl:21")) {
			t.Errorf("%v", err)
		}
	}
	s := Source{Documents: Documents{Files: []string{"big.jsonl"}, Format: "text"}, Dir: dir, Tokenizer: "bytes", Context: 1000, Memory: 100}
	if err := os.WriteFile(filepath.Join(dir, "big.jsonl"), []byte(records(t, map[string]string{"text": strings.Repeat("x", 500)})), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), s); err == nil || !strings.Contains(err.Error(), "more than the 100 bytes of free memory") {
		t.Errorf("%v", err)
	}
}

// TestParquetDocuments checks that rows give the same documents as lines with the same
// records, in every format and mixed with lines; broken rows are reported by number.
func TestParquetDocuments(t *testing.T) {
	read := func(name string) []byte {
		raw, err := os.ReadFile("parquet/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	var expect map[string]any
	if err := json.Unmarshal(read("expect.json"), &expect); err != nil {
		t.Fatal(err)
	}
	var texts []any
	for _, row := range expect["plain"].([]any) {
		r := row.(map[string]any)
		texts = append(texts, map[string]any{"id": r["id"], "text": r["text"], "messages": r["messages"]})
	}
	dir := tree(t, map[string]string{"rows.jsonl": records(t, texts...), "rows.parquet": string(read("zstd.parquet")), "polars.pq": string(read("polars.parquet"))})
	ownFolder(t, filepath.Join(dir, "tok"), "qwen", map[string]string{"chat_template.jinja": chatML})
	for _, d := range []Documents{
		{Format: "text"}, {Format: "text", Pack: true}, {Format: "prompt", Keys: map[string]string{"prompt": "text", "completion": "text"}},
	} {
		var sums []string
		for _, file := range []string{"rows.jsonl", "rows.parquet", "polars.pq"} {
			d.Files = []string{file}
			set := open(t, Source{Documents: d, Dir: dir, Tokenizer: "tok", Context: 40})
			notes := slices.DeleteFunc(set.Notes, func(s string) bool { return strings.HasPrefix(s, "in the records, but not used: ") }) // the files have other columns
			sums = append(sums, strings.ReplaceAll(fmt.Sprint(set.Fingerprint, set.Tokens, notes), file, "FILE"))
		}
		if sums[0] != sums[1] || sums[0] != sums[2] {
			t.Errorf("%+v: %q", d, sums)
		}
	}
	_, err := Open(t.Context(), Source{Documents: Documents{Files: []string{"rows.parquet"}, Format: "chat"}, Dir: dir, Tokenizer: "tok", Context: 40})
	_, same := Open(t.Context(), Source{Documents: Documents{Files: []string{"rows.jsonl"}, Format: "chat"}, Dir: dir, Tokenizer: "tok", Context: 40})
	if err == nil || same == nil || strings.ReplaceAll(err.Error(), "rows.parquet", "rows.jsonl") != same.Error() || !strings.Contains(err.Error(), `rows.parquet:11: "messages" is not a list of messages`) {
		t.Errorf("%v\nof lines: %v", err, same)
	}
	_, err = Open(t.Context(), Source{Documents: Documents{Files: []string{"rows.*"}, Format: "text", Keys: map[string]string{"text": "body"}}, Dir: dir, Tokenizer: "bytes", Context: 40})
	if err == nil || !strings.Contains(err.Error(), `rows.parquet: no key "body"; its other keys are those of data.format: chat; the file has the columns "text", "maybe"`) {
		t.Errorf("%v", err)
	}
}

// TestFit checks that samples are as long as the longest document, if asked for, and that longer
// documents are cut or left out.
func TestFit(t *testing.T) {
	type m = map[string]string
	dir := tree(t, map[string]string{"a.jsonl": records(t, m{"text": strings.Repeat("a", 40)}, m{"text": strings.Repeat("b", 11)}, m{"text": "c"}, m{"text": "dd"})})
	for _, c := range []struct {
		context, fit  int
		skip          bool
		want, windows int
		notes         string
	}{
		{100, 0, false, 100, 3, "documents without a token to learn: 1, left out: a text or answer is empty or a single token (the first is DIR/a.jsonl:3)\ndocuments fill 17 % of the positions, the rest is padding; data.pack: true puts several of them into a sequence"},
		{100, 16, false, 48, 3, "documents without a token to learn: 1, left out: a text or answer is empty or a single token (the first is DIR/a.jsonl:3)\ndocuments fill 35 % of the positions, the rest is padding; data.pack: true puts several of them into a sequence"},
		{16, 64, false, 16, 3, "documents longer than 17 tokens: 1, cut by 23 tokens in all\ndocuments without a token to learn: 1, left out: a text or answer is empty or a single token (the first is DIR/a.jsonl:3)\ndocuments fill 56 % of the positions, the rest is padding; data.pack: true puts several of them into a sequence"},
		{16, 8, true, 16, 2, "documents longer than 17 tokens: 1, left out (data.too_long)\ndocuments without a token to learn: 1, left out: a text or answer is empty or a single token (the first is DIR/a.jsonl:3)\ndocuments fill 34 % of the positions, the rest is padding; data.pack: true puts several of them into a sequence"},
	} {
		set := open(t, Source{Documents: Documents{Files: []string{"a.jsonl"}, Format: "text", Skip: c.skip}, Dir: dir, Tokenizer: "bytes", Context: c.context, Fit: c.fit})
		if notes := strings.ReplaceAll(strings.Join(set.Notes, "\n"), dir, "DIR"); set.Context != c.want || int(set.Train.context) != c.want || set.Train.Windows() != int64(c.windows) || notes != c.notes {
			t.Errorf("%+v: context %d, %d windows\n%s", c, set.Context, set.Train.Windows(), notes)
		}
		if n, want := set.Train.Positions(0, set.Train.Windows()), map[int]int{100: 50, 48: 50, 16: 27}[c.want]; !c.skip && n != want {
			t.Errorf("%+v: %d positions, want %d", c, n, want)
		}
	}
}

// TestMostRecords checks that at most so many records of each file are read, of lines, compressed ones and Parquet.
func TestMostRecords(t *testing.T) {
	var rows []any
	for i := range 20 {
		rows = append(rows, map[string]string{"text": strings.Repeat("a", i+2)})
	}
	dir := tree(t, map[string]string{"a.jsonl": records(t, rows...), "b.jsonl": records(t, rows[:3]...)})
	for most, want := range map[int]int64{0: 23, 1: 2, 5: 8, 40: 23} {
		set := open(t, Source{Documents: Documents{Files: []string{"*.jsonl"}, Format: "text", Most: most}, Dir: dir, Tokenizer: "bytes", Context: 40})
		if set.Train.Windows() != want {
			t.Errorf("at most %d of each file: %d, want %d", most, set.Train.Windows(), want)
		}
	}
	raw, err := os.ReadFile("parquet/testdata/zstd.parquet")
	if err != nil {
		t.Fatal(err)
	}
	dir = tree(t, map[string]string{"a.parquet": string(raw)})
	all := open(t, Source{Documents: Documents{Files: []string{"a.parquet"}, Format: "text"}, Dir: dir, Tokenizer: "bytes", Context: 40})
	few := open(t, Source{Documents: Documents{Files: []string{"a.parquet"}, Format: "text", Most: 4}, Dir: dir, Tokenizer: "bytes", Context: 40})
	if few.Train.Windows() > 4 || few.Train.Windows() == 0 || all.Train.Windows() <= 4 {
		t.Errorf("%d of %d rows", few.Train.Windows(), all.Train.Windows())
	}
}

// TestValidationFilesAreNotTrainedOn checks that a file to validate on is left out of training, by whatever
// names both patterns reach it, and that this is reported.
func TestValidationFilesAreNotTrainedOn(t *testing.T) {
	server := s3test.Serve(t)
	line := func(text string) string { return records(t, map[string]string{"text": text}) }
	files := map[string]string{"d/a.jsonl": line("train"), "d/dev.jsonl": line("valid"), "d/sub/b.jsonl": line("other"), "copy/x.jsonl": line("valid")}
	dir := tree(t, files)
	for name, text := range files {
		server.Put(t, name, []byte(text))
	}
	for link, to := range map[string]func(old, new string) error{"links/soft.jsonl": os.Symlink, "links/hard.jsonl": os.Link} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "links"), 0o755), to(filepath.Join(dir, "d/dev.jsonl"), filepath.Join(dir, link))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "d"), filepath.Join(dir, "folder")); err != nil {
		t.Fatal(err)
	}
	train := []string{"d/**/*.jsonl", filepath.Join(dir, "d/*.jsonl"), "s3://runs/d/**/*.jsonl", "s3://runs/d/*.jsonl"}
	for i, held := range []string{"d/dev.jsonl", "./d/../d/dev.jsonl", filepath.Join(dir, "d/dev.jsonl"), "links/soft.jsonl", "links/hard.jsonl", "folder/dev.jsonl", "copy/x.jsonl", "d/d*", "s3://runs/d/dev.jsonl", "s3://runs/copy/*"} {
		for _, pattern := range train {
			for _, weights := range [][]float64{nil, {1}} {
				set := open(t, Source{Documents: Documents{Format: "text", Files: []string{pattern}, Validation: []string{held}, Weights: weights}, Dir: dir, Tokenizer: "bytes", Context: 8})
				for s := range set.Train.Windows() {
					if in, _ := sampleOf(set.Train, s); in == "vali" {
						t.Errorf("%d: %s trains on %s", i, pattern, held)
					}
				}
				if note := strings.Join(set.Notes, "\n"); set.Validation.Windows() != 1 || !strings.Contains(note, "files of data.documents left out, because data.validation_documents has them, too: 1, such as ") {
					t.Errorf("%s, %s: %s", pattern, held, note)
				}
			}
		}
	}
	_, err := Open(t.Context(), Source{Documents: Documents{Format: "text", Files: []string{"d/dev.jsonl"}, Validation: []string{"links/*"}}, Dir: dir, Tokenizer: "bytes", Context: 8})
	if err == nil || !strings.Contains(err.Error(), "left out, because data.validation_documents has them, too: 1, such as "+filepath.Join(dir, "d/dev.jsonl")) {
		t.Errorf("%v", err)
	}
}
