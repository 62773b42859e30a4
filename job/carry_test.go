package job

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/internal/input"
	"zeroth/job/hf"
	"zeroth/job/jobtest"
	"zeroth/job/spec/spectest"
	"zeroth/job/state"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

// TestForeignAttachments checks that a forged checkpoint cannot choose where its files are written.
func TestForeignAttachments(t *testing.T) {
	folder := spectest.ModelFolder(t, hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 8, Vocab: 16, Eps: 1e-5}})
	for path, want := range map[string]string{
		"tokenizer.json": "",
		"../escaped":     `has "../escaped" attached, which is not a file of a model`,
		"\x1b[2J":        `attached, which is not a file of a model`,
	} {
		f, err := state.OpenModelFolder(folder)
		if err != nil {
			t.Fatal(err)
		}
		f.Carried.Files = []checkpoint.Attachment{{Path: path, Data: []byte("x")}}
		root, to := t.TempDir(), filepath.Join(t.TempDir(), "in", "to")
		dir, err := f.Import(t.Context(), root, checkpoint.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // only read from
		ck, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, err = state.ExportModel(context.Background(), ck, to, checkpoint.Export{DType: checkpoint.F32})
		_ = ck.Close() // likewise
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b")) {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(to), "escaped")); err == nil {
			t.Error("it wrote outside the folder")
		}
		if want != "" && input.Exists(to) {
			t.Errorf("%q: left a folder", path)
		}
	}
}

// TestAttachmentsHaveALimit checks that files are read up to a limit, which is checked before
// memory is allocated.
func TestAttachmentsHaveALimit(t *testing.T) {
	folder := spectest.ModelFolder(t, hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 8, Vocab: 16, Eps: 1e-5}})
	big, err := os.Create(filepath.Join(folder, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := big.Truncate(256<<20 + 1); err != nil {
		t.Fatal(err)
	}
	_ = big.Close() // nothing was written
	if _, err := state.OpenModelFolder(folder); err == nil || !strings.Contains(err.Error(), "tokenizer.json: it is larger than the limit of 268435456 bytes") || !input.IsInput(err) {
		t.Errorf("%v", err)
	}
}

// TestCarriedTokenizer checks that a run's model contains the tokenizer of its tokens: that of the
// folder the model came from, unchanged, or the job's.
func TestCarriedTokenizer(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, "data: {text: [a.txt]}\nmodel: {context: 8}\ntrain: {steps: 1, micro_batch: 1}\nparallel: {ranks: 2}\n")
	jobtest.Write(t, "a.txt", strings.Repeat("to be, or not to be; ", 500))
	const settings = `{"temperature": 0.5, "bos_token_id": 300, "eos_token_id": 300}` // as in the tokenizer
	m := hf.Model{Family: "gpt2", BOS: "300", EOS: "300", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 8, Vocab: 400, Eps: 1e-5}}
	for name, c := range map[string]struct {
		tokenizer bool // of its own
		sets      string
		want      []string // files that are carried as they are; then those that are written
		note      string
	}{
		"own":   {true, "", []string{"vocab.json", "merges.txt", "tokenizer_config.json", "generation_config.json"}, ""},
		"other": {true, "data.tokenizer=bytes", []string{"", "vocab.json", "merges.txt", "tokenizer_config.json"}, "the model's tokenizer files are not copied: this run trains with another tokenizer"},
		"none":  {false, "data.tokenizer=bytes", []string{"generation_config.json", "", "vocab.json", "merges.txt", "tokenizer_config.json"}, ""},
	} {
		from := spectest.ModelFolder(t, m)
		jobtest.Write(t, from+"/generation_config.json", settings)
		if c.tokenizer {
			jobtest.WriteVocabulary(t, from, 300)
		}
		obs := &heard{}
		if err := Run(t.Context(), spectest.MustLoad(t, append(strings.Fields(c.sets), "model.from="+from)...), Options{Out: name, Observer: obs}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		left := map[string]bool{}
		files, err := os.ReadDir(name + "/model")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			left[f.Name()] = true
		}
		delete(left, "config.json")
		delete(left, "model.safetensors")
		as := true
		for _, file := range c.want {
			if file == "" {
				as = false
				continue
			}
			got, err := os.ReadFile(filepath.Join(name, "model", file))
			was, _ := os.ReadFile(filepath.Join(from, file))
			if err != nil || as != bytes.Equal(got, was) && file != "merges.txt" { // which has no merge in either
				t.Errorf("%s: %s carried as it is: %t (%v)", name, file, !as, err)
			}
			delete(left, file)
		}
		if len(left) > 0 {
			t.Errorf("%s: %v beside", name, left)
		}
		if said := strings.Join(obs.notes, "\n"); strings.Contains(said, "not copied") != (c.note != "") || !strings.Contains(said, c.note) {
			t.Errorf("%s: notes %q, want %q", name, said, c.note)
		}
	}
}
