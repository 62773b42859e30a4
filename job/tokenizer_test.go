package job

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/config/tree"
	"zeroth/internal/input"
	"zeroth/internal/show"
	"zeroth/job/generate"
	"zeroth/job/jobtest"
	"zeroth/job/spec/spectest"
)

// sampleWith samples with the given options and collects its notices in notes.
func sampleWith(t *testing.T, o generate.Options) (text string, notes []string, err error) {
	t.Helper()
	var b bytes.Buffer
	o.Note = func(s string) { notes = append(notes, s) }
	err = generate.Sample(t.Context(), o, &b)
	return b.String(), notes, err
}

// TestRunsKeepTheirTokenizer checks that a run's tokenizer is in its model's folder, so the model
// can be sampled without the original folder, wherever it is moved.
func TestRunsKeepTheirTokenizer(t *testing.T) {
	jobtest.InTinyFolder(t)
	jobtest.WriteVocabulary(t, "own", 300)
	if err := Run(t.Context(), spectest.MustLoad(t, "train.steps=3", "data.tokenizer=gpt2", "data.vocab=own"), Options{Out: "run", Observer: &heard{}}); err != nil {
		t.Fatal(err)
	}
	o := generate.Options{Run: "run", Prompt: "line 1", Tokens: 20, Rules: generate.Rules{Temperature: 1}, Seed: 5}
	want, notes, err := sampleWith(t, o)
	if err != nil || notes != nil || !strings.HasPrefix(want, "line 1") {
		t.Fatalf("%q, notes %q, %v", want, notes, err)
	}
	if raw, err := os.ReadFile("run/model/tokenizer_config.json"); err != nil || !strings.Contains(string(raw), `"kind": "vocab"`) || !strings.Contains(string(raw), `"sha256": "`) {
		t.Errorf("tokenizer_config.json: %v\n%s", err, raw)
	}
	if err := os.RemoveAll("own"); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS("elsewhere", os.DirFS("run/model")); err != nil {
		t.Fatal(err)
	}
	for _, run := range []string{"run", "run/model", "elsewhere"} {
		o.Run = run
		if got, notes, err := sampleWith(t, o); got != want || notes != nil || err != nil {
			t.Errorf("%s: %q, notes %q, %v; want %q", run, got, notes, err, want)
		}
	}
	jobtest.Write(t, "elsewhere/merges.txt", "#version: 0.2\nt h\n")
	if _, _, err := sampleWith(t, o); err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), "or name it with --tokenizer bytes, gpt2 or a folder") {
		t.Errorf("damaged: %v", err)
	}
	o.Tokenizer = "run/model"
	if got, _, err := sampleWith(t, o); got != want || err != nil {
		t.Errorf("with --tokenizer: %q, %v", got, err)
	}
	o.Tokenizer = "gone"
	if _, _, err := sampleWith(t, o); err == nil || !input.IsInput(err) || !strings.HasPrefix(err.Error(), `--tokenizer: "gone" is neither`) {
		t.Errorf("a tokenizer that is not there: %v", err)
	}
}

// TestSampleEnds checks that a text ends at the end-of-text tokens of the model, the generation
// settings and the tokenizer.
func TestSampleEnds(t *testing.T) {
	trained(t)
	o := generate.Options{Run: "run", Prompt: "line 1", Tokens: 30, Rules: generate.Rules{Temperature: 1}, Seed: 5}
	whole, notes, err := sampleWith(t, o)
	if err != nil || notes != nil {
		t.Fatalf("notes %q, %v", notes, err)
	}
	cfg, err := os.ReadFile("run/model/config.json")
	if err != nil {
		t.Fatal(err)
	}
	end := whole[len("line 1")+4] // the fifth token, and where it comes first
	want := whole[:len("line 1")+strings.IndexByte(whole[len("line 1"):], end)]
	id := fmt.Sprint(end)
	for name, files := range map[string]map[string]string{
		"config":          {"config.json": strings.Replace(string(cfg), `"eos_token_id": null`, `"eos_token_id": `+id, 1)},
		"list":            {"config.json": strings.Replace(string(cfg), `"eos_token_id": null`, `"eos_token_id": [300, `+id+`]`, 1)},
		"generation":      {"generation_config.json": `{"eos_token_id": ` + id + `}`},
		"generation list": {"generation_config.json": `{"eos_token_id": [1, ` + id + `]}`},
		"tokenizer":       {"tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer", "eos_token": ` + tree.Quote(jobtest.Spelt(end)) + `}`},
	} {
		dir := filepath.Join(t.TempDir(), "model")
		if err := os.CopyFS(dir, os.DirFS("run/model")); err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			jobtest.Write(t, filepath.Join(dir, file), text)
		}
		o.Run = dir
		got, notes, err := sampleWith(t, o)
		note := fmt.Sprintf("the text ends after %d of 30 tokens, by token %s %q", len(want)-len("line 1"), id, string([]byte{end}))
		if got != want || err != nil || !slices.Equal(notes, []string{note}) {
			t.Errorf("%s: %q, %v, notes %q; want %q and %q", name, got, err, notes, want, note)
		}
	}
}

func TestSampleReportsCutText(t *testing.T) {
	trained(t)
	_, notes, err := sampleWith(t, generate.Options{Run: "run", Prompt: "many bytes before", Tokens: 3})
	if want := []string{"the prompt has 17 tokens, but the model reads at most 8; only the last 8 are used"}; err != nil || !slices.Equal(notes, want) {
		t.Errorf("notes %q, %v", notes, err)
	}
	if _, notes, err = sampleWith(t, generate.Options{Run: "run", Prompt: "8 bytes.", Tokens: 3, Rules: generate.Rules{TopK: 1 << 40}}); err != nil || notes != nil {
		t.Errorf("notes %q, %v", notes, err)
	}
}

// TestSampleOfNaN checks that parameters that are not numbers cause an error instead of a token.
func TestSampleOfNaN(t *testing.T) {
	trained(t)
	path := "run/model/model.safetensors"
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := 8 + int(binary.LittleEndian.Uint64(raw)); at < len(raw); at += 4 {
		binary.LittleEndian.PutUint32(raw[at:], math.Float32bits(float32(math.NaN())))
	}
	jobtest.Write(t, path, string(raw))
	if err := generate.Sample(t.Context(), generate.Options{Run: "run", Prompt: "line", Tokens: 3}, io.Discard); err == nil || !strings.Contains(err.Error(), "NaN") {
		t.Errorf("%v", err)
	}
}

func TestScreen(t *testing.T) {
	for text, want := range map[string]string{
		"plain text\n\tand 日本 é\u00a0!":     "plain text\n\tand 日本 é\u00a0!",
		"\x1b[2J\x1b]0;title\x07\r\x00\x7f": `\x1b[2J\x1b]0;title\a\r\x00\x7f`,
		"\u009b31m \u202e \u200b":           `\u009b31m \u202e \u200b`,
		"\xff\x9b a\xe6\x97":                `\xff\x9b a\xe6\x97`,
		"\ufffd":                            "\ufffd",
	} {
		if got := show.OnScreen([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		var b bytes.Buffer
		s := show.NewScreen(&b) // byte for byte
		for i := range len(text) {
			if n, err := s.Write([]byte(text[i : i+1])); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := s.Close(); err != nil || b.String() != want {
			t.Errorf("%q in parts: %q, want %q; %v", text, &b, want, err)
		}
	}
	full := fmt.Errorf("full")
	if _, err := show.NewScreen(jobtest.WriterFunc(func([]byte) (int, error) { return 0, full })).Write([]byte("x")); err != full {
		t.Errorf("%v", err)
	}
}

// TestTokensOfAType checks that ids of the type that the job names are trained on unchanged.
func TestTokensOfAType(t *testing.T) {
	jobtest.InTinyFolder(t)
	var small, wide []byte
	for i := range 600 {
		small = binary.LittleEndian.AppendUint16(small, uint16(i*i%251))
		wide = binary.LittleEndian.AppendUint64(wide, uint64(i*i%251))
	}
	jobtest.Write(t, "small.bin", string(small))
	jobtest.Write(t, "wide.bin", string(wide))
	var losses []float64
	for _, sets := range [][]string{{"data.tokens=[small.bin]"}, {"data.tokens=[wide.bin]", "data.dtype=int64"}} {
		h := &heard{}
		out := filepath.Join(t.TempDir(), "run")
		if err := Run(t.Context(), spectest.MustLoad(t, append(sets, "data.text=", "model.vocab=256", "train.steps=2", "data.tokenizer=bytes")...), Options{Out: out, Observer: h}); err != nil {
			t.Fatal(err)
		}
		losses = append(losses, h.steps[1].Loss)
	}
	if losses[0] != losses[1] {
		t.Errorf("losses %v", losses)
	}
}
