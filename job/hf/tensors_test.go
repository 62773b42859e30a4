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
	"zeroth/input"
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
		want   string
	}{
		"missing": {gpt2, func(all map[string]*Tensor) {
			delete(all, "transformer.h.1.ln_2.bias")
			delete(all, "transformer.wpe.weight")
			all["transformer.ln_f.bias"].shape = []int{8, 1}
		}, "transformer.ln_f.bias has shape [8 1], but config.json implies [8]; 2 parameters are missing: transformer.wpe.weight, transformer.h.1.ln_2.bias"},
		"more layers": {gpt2, func(all map[string]*Tensor) {
			all["transformer.h.2.ln_1.bias"], all["transformer.h.11.ln_1.bias"] = zeros("F32", 8), zeros("F32", 8)
		}, "it has layers up to number 11, counting from 0, but config.json has 2 layers"},
		"a parameter more":       {llama, func(all map[string]*Tensor) { all["model.layers.0.self_attn.q_norm.weight"] = zeros("F32", 8) }, "it has tensors that its class does not: model.layers.0.self_attn.q_norm.weight"},
		"biases":                 {llama, func(all map[string]*Tensor) { all["model.layers.0.self_attn.q_proj.bias"] = zeros("F32", 8) }, "it has tensors that its class does not: model.layers.0.self_attn.q_proj.bias"},
		"a head's bias":          {llama, func(all map[string]*Tensor) { all["lm_head.bias"] = zeros("F32", 16) }, "it has tensors that its class does not: lm_head.bias"},
		"twice":                  {gpt2, func(all map[string]*Tensor) { all["wte.weight"] = zeros("F32", 16, 8) }, "it has tensors that its class does not: wte.weight"},
		"names with escapes":     {gpt2, func(all map[string]*Tensor) { all["transformer.\x1b[2J"] = zeros("F32", 1) }, "it has tensors that its class does not: transformer.\\x1b[2J"},
		"double":                 {gpt2, as("transformer.wpe.weight", "F64"), "transformer.wpe.weight is F64; want F32, BF16 or F16: save it with model.float()"},
		"FP8":                    {llama, as("model.layers.0.mlp.up_proj.weight", "F8_E4M3"), "model.layers.0.mlp.up_proj.weight is F8_E4M3; want F32, BF16 or F16: use the unquantized model"},
		"integers":               {llama, as("model.layers.1.mlp.up_proj.weight", "I8"), "model.layers.1.mlp.up_proj.weight is I8; want F32, BF16 or F16: use the unquantized model"},
		"torch.compile":          {gpt2, before("_orig_mod."), "it has tensors such as _orig_mod.transformer.h.0.attn.c_attn.bias, named by torch.compile's wrapper: "},
		"torch.compile, inside":  {llama, rename(func(s string) string { return strings.Replace(s, "layers.0.", "layers.0._orig_mod.", 1) }), "it has tensors such as model.layers.0._orig_mod.input_layernorm.weight, named by torch.compile's"},
		"DataParallel":           {gpt2, before("module."), "it has tensors such as module.transformer.h.0.attn.c_attn.bias, named by DataParallel's wrappers: "},
		"PEFT":                   {gpt2, before("base_model.model."), "it has tensors such as base_model.model.transformer.h.0.attn.c_attn.bias, named by an adapter (PEFT): "},
		"quantised":              {llama, rename(func(s string) string { return strings.Replace(s, "up_proj.weight", "up_proj.qweight", 1) }), "it has tensors such as model.layers.0.mlp.up_proj.qweight, named like quantized ones: "},
		"a NaN":                  {gpt2, set("transformer.h.1.ln_2.weight", 5, math.NaN()), `model.safetensors: element 5 of "transformer.h.1.ln_2.weight" is NaN`},
		"an infinity":            {gpt2, set("transformer.wte.weight", 127, math.Inf(-1)), `model.safetensors: element 127 of "transformer.wte.weight" is -Inf`},
		"an infinity of 16 bits": {gpt2, func(all map[string]*Tensor) { x := all["transformer.wpe.weight"]; x.dtype, x.data[3] = "F16", 1e9 }, `element 3 of "transformer.wpe.weight" is +Inf`},
		"a NaN of 16 bits": {gpt2, func(all map[string]*Tensor) {
			x := all["transformer.wpe.weight"]
			x.dtype, x.data[63] = "BF16", float32(math.NaN())
		}, `element 63 of "transformer.wpe.weight" is NaN`},
		"another head": {llama, func(all map[string]*Tensor) {
			words := all["model.embed_tokens.weight"]
			head := &Tensor{"F32", words.shape, append([]float32{}, words.data...)}
			head.data[100]++
			all["lm_head.weight"] = head
		}, "model.safetensors: element 100 of lm_head.weight is "},
		"a smaller head": {gpt2, func(all map[string]*Tensor) { all["lm_head.weight"] = zeros("F32", 15, 8) },
			"model.safetensors: lm_head.weight is F32[15 8], but the embedding to which config.json ties it is F32[16 8]"},
	} {
		_, err := openedFolder(t, FolderOf(t, c.model, c.change), c.model)
		if err == nil || !strings.Contains(err.Error(), c.want) || !input.IsInput(err) {
			t.Errorf("%s: %v; want %s", name, err, c.want)
		}
	}
}

// Folders that are not safetensors models are identified.
func TestForeignFolders(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string // in addition to a config.json of GPT-2, unless included
		want  string
	}{
		"empty":         {nil, "has neither model.safetensors nor model.safetensors.index.json"},
		"pickle":        {map[string]string{"pytorch_model.bin": "PK"}, "pytorch_model.bin is PyTorch's: convert it with 'zeroth ckpt export FOLDER --to NEW'"},
		"pickled parts": {map[string]string{"pytorch_model-00001-of-00002.bin": "PK", "pytorch_model.bin.index.json": "{}"}, "pytorch_model-00001-of-00002.bin is PyTorch's: "},
		"named so":      {map[string]string{"model.safetensors": "PK\x03\x04aaaaaaaaaaaa"}, "model.safetensors: it is a zip archive, such as PyTorch's pickles, not a safetensors file"},
		"Meta's":        {map[string]string{"config.json": "", "consolidated.00.pth": "PK", "params.json": "{}"}, "config.json cannot be read: no such file or directory; consolidated.00.pth is PyTorch's: "},
		"adapter":       {map[string]string{"config.json": "", "adapter_config.json": "{}", "adapter_model.safetensors": ""}, "adapter_config.json belongs to an adapter: merge it into its model (PEFT's merge_and_unload) and save that, or start a job from its model in model.from, with the adapter in model.adapters or train.lora.from"},
		"beside":        {map[string]string{"adapter_model.bin": "PK"}, "adapter_model.bin is an adapter: merge"},
		"GGUF":          {map[string]string{"config.json": "", "a.Q4_K_M.gguf": "GGUF"}, "no such file or directory; a.Q4_K_M.gguf is GGUF: use the model it was converted from"},
		"variant":       {map[string]string{"model.fp16.safetensors": ""}, "model.fp16.safetensors is not the expected name, model.safetensors"},
		"cache":         {map[string]string{"config.json": "", "snapshots/0a1b/config.json": "{}"}, "snapshots belongs to the Hub's cache: use the folder of a revision in it"},
		"a run":         {map[string]string{"config.json": "", "model/config.json": "{}"}, "model/config.json exists: use that folder"},
		"no index":      {map[string]string{"model-00001-of-00002.safetensors": ""}, "model-00001-of-00002.safetensors is part of a model, but its index, model.safetensors.index.json, is missing"},
		"pointers": {map[string]string{"model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"},
			"model.safetensors: it is a Git LFS pointer (fetch the file itself with `git lfs pull`)"},
		"pointer to an index": {map[string]string{"model.safetensors.index.json": "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"},
			"model.safetensors.index.json: it is a Git LFS pointer"},
		"pointer to a config": {map[string]string{"config.json": "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"}, "config.json: not a model's config: it is a Git LFS pointer"},
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
		if err == nil || !strings.Contains(err.Error(), c.want) || !input.IsInput(err) {
			t.Errorf("%s: %v; want %s", name, err, c.want)
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
