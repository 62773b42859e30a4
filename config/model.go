package config

import (
	"zeroth/device"
	"zeroth/job/hf"
)

// modelKeys returns the keys of the model.
func (c *Config) modelKeys() []field {
	m := &c.Model
	llama := func(key string) []only {
		return onlyIf("with model.family llama, without model.from", m.Family == "llama", "model.family", m.Family+" has no "+key)
	}
	x := &m.Experts
	mixed := func() []only {
		return append(llama("experts"), onlyIf("with experts.count", x.Count > 0, "model.experts.count", "the model has no experts")...)
	}
	dense := append(llama("ffn"), onlyIf("without experts", x.Count == 0, "model.experts.count", "every layer has experts instead")...)
	modules := onlyIf("", m.Family != Program, "model.family", "the program's network has its own")
	return []field{
		{key: "model.from", value: path(&m.From, models, objects),
			rule: "fresh parameters", like: "models/gpt2",
			doc: "folder with config.json and model.safetensors to start from, hf://org/name[@revision] " +
				"on the Hugging Face Hub, or s3://bucket/folder; instead of the other model keys except " +
				"context",
			when: "instead of the other model keys except context"},
		{key: "model.adapters", value: patterns(&c.Merged), rule: "none", like: `["runs/a/adapter"]`,
			doc: "list of folders with LoRA adapters (PEFT's format) to merge into the parameters of " +
				"model.from, in this order",
			only: onlyIf("with model.from", m.From != "", "model.from", "fresh parameters have no adapters")},
		{key: "model.family", value: choice(&m.Family, families), initial: "gpt2", shape: true,
			doc: "gpt2 | llama | program: architecture; program: the network of the Go program that runs " +
				"the job (job.Options.Model), without the other model keys except context"},
		{key: "model.layers", value: count(&m.Layers, 1, hf.MostLayers), initial: "6", shape: true,
			doc: "number of transformer blocks"},
		{key: "model.heads", value: count(&m.Heads, 1, hf.Most), initial: "6", shape: true,
			doc: "attention heads per block; divides width"},
		{key: "model.kv_heads", value: count(&m.KV, 1, hf.Most), rule: "heads", like: "2", shape: true,
			doc:  "llama: heads of keys and values; divides heads",
			only: llama("kv_heads"),
			then: func() { m.KV = pick(m.Family == "llama", m.Heads, 0) }},
		{key: "model.width", value: count(&m.Width, 1, hf.Most), initial: "384", shape: true,
			doc: "elements of an embedding and of a block's input (hidden size)"},
		{key: "model.ffn", value: count(&m.FFN, 1, 4*hf.Most),
			rule: "8/3 of width, rounded up to a multiple of 64", like: "1024", shape: true,
			doc:  "llama: width of the feed-forward layer (intermediate size)",
			only: dense,
			then: func() { m.FFN = pick(m.Family == "llama" && x.Count == 0, (8*m.Width/3+63)/64*64, 0) }},
		{key: "model.experts.count", value: count(&x.Count, 1, hf.MostExperts).omitted(func() bool { return x.Count == 0 }),
			rule: "none", like: "16", shape: true,
			doc:  "llama: experts of each layer, which replace the feed-forward layer (mixture of experts)",
			only: llama("experts")},
		{key: "model.experts.per_token", value: count(&x.Router.TopK, 1, hf.MostExperts), rule: "2", like: "2", shape: true,
			doc:  "llama: experts that process each token; no token is dropped",
			only: mixed(),
			then: func() { x.Router.TopK = pick(x.Count > 0, min(2, x.Count), 0) }},
		{key: "model.experts.width", value: count(&x.FFN, 1, hf.Most),
			rule: "8/3 of width / per_token, rounded up to a multiple of 64", like: "512", shape: true,
			doc:  "llama: width of the hidden layer of an expert",
			only: mixed(),
			then: func() { x.FFN = pick(x.Count > 0, (8*m.Width/3/max(1, x.Router.TopK)+63)/64*64, 0) }},
		{key: "model.context", value: count(&m.Context, 1, hf.Most), initial: "256",
			doc: "tokens per sequence; with model.from: the model's maximum or, for data.documents, the " +
				"longest document, rounded up to a multiple of 64"},
		{key: "model.vocab", value: count(&m.Vocab, 2, hf.Most),
			rule: "the tokenizer's: 256 or 50257", like: "50257", shape: true,
			doc: "size of the vocabulary"},
		{key: "model.rope_theta", value: positive(&m.Theta), rule: "10000", like: "500000", shape: true,
			doc:  "llama: base of the rotary positions' wavelengths",
			only: llama("rope_theta"),
			then: func() { m.Theta = pick(m.Family == "llama", 10000.0, 0) }},
		{key: "model.tied", value: flag(&m.Tied), rule: "false", like: "true", shape: true,
			doc:  "llama: the output layer is the token embedding",
			only: llama("tied")},
		{key: "model.dropout", value: perhaps(&c.Dropout, dropped),
			rule: "0; with model.from, that of its config.json", like: "0.1", lasts: true,
			doc:  "dropout probability of the embedding and of the outputs of attention and MLP",
			only: modules},
		{key: "model.weights", value: choice(&c.Weights, device.Codes[:]), initial: "full", lasts: true,
			doc: "full | nf4 | int8: frozen matrices of blocks are stored in precision, or in 4 or 8 bits " +
				"and decoded for use (QLoRA)"},
		{key: "model.attention_dropout", value: dropped(&c.AttentionDropout), initial: "0", lasts: true,
			doc:  "dropout probability of attention weights",
			only: modules},
	}
}
