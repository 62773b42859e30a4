package spec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"zeroth/config"
	"zeroth/config/tree"

	"zeroth/internal/input/hub"
	"zeroth/job/hf"
	"zeroth/job/jobtest"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

func TestNearestKey(t *testing.T) {
	for name, want := range map[string]string{"zero.stge": "zero.stage", "stage": "zero.stage", "optimizer.learning": "optimizer.lr", "lr": "optimizer.lr", "learing_rate": "",
		"model.layer": "model.layers", "micro_batc": "train.micro_batch", "xyzzy": "", "train.stage": "zero.stage"} {
		if got := config.NearestKey(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestGoals checks that every goal loads where its files exist, and can be planned where they do
// not.
func TestGoals(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, jobtest.Least)
	jobtest.Write(t, "train.bin", "\x01\x00")
	t.Setenv("HF_HUB_CACHE", "hub")
	t.Setenv("HF_HUB_OFFLINE", "1")
	commit := strings.Repeat("0", 40)
	folder := hub.Folder(goalModel + "@" + commit)
	refs := filepath.Join(folder, "../../refs")
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.Mkdir(refs, 0o755)); err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, filepath.Join(refs, "main"), commit)
	jobtest.Write(t, folder+"/config.json", string(hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 1024, Vocab: 50257, Eps: 1e-5}}.ConfigJSON()))
	jobtest.WriteVocabulary(t, folder, 998)
	jobtest.Write(t, folder+"/tokenizer_config.json", `{"tokenizer_class": "GPT2Tokenizer", "chat_template": "{{ messages[0].content }}"}`)
	jobtest.Write(t, "a.jsonl", `{"messages": [{"role": "user", "content": "a"}]}`)
	if n := len(Goals()); n < 4 {
		t.Errorf("%d goals", n)
	}
	for _, g := range Goals() {
		jobtest.Write(t, g.Name+".yaml", g.Text)
		if _, err := Load(g.Name+".yaml", nil); err != nil {
			t.Errorf("%s: %v", g.Name, err)
		}
		if err := os.Rename("a.txt", "away"); err != nil {
			t.Fatal(err)
		}
		if _, err := Draft(g.Name+".yaml", nil); err != nil {
			t.Errorf("%s, without its data: %v", g.Name, err)
		}
		of, err := g.Of("Llama-3.2-1B")
		if starts := strings.Contains(g.Text, goalModel); starts != (err == nil) {
			t.Errorf("%s of another model: %v", g.Name, err)
		} else if starts {
			jobtest.Write(t, "of.yaml", of.Text)
			if c, err := Draft("of.yaml", nil); err != nil || c.Model.Layers != 16 || c.Model.Vocab != 128256 {
				t.Errorf("%s of another model: %v", g.Name, err)
			}
		}
		if err := os.Rename("away", "a.txt"); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(g.For, ".") || !strings.Contains(g.Text, fmt.Sprintf("zeroth plan %s.yaml", g.Name)) {
			t.Errorf("%s: %s", g.Name, g.For)
		}
	}
}

// TestStandardInput checks that a job is read from the standard input, with places in stdin.
func TestStandardInput(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	from := func(text string) {
		jobtest.Write(t, "in", text)
		f, err := os.Open("in")
		if err != nil {
			t.Fatal(err)
		}
		was := os.Stdin
		os.Stdin = f
		t.Cleanup(func() { os.Stdin = was; f.Close() })
	}
	from(jobtest.Least)
	if c, err := Load("-", nil); err != nil || len(c.Data.Text) != 1 {
		t.Error(c, err)
	}
	from("data: {text: [a.txt]}\nzero: {stage: 7}\n")
	if _, err := Load("-", nil); err == nil || !strings.HasPrefix(err.Error(), "stdin:2:15: zero.stage: there is no stage 7") {
		t.Error(err)
	}
	from("")
	if _, err := Load("-", nil); err == nil || !strings.HasPrefix(err.Error(), "stdin: the job file is empty") {
		t.Error(err)
	}
	from(strings.Repeat("#", tree.JobBytes+1))
	if _, err := Load("-", nil); err == nil || !strings.Contains(err.Error(), "larger than the limit of 262144 bytes") {
		t.Error(err)
	}
}

// TestJobWithoutItsExtension checks the advice for a job file named without its extension, and for
// folders.
func TestJobWithoutItsExtension(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	if _, err := Load("job", nil); err == nil || err.Error() != "job: the job file cannot be read: no such file or directory; did you mean job.yaml?" {
		t.Error(err)
	}
	for _, folder := range []string{"run", "m"} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	jobtest.Write(t, "run/job.yaml", jobtest.Least)
	if _, err := Load("run", nil); err == nil || !strings.HasSuffix(err.Error(), "did you mean run/job.yaml?") {
		t.Error(err)
	}
	jobtest.Write(t, "m/config.json", "{}")
	if _, err := Load("m", nil); err == nil || !strings.Contains(err.Error(), "a model is planned with 'zeroth plan --model m', and trained by a job with model.from") {
		t.Error(err)
	}
	if _, err := Draft("", []string{"model.from=run/model"}); err == nil || strings.Contains(err.Error(), "hf://") {
		t.Errorf("what is in a folder is not on the Hub: %v", err)
	}
}

// TestModelOfTheHub checks that the name of a model on the Hub is not treated as a missing folder.
func TestModelOfTheHub(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	if _, err := Draft("job.yaml", []string{"model.from=meta-llama/Llama-3.1-8B"}); err != nil {
		t.Errorf("a published model cannot be planned: %v", err)
	}
	if _, err := Draft("job.yaml", []string{"model.from=hf://meta-llama/Llama-3.1-8B"}); err != nil {
		t.Errorf("a published model on the Hub cannot be planned: %v", err)
	}
	_, err := Load("job.yaml", []string{"model.from=meta-llama/Llama-3.1-8B"})
	if err == nil || !strings.Contains(err.Error(), "write hf://meta-llama/Llama-3.1-8B to download it") {
		t.Error(err)
	}
	if err := errors.Join(os.Mkdir("m", 0o755), os.WriteFile("m/model.safetensors", []byte("\x80"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{
		"https://huggingface.co/openai-community/gpt2",
		"https://huggingface.co/openai-community/gpt2/tree/main",
		"hf://openai-community/gpt2/tree/main",
		"m/model.safetensors",
	} {
		_, err := Draft("job.yaml", []string{"model.from=" + from})
		said.Same(t, from, err)
	}
	for _, from := range []string{"./nothing", "/no/folder", "nothing"} {
		if _, err := Draft("job.yaml", []string{"model.from=" + from}); err == nil || strings.Contains(err.Error(), "hf://") {
			t.Errorf("%s: %v", from, err)
		}
	}
}

// TestDraftOfSets checks that sets give a job without data its data.
func TestDraftOfSets(t *testing.T) {
	jobtest.InFolder(t, "zero: {stage: 1}\n")
	for set, want := range map[string]string{"data.text=null": "planned", "data.text=": "planned", "data.text=~": "planned", "data.text=[none.txt]": "none.txt", "data={text: [none.txt]}": "none.txt", "data.tokens=[none.bin]": "none.bin"} {
		c, err := Draft("job.yaml", []string{set, "train.steps=3"})
		if err != nil {
			t.Errorf("%s: %v", set, err)
		} else if got := slices.Concat(c.Data.Text, c.Data.Tokens); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: data %v", set, got)
		}
	}
}
