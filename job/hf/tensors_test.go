package hf

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/safetensors/safetensorstest"
	"zeroth/internal/input"
	"zeroth/job/jobtest"
	"zeroth/nn"
	"zeroth/shard"
)

// Tensor is a tensor of a folder under construction.
type Tensor struct {
	dtype safetensors.DType
	shape []int
	data  []float32 // for float types; nil means zeros of any type
}

var (
	SmallGPT2  = Model{Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 8, Vocab: 16, Eps: 1e-5}}
	smallLlama = Model{Family: "llama", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 8, Vocab: 16, Eps: 1e-5}, Llama: nn.Llama{KV: 1, FFN: 12, Theta: 1e4, Tied: true}}
)

// FolderOf writes a folder with a model, after changing some tensors.
func FolderOf(t *testing.T, m Model, change func(map[string]*Tensor)) string {
	t.Helper()
	dir, all := t.TempDir(), map[string]*Tensor{}
	jobtest.Write(t, dir+"/config.json", string(m.ConfigJSON()))
	for _, p := range Parameters(m.Network(nn.LoRA{})) {
		x := &Tensor{"F32", p.Shape, make([]float32, p.Numel())}
		nn.Fill(1, p, shard.Range{Hi: p.Numel()}, x.data)
		all[p.Name] = x
	}
	change(all)
	var specs []safetensors.Spec
	for name, x := range all {
		specs = append(specs, safetensors.Spec{Name: name, DType: x.dtype, Shape: x.shape})
	}
	safetensorstest.Write(t, filepath.Join(dir, "model.safetensors"), specs, func(s safetensors.Spec) []byte {
		raw := make([]byte, s.Numel()*s.DType.Size())
		if data := all[s.Name].data; data != nil {
			safetensors.Encode(raw, data, s.DType)
		}
		return raw
	})
	return dir
}

// openedFolder opens a folder as a run does, including its values.
func openedFolder(t *testing.T, folder string, m Model) (*ModelTensors, error) {
	t.Helper()
	x, err := OpenModel(folder, m)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = x.Close() })
	_, err = x.Check(t.Context(), m)
	return x, err
}

// Other tensors in a folder are accepted if they have no effect, and noted if they may matter
// to someone.
func TestExtraTensors(t *testing.T) {
	zeros := func(t safetensors.DType, shape ...int) *Tensor { return &Tensor{t, shape, nil} }
	for name, c := range map[string]struct {
		model         Model
		change        func(all map[string]*Tensor)
		spare, unread string
	}{
		"nothing": {SmallGPT2, func(map[string]*Tensor) {}, "", ""},
		"masks": {SmallGPT2, func(all map[string]*Tensor) {
			all["transformer.h.0.attn.bias"], all["h.1.attn.masked_bias"] = zeros("BOOL", 1, 1, 8, 8), &Tensor{"F32", nil, []float32{float32(math.Inf(-1))}}
		}, "h.1.attn.masked_bias transformer.h.0.attn.bias", ""},
		"positions": {smallLlama, func(all map[string]*Tensor) {
			all["model.layers.1.self_attn.rotary_emb.inv_freq"], all["model.rotary_emb.inv_freq"] = zeros("F32", 2), zeros("F32", 2)
		}, "model.layers.1.self_attn.rotary_emb.inv_freq model.rotary_emb.inv_freq", ""},
		"the head again": {smallLlama, func(all map[string]*Tensor) {
			all["lm_head.weight"] = all["model.embed_tokens.weight"]
		}, "lm_head.weight", ""},
		"the head again, rounded alike": {SmallGPT2, func(all map[string]*Tensor) {
			words := all["transformer.wte.weight"]
			words.dtype = "BF16"
			head := &Tensor{"F32", words.shape, make([]float32, len(words.data))}
			raw := make([]byte, 2*len(words.data))
			safetensors.Encode(raw, words.data, "BF16")
			safetensors.Decode(head.data, raw, "BF16")
			all["lm_head.weight"] = head
		}, "lm_head.weight", ""},
		"another head": {smallLlama, func(all map[string]*Tensor) {
			all["score.weight"], all["v_head.summary.bias"] = zeros("F32", 2, 8), zeros("I64", 1)
		}, "score.weight v_head.summary.bias", "score.weight v_head.summary.bias"},
	} {
		x, err := openedFolder(t, FolderOf(t, c.model, c.change), c.model)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if spare, unread := strings.Join(x.Spare, " "), strings.Join(x.unread, " "); spare != c.spare || unread != c.unread || len(x.Note()) != min(1, len(x.unread)) {
			t.Errorf("%s: spare tensors %q, noted %q (%q)", name, spare, unread, x.Note())
		}
	}
}

// A folder with another model than its config.json describes, or without usable values, is
// refused with the reason.
func TestTensorsOfAnotherModel(t *testing.T) {
	zeros := func(t safetensors.DType, shape ...int) *Tensor { return &Tensor{t, shape, nil} }
	rename := func(to func(string) string) func(map[string]*Tensor) {
		return func(all map[string]*Tensor) {
			old := map[string]*Tensor{}
			for name, x := range all {
				old[name] = x
			}
			clear(all)
			for name, x := range old {
				all[to(name)] = x
			}
		}
	}
	before := func(s string) func(map[string]*Tensor) { return rename(func(name string) string { return s + name }) }
	set := func(name string, i int, x float64) func(map[string]*Tensor) {
		return func(all map[string]*Tensor) { all[name].data[i] = float32(x) }
	}
	as := func(name string, dt safetensors.DType) func(map[string]*Tensor) {
		return func(all map[string]*Tensor) { all[name] = zeros(dt, all[name].shape...) }
	}
	gpt2, llama := SmallGPT2, smallLlama
	for name, c := range map[string]struct {
		model  Model
		change func(all map[string]*Tensor)
	}{
		"missing": {gpt2, func(all map[string]*Tensor) {
			delete(all, "transformer.h.1.ln_2.bias")
			delete(all, "transformer.wpe.weight")
			all["transformer.ln_f.bias"].shape = []int{8, 1}
		}},
		"more layers": {gpt2, func(all map[string]*Tensor) {
			all["transformer.h.2.ln_1.bias"], all["transformer.h.11.ln_1.bias"] = zeros("F32", 8), zeros("F32", 8)
		}},
		"a parameter more":       {llama, func(all map[string]*Tensor) { all["model.layers.0.self_attn.q_norm.weight"] = zeros("F32", 8) }},
		"biases":                 {llama, func(all map[string]*Tensor) { all["model.layers.0.self_attn.q_proj.bias"] = zeros("F32", 8) }},
		"a head's bias":          {llama, func(all map[string]*Tensor) { all["lm_head.bias"] = zeros("F32", 16) }},
		"twice":                  {gpt2, func(all map[string]*Tensor) { all["wte.weight"] = zeros("F32", 16, 8) }},
		"names with escapes":     {gpt2, func(all map[string]*Tensor) { all["transformer.\x1b[2J"] = zeros("F32", 1) }},
		"double":                 {gpt2, as("transformer.wpe.weight", "F64")},
		"FP8":                    {llama, as("model.layers.0.mlp.up_proj.weight", "F8_E4M3")},
		"integers":               {llama, as("model.layers.1.mlp.up_proj.weight", "I8")},
		"torch.compile":          {gpt2, before("_orig_mod.")},
		"torch.compile, inside":  {llama, rename(func(s string) string { return strings.Replace(s, "layers.0.", "layers.0._orig_mod.", 1) })},
		"DataParallel":           {gpt2, before("module.")},
		"PEFT":                   {gpt2, before("base_model.model.")},
		"quantised":              {llama, rename(func(s string) string { return strings.Replace(s, "up_proj.weight", "up_proj.qweight", 1) })},
		"a NaN":                  {gpt2, set("transformer.h.1.ln_2.weight", 5, math.NaN())},
		"an infinity":            {gpt2, set("transformer.wte.weight", 127, math.Inf(-1))},
		"an infinity of 16 bits": {gpt2, func(all map[string]*Tensor) { x := all["transformer.wpe.weight"]; x.dtype, x.data[3] = "F16", 1e9 }},
		"a NaN of 16 bits": {gpt2, func(all map[string]*Tensor) {
			x := all["transformer.wpe.weight"]
			x.dtype, x.data[63] = "BF16", float32(math.NaN())
		}},
		"another head": {llama, func(all map[string]*Tensor) {
			words := all["model.embed_tokens.weight"]
			head := &Tensor{"F32", words.shape, append([]float32{}, words.data...)}
			head.data[100]++
			all["lm_head.weight"] = head
		}},
		"a smaller head": {gpt2, func(all map[string]*Tensor) { all["lm_head.weight"] = zeros("F32", 15, 8) }},
	} {
		_, err := openedFolder(t, FolderOf(t, c.model, c.change), c.model)
		if said.Same(t, name, err); !input.IsInput(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Folders that are not safetensors models are identified.
func TestForeignFolders(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string // in addition to a config.json of GPT-2, unless included
	}{
		"empty":               {nil},
		"pickle":              {map[string]string{"pytorch_model.bin": "PK"}},
		"pickled parts":       {map[string]string{"pytorch_model-00001-of-00002.bin": "PK", "pytorch_model.bin.index.json": "{}"}},
		"named so":            {map[string]string{"model.safetensors": "PK\x03\x04aaaaaaaaaaaa"}},
		"Meta's":              {map[string]string{"config.json": "", "consolidated.00.pth": "PK", "params.json": "{}"}},
		"adapter":             {map[string]string{"config.json": "", "adapter_config.json": "{}", "adapter_model.safetensors": ""}},
		"beside":              {map[string]string{"adapter_model.bin": "PK"}},
		"GGUF":                {map[string]string{"config.json": "", "a.Q4_K_M.gguf": "GGUF"}},
		"variant":             {map[string]string{"model.fp16.safetensors": ""}},
		"cache":               {map[string]string{"config.json": "", "snapshots/0a1b/config.json": "{}"}},
		"a run":               {map[string]string{"config.json": "", "model/config.json": "{}"}},
		"no index":            {map[string]string{"model-00001-of-00002.safetensors": ""}},
		"pointers":            {map[string]string{"model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"}},
		"pointer to an index": {map[string]string{"model.safetensors.index.json": "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"}},
		"pointer to a config": {map[string]string{"config.json": "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"}},
	} {
		dir := filepath.Join(t.TempDir(), "a[b")
		c.files = filled(c.files)
		for file, content := range c.files {
			if file == "config.json" && content == "" {
				continue
			}
			path := filepath.Join(dir, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(content), 0o666)); err != nil {
				t.Fatal(err)
			}
		}
		m, err := ReadModelConfig(dir)
		if err == nil {
			_, err = OpenModel(dir, m)
		}
		if said.Same(t, name, err); !input.IsInput(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// filled adds a config.json.
func filled(files map[string]string) map[string]string {
	all := map[string]string{"config.json": `{"model_type": "gpt2"}`}
	for name, content := range files {
		all[name] = content
	}
	return all
}
