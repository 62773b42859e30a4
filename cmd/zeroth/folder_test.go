//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/tests/nightly"
)

// goesWith holds the other files of a model folder. They must be copied unchanged, whatever their
// bytes.
var goesWith = map[string]string{
	"tokenizer.json":                           `{"model": {"type": "BPE"}}`,
	"tokenizer_config.json":                    "{}\n",
	"special_tokens_map.json":                  "{}",
	"tokenizer.model":                          "\x00\xff\n",
	"chat_template.jinja":                      "{{ messages }}",
	"additional_chat_templates/tool_use.jinja": "{# tools #}",
	"generation_config.json":                   `{"eos_token_id": [5, 6], "temperature": 0.6}`,
}

// importable creates folder hf: the model of a run with additional keys in config.json and the
// files of goesWith.
func importable(t *testing.T) (config map[string]any) {
	t.Helper()
	trained(t, "train.steps=2")
	if err := os.Rename("r/model", "hf"); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("hf/config.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	config["attn_pdrop"], config["embd_pdrop"], config["resid_pdrop"] = 0.25, 0.0, 0.0
	config["bos_token_id"] = 3.0
	delete(config, "eos_token_id")
	config["task_specific_params"] = map[string]any{"text-generation": map[string]any{"do_sample": true}}
	config["owner"] = "<us & \u2028 them>"
	if raw, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vocab.json", "merges.txt"} { // written by the run itself
		if err := os.Remove("hf/" + name); err != nil {
			t.Fatal(err)
		}
	}
	write(t, "a.bin", strings.Repeat("t\x00o\x00 \x00b\x00", 500))
	write(t, "hf/config.json", string(raw))
	for name, content := range goesWith {
		write(t, filepath.Join("hf", name), content)
	}
	write(t, "hf/README.md", "not carried")
	return config
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
}

// wholeModel checks that a folder contains the model and all files that belong to it.
func wholeModel(t *testing.T, folder, dtype string, config map[string]any) {
	t.Helper()
	for name, want := range goesWith {
		if got, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(got) != want {
			t.Errorf("%s: %s is %q (%v), want %q", folder, name, got, err, want)
		}
	}
	raw, err := os.ReadFile(folder + "/config.json")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	config["torch_dtype"] = dtype
	if d := cmp.Diff(config, got); d != "" {
		t.Errorf("%s/config.json: %s", folder, d)
	}
	if _, err := os.Stat(folder + "/README.md"); err == nil {
		t.Errorf("%s: README.md was carried over", folder)
	}
}

// TestFolderIsCarried checks that training, import and export preserve every key of config.json
// and all other files, even after the original folder is deleted.
func TestFolderIsCarried(t *testing.T) {
	nightly.Long(t)
	config := importable(t)
	train := func(args ...string) string {
		for _, set := range []string{"data={tokens: [a.bin], dtype: uint16, validation: 0}", "train.steps=4", "checkpoint.every=2", "parallel.ranks=3"} {
			args = append(args, "--set", set)
		}
		out, _ := zeroth(t, 0, append([]string{"train", "tiny.yaml"}, args...)...)
		return out
	}
	out := train("--out", "a", "--set", "model={from: hf}")
	matches(t, out, `config.json sets dropout of attention weights \(attn_pdrop 0.25\): training applies none, unless model.attention_dropout is set\n`, "config.json has unknown keys, which are ignored: owner\n")
	wholeModel(t, "a/model", "float32", config)
	out, _ = zeroth(t, 0, "ckpt", "import", "hf", "--to", "start")
	matches(t, out, `config.json sets dropout of attention weights \(attn_pdrop 0.25\)`)
	if err := os.RemoveAll("hf"); err != nil {
		t.Fatal(err)
	}

	for _, args := range []string{"verify a", "inspect a", "diff a/ckpt/step-00000004 a"} {
		zeroth(t, 0, append([]string{"ckpt"}, strings.Fields(args)...)...)
	}
	for i, dir := range []string{"a/ckpt/step-00000002", "start"} {
		to := string(rune('k' + i))
		zeroth(t, 0, "ckpt", "export", dir, "--to", to, "--dtype", "bf16")
		wholeModel(t, to, "bfloat16", config)
	}

	// The resumed job does not name the folder.
	out = train("--out", "a", "--resume", "2")
	matches(t, out, `config.json sets dropout of attention weights \(attn_pdrop 0.25\): training applies none, unless model.attention_dropout is set\n`)
	wholeModel(t, "a/model", "float32", config)

	// The job gives the shape itself and starts from the import.
	train("--out", "b", "--resume", "start/step-00000000", "--set", "model.vocab=256")
	wholeModel(t, "b/model", "float32", config)
	train("--out", "b", "--resume", "2", "--set", "model.vocab=256", "--set", "zero.stage=1")
	zeroth(t, 0, "ckpt", "export", "b", "--to", "again")
	wholeModel(t, "again", "float32", config)
}

// TestFolderIsRefused checks that a faulty model folder ends a run before it begins.
func TestFolderIsRefused(t *testing.T) {
	nightly.Long(t)
	importable(t)
	from := []string{"train", "tiny.yaml", "--out", "a", "--set", "model={from: hf}", "--set", "data={tokens: [a.bin], dtype: uint16, validation: 0}"}
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
	for name, c := range map[string]struct{ file, content, want string }{
		"tokenizer":  {"tokenizer.json", pointer, "hf/tokenizer.json: it is a Git LFS pointer, not the file itself"},
		"weights":    {"model.safetensors", pointer, "hf/model.safetensors: it is a Git LFS pointer"},
		"config":     {"config.json", pointer, "hf/config.json: not a model's config: it is a Git LFS pointer"},
		"adapter":    {"adapter_config.json", "{}", "hf: adapter_config.json belongs to an adapter"},
		"two models": {"model.safetensors.index.json", `{"weight_map": {"a": "b.safetensors"}}`, "remove those that do not belong to the model"},
	} {
		path := filepath.Join("hf", c.file)
		was, missing := os.ReadFile(path)
		write(t, path, c.content)
		_, errs := zeroth(t, 2, from...)
		_, imports := zeroth(t, 2, "ckpt", "import", "hf", "--to", "start")
		for _, text := range []string{errs, imports} {
			if !strings.Contains(text, c.want) {
				t.Errorf("%s: %q, want %q", name, text, c.want)
			}
		}
		if _, err := os.Stat("a"); err == nil {
			t.Fatalf("%s: a run folder was made", name)
		}
		if _, err := os.Stat("start"); err == nil {
			t.Fatalf("%s: a folder of checkpoints was made", name)
		}
		if missing != nil {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		write(t, path, string(was))
	}
	zeroth(t, 0, append(from, "--set", "train.steps=1")...)
}
