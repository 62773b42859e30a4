//go:build unix

package main

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zeroth/tests/nightly"
)

// hostile is a model folder that lies about its contents: a valid GPT-2 folder with some files
// changed.
type hostile struct {
	name   string
	change func(t *testing.T, folder string)
	args   string // the command; model if empty
	said   string // expected text: the file, the position and the reason
}

// TestHostileModels checks that every command refuses hostile model folders with exit code 2 and
// names the file and position, using little memory and time and writing nothing.
func TestHostileModels(t *testing.T) {
	nightly.Long(t)
	notRaced(t)
	tiny, err := filepath.Abs("../../tests/testdata/hf/tiny")
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range hostileModels() {
		if !nightly.Every(6, i) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			inFolder(t)
			if err := os.CopyFS("hf", os.DirFS(tiny)); err != nil {
				t.Fatal(err)
			}
			put("t.bin", strings.Repeat("\x01\x00\x02\x00\x03\x00", 2000))(t, ".")
			c.change(t, "hf")
			args := map[string][]string{
				"":      {"model", "hf"},
				"bytes": {"sample", "--run", "hf", "--tokenizer", "bytes", "--prompt", "\x01", "--tokens", "2"},
				"chat":  {"sample", "--run", "hf", "--prompt", "a", "--tokens", "2", "--chat"},
				"train": {"train", "tiny.yaml", "--set", "model={from: hf}", "--set", "data={tokens: [t.bin]}", "--out", "run"},
			}[c.args]
			before := files(t)
			code, said, used := shell{T: t}.confined(args)
			if code != 2 || !strings.Contains(said, c.said) || len(said) > 5000 || strings.Contains(said, "\x1b") {
				t.Errorf("exit code %d, want 2 with %q:\n%.3000q", code, c.said, said)
			}
			if took := time.Duration(used.Utime.Nano() + used.Stime.Nano()); took > absurdTime || used.Maxrss<<10 > absurdMemory {
				t.Errorf("took %v and %d kB", took, used.Maxrss)
			}
			if after := files(t); after != before {
				t.Errorf("before there were %s, after it %s", before, after)
			}
		})
	}
}

// files returns the names and sizes of all files in the current folder.
func files(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			info, wrong := os.Lstat(path)
			if wrong != nil {
				return wrong
			}
			fmt.Fprintf(&all, "%s %d\n", path, info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func hostileModels() []hostile {
	return append(append(hostileConfigs(), hostileTensors()...), hostileTexts()...)
}

// put returns a change that writes a file.
func put(name, content string) func(*testing.T, string) {
	return func(t *testing.T, folder string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// replaced returns a change that replaces a text in a file, which must contain it.
func replaced(name, from, to string) func(*testing.T, string) {
	return func(t *testing.T, folder string) {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil || !strings.Contains(string(raw), from) {
			t.Fatalf("%s has no %s: %v", name, from, err)
		}
		put(name, strings.Replace(string(raw), from, to, 1))(t, folder)
	}
}

func hostileConfigs() (all []hostile) {
	config := func(name, from, to, said string) {
		all = append(all, hostile{name, replaced("config.json", from, to), "", "hf/config.json: " + said})
	}
	config("no layers", `"n_layer": 2`, `"n_layer": 0`, "n_layer 0 is out of range")
	config("negative width", `"n_embd": 48`, `"n_embd": -48`, "n_embd -48 is out of range")
	config("a width of 10^18", `"n_embd": 48`, `"n_embd": 1000000000000000000`, "n_embd 1000000000000000000 is out of range")
	config("a width of 10^400", `"n_embd": 48`, `"n_embd": 1e400`, "n_embd 1e400 is not a whole number")
	config("NaN", `"layer_norm_epsilon": 1e-05`, `"layer_norm_epsilon": NaN`, "not a model's config: line ")
	config("an epsilon of 0", `"layer_norm_epsilon": 1e-05`, `"layer_norm_epsilon": 0`, "layer_norm_epsilon 0 is out of range")
	config("a negative epsilon", `"layer_norm_epsilon": 1e-05`, `"layer_norm_epsilon": -1`, "layer_norm_epsilon -1 is out of range")
	config("heads that do not divide", `"n_head": 3`, `"n_head": 5`, "n_head 5 does not divide n_embd 48")
	config("a million layers", `"n_layer": 2`, `"n_layer": 1000000`, "1000000 layers exceed the limit of 10000")
	config("an unknown family", `"model_type": "gpt2"`, `"model_type": "gpt2\u001b[2J"`, `model_type "gpt2\x1b[2J" is not supported`)
	config("code", `"model_type": "gpt2"`, `"model_type": "gpt2", "auto_map": {"AutoModelForCausalLM": "evil.Model"}`, "auto_map names custom code for this model")
	config("a key twice", `"model_type": "gpt2"`, `"model_type": "gpt2", "model_type": "llama"`, `not a model's config: line 14, column 25: duplicate key "model_type"`)
	all = append(all,
		hostile{"a config of 3 MB", put("config.json", `{"model_type": "gpt2", "a": "`+strings.Repeat("a", 3<<20)+`"}`), "", "hf/config.json cannot be read: it is larger than the limit of 2097152 bytes"},
		hostile{"a config of arrays", put("config.json", strings.Repeat("[", 1<<20)), "", "hf/config.json: not a model's config: "},
		hostile{"a config that is a device", func(t *testing.T, folder string) {
			if err := os.Remove(folder + "/config.json"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/dev/zero", folder+"/config.json"); err != nil {
				t.Fatal(err)
			}
		}, "", "hf/config.json cannot be read: it is a device, not a regular file"})
	return all
}

// header returns a safetensors file with a JSON header and a number of data bytes.
func header(json string, bytes int) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(json)))) + json + strings.Repeat("\x00", bytes)
}

func hostileTensors() []hostile {
	const weights = "model.safetensors"
	entry := func(name, at string) string {
		return fmt.Sprintf(`"%s":{"dtype":"F32","shape":[1],"data_offsets":[%s]}`, name, at)
	}
	indexed := func(index string) func(*testing.T, string) {
		return func(t *testing.T, folder string) {
			if err := os.Rename(filepath.Join(folder, weights), filepath.Join(folder, "p.safetensors")); err != nil {
				t.Fatal(err)
			}
			put("model.safetensors.index.json", index)(t, folder)
		}
	}
	cut := func(t *testing.T, folder string) {
		if err := os.Truncate(filepath.Join(folder, weights), 5000); err != nil {
			t.Fatal(err)
		}
	}
	ln := `"transformer.h.0.ln_1.bias":{"dtype":"F32","shape":[48]`
	return []hostile{
		{"a header of 2^63 bytes", put(weights, "\x00\x00\x00\x00\x00\x00\x00\x80{}"), "", "hf/model.safetensors: "},
		{"a header of 2^64-1 bytes", put(weights, strings.Repeat("\xff", 8)+"{}"), "", "hf/model.safetensors: "},
		{"a header that is longer than the file", put(weights, "\x00\x00\x00\x05\x00\x00\x00\x00{}"), "", "hf/model.safetensors: "},
		{"a part that is cut off", cut, "", "hf/model.safetensors: "},
		{"an empty file", put(weights, ""), "", "hf/model.safetensors: "},
		{"tensors that overlap", put(weights, header("{"+entry("a", "0,4")+","+entry("b", "2,6")+"}", 6)), "", `hf/model.safetensors: tensor "b": begins at data offset 2`},
		{"a hole", put(weights, header("{"+entry("a", "0,4")+","+entry("b", "8,12")+"}", 12)), "", `hf/model.safetensors: tensor "b": begins at data offset 8`},
		{"a name twice", put(weights, header("{"+entry("a", "0,4")+","+entry("a", "4,8")+"}", 8)), "", `hf/model.safetensors: `},
		{"a shape of 2^62", put(weights, header(`{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}`, 16)), "", `hf/model.safetensors: tensor "a": `},
		{"a negative shape", put(weights, header(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 4)), "", `hf/model.safetensors: `},
		{"missing tensors", put(weights, header("{"+entry("a", "0,4")+"}", 4)), "", "parameters are missing: transformer.wte.weight"},
		{"a tensor of another name", replaced(weights, "transformer.h.0.ln_1.bias", "transformer.h.0.ln_9.bias"), "", "transformer.h.0.ln_9.bias"},
		{"another size", replaced(weights, ln, strings.Replace(ln, "[48]", "[24]", 1)), "", `hf/model.safetensors: tensor "transformer.h.0.ln_1.bias": `},
		{"integers", replaced(weights, ln, strings.Replace(ln, "F32", "I32", 1)), "", "transformer.h.0.ln_1.bias is I32; want F32, BF16 or F16"},
		{"an index that leads out", indexed(`{"weight_map":{"transformer.wte.weight":"../a.txt"}}`), "", "hf/model.safetensors.index.json: "},
		{"an index that names a place", indexed(`{"weight_map":{"transformer.wte.weight":"/etc/passwd"}}`), "", "hf/model.safetensors.index.json: "},
		{"an index without its tensors", indexed(`{"weight_map":{"transformer.wte.weight":"p.safetensors"}}`), "", "model.safetensors.index.json"},
		{"an index of a part that is not there", indexed(`{"weight_map":{"transformer.wte.weight":"q.safetensors"}}`), "", "q.safetensors"},
		{"a part that is a link to a device", func(t *testing.T, folder string) {
			indexed(`{"weight_map":{"transformer.wte.weight":"q.safetensors"}}`)(t, folder)
			if err := os.Symlink("/dev/zero", filepath.Join(folder, "q.safetensors")); err != nil {
				t.Fatal(err)
			}
		}, "", "q.safetensors"},
		{"a pickle", func(t *testing.T, folder string) {
			if err := os.Rename(filepath.Join(folder, weights), filepath.Join(folder, "pytorch_model.bin")); err != nil {
				t.Fatal(err)
			}
		}, "", "hf: has neither model.safetensors nor model.safetensors.index.json; pytorch_model.bin is PyTorch's"},
		{"an adapter beside it", put("adapter_config.json", `{"base_model_name_or_path": "another"}`), "", "adapter_config.json belongs to an adapter"},
		{"a NaN", func(t *testing.T, folder string) {
			raw, err := os.ReadFile(filepath.Join(folder, weights))
			if err != nil {
				t.Fatal(err)
			}
			put(weights, string(raw[:len(raw)-4])+"\x00\x00\xc0\x7f")(t, folder)
		}, "train", "is NaN"},
	}
}

// bpeFile is the format of a tokenizer.json; it lacks added tokens, vocabulary and merges.
const bpeFile = `{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [%s], "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
 "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {%s}, "merges": [%s]}}`

// chatTokenizer adds a byte-level tokenizer and a chat template to a folder.
func chatTokenizer(t *testing.T, folder, template string) {
	t.Helper()
	var vocab []string
	for r, other := 0, 256; r < 256; r++ { // GPT-2's characters for bytes
		x := r
		if r <= ' ' || r > '~' && r <= 160 || r == 173 {
			x, other = other, other+1
		}
		vocab = append(vocab, fmt.Sprintf("%q: %d", string(rune(x)), r))
	}
	put("tokenizer.json", fmt.Sprintf(bpeFile, "", strings.Join(vocab, ", "), ""))(t, folder)
	put("chat_template.jinja", template)(t, folder)
}

func hostileTexts() []hostile {
	tokenizer := func(added, vocab, merges string) func(*testing.T, string) {
		return put("tokenizer.json", fmt.Sprintf(bpeFile, added, vocab, merges))
	}
	chat := func(template string) func(*testing.T, string) {
		return func(t *testing.T, folder string) { chatTokenizer(t, folder, template) }
	}
	var added strings.Builder
	for i := range 70_000 {
		fmt.Fprintf(&added, `{"id": %d, "content": "<%d>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},`, i+1, i)
	}
	return []hostile{
		{"a tokenizer of 1 GB", func(t *testing.T, folder string) {
			put("tokenizer.json", "{")(t, folder)
			if err := os.Truncate(filepath.Join(folder, "tokenizer.json"), 1<<30); err != nil {
				t.Fatal(err)
			}
		}, "", "hf/tokenizer.json: it is larger than the limit of 67108864 bytes"},
		{"70,000 added tokens", tokenizer(strings.TrimSuffix(added.String(), ","), `"a": 0`, ""), "", "hf/tokenizer.json: line 1, column 8497666: added_tokens: more than 65536 added tokens"},
		{"ids beyond the vocabulary", tokenizer("", `"a": 2000000000`, ""), "", "hf/tokenizer.json: line 3, column 204: model.vocab: 2000000000 where a number from 0 to 1048575 is expected"},
		{"a negative id", tokenizer("", `"a": -1`, ""), "", "hf/tokenizer.json: line 3, column 204: model.vocab: -1 where a number"},
		{"two tokens of one id", tokenizer("", `"a": 0, "b": 0`, ""), "", "hf/tokenizer.json: id 0 is given to"},
		{"a merge of what is not there", tokenizer("", `"a": 0`, `"a b"`), "", "hf/tokenizer.json: line 3, column 219: model.merges: the merge of"},
		{"merges in a circle", tokenizer("", `"a": 0, "b": 1`, `"a b", "ab a"`), "", "hf/tokenizer.json: line 3, column 227: model.merges: the merge of"},
		{"an id that is not the token's", tokenizer(`{"id": 9, "content": "a", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}`, `"a": 0`, ""), "", "tokenizer.json: "},
		{"a model of another kind", put("tokenizer.json", `{"model": {"type": "Unigram"}}`), "", "hf/tokenizer.json: model: type "},
		{"a generation_config.json of other things", put("generation_config.json", `{"eos_token_id": {"a": [1e99]}}`), "bytes", "hf/generation_config.json: eos_token_id is "},
		{"a broken generation_config.json", put("generation_config.json", `{"eos_token_id": `), "bytes", "hf/generation_config.json: "},
		{"a template without an end", chat("{% for i in range(100000000000) %}{% endfor %}"), "chat", "chat template: line 1, column 18: the values that the template makes need more than"},
		{"loops in loops", chat(strings.Repeat("{% for i in range(1000) %}", 20) + strings.Repeat("{% endfor %}", 20)), "chat", "chat template: line 1, column 512: the values that the template makes need more than"},
		{"a macro that calls itself", chat("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "chat", "chat template: line 1, column 20: more than 200 nested calls"},
		{"a text that doubles", chat("{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}"), "chat", "chat template: line 1, column 82: a value of more than 8388608 bytes"},
		{"parentheses", chat("{{ " + strings.Repeat("(", 100_000) + " }}"), "chat", "chat template: line 1, column "},
		{"a template that reaches out", chat("{{ ''.__class__.__mro__[1].__subclasses__() }}"), "chat", "chat template: line 1, column 27: the method __subclasses__ is not supported"},
		{"a template of 2 MB", chat(strings.Repeat("a", 2<<20)), "chat", "chat template: line 1, column 1: 2097152 bytes; a template has at most 131072"},
	}
}
