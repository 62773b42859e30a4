package hf

import (
	"maps"
	"math"
	"slices"

	"zeroth/device"
	"zeroth/nn"
)

// The families whose blocks are Llama's with experts.
var (
	mixtral = family{
		kind: "mixtral", name: "Mixtral", class: [2]string{"MixtralForCausalLM", "MixtralModel"},
		ignored: words(`router_aux_loss_coef`),
		base:    decoder{layers: 32, heads: 32, kv: 8, width: 4096, ffn: 14336, vocab: 32000, longest: 4096 * 32, eps: 1e-5},
		read:    readMixtral, write: writeMixtral,
	}
	qwen2moe = family{
		kind: "qwen2_moe", name: "Qwen2-MoE", class: [2]string{"Qwen2MoeForCausalLM", "Qwen2MoeModel"},
		ignored: words(`attention_bias router_aux_loss_coef`),
		base:    decoder{layers: 24, heads: 16, kv: 16, width: 2048, ffn: 5632, vocab: 151936, longest: 32768, eps: 1e-6},
		read:    readQwen2MoE,
	}
	qwen3moe = family{
		kind: "qwen3_moe", name: "Qwen3-MoE", class: [2]string{"Qwen3MoeForCausalLM", "Qwen3MoeModel"},
		ignored: words(`max_window_layers router_aux_loss_coef`),
		base:    decoder{layers: 24, heads: 32, kv: 4, width: 2048, ffn: 6144, vocab: 151936, longest: 32768, eps: 1e-6},
		read:    readQwen3MoE,
	}
	olmoe = family{
		kind: "olmoe", name: "OLMoE", class: [2]string{"OlmoeForCausalLM", "OlmoeModel"},
		ignored: words(`router_aux_loss_coef`),
		base:    decoder{layers: 16, heads: 16, width: 2048, ffn: 2048, vocab: 50304, longest: 4096, eps: 1e-5, padded: true, pad: 1},
		read:    readOLMoE,
	}
	graniteMoE = family{
		kind: "granitemoe", name: "Granite MoE", class: [2]string{"GraniteMoeForCausalLM", "GraniteMoeModel"},
		ignored: words(`position_embedding_type router_aux_loss_coef`),
		base:    llama.base,
		read:    readGraniteMoE,
	}
	graniteMoEShared = family{
		kind: "granitemoeshared", name: "Granite MoE", class: [2]string{"GraniteMoeSharedForCausalLM", "GraniteMoeSharedModel"},
		ignored: graniteMoE.ignored,
		base:    llama.base,
		read:    readGraniteMoEShared,
	}
)

// The names of experts in several families.
var (
	mixtralNames = nn.ExpertNames{
		Router: "block_sparse_moe.gate",
		Gate:   "block_sparse_moe.experts.%d.w1", Up: "block_sparse_moe.experts.%d.w3", Down: "block_sparse_moe.experts.%d.w2",
	}
	qwenNames = nn.ExpertNames{
		Router: "mlp.gate",
		Gate:   "mlp.experts.%d.gate_proj", Up: "mlp.experts.%d.up_proj", Down: "mlp.experts.%d.down_proj",
		Shared: nn.MLPNames{Gate: "mlp.shared_expert.gate_proj", Up: "mlp.shared_expert.up_proj", Down: "mlp.shared_expert.down_proj"}, SharedRouter: "mlp.shared_expert_gate",
	}
	graniteNames = nn.ExpertNames{
		Router: "block_sparse_moe.router.layer",
		Gate:   "block_sparse_moe.input_linear", Down: "block_sparse_moe.output_linear",
		Shared: nn.MLPNames{Gate: "shared_mlp.input_linear", Down: "shared_mlp.output_linear"},
	}
)

// MostExperts is the upper limit of experts in a layer.
const MostExperts = 4096

// experts reads the number of experts, under any of its names, and how many process a row; the defaults are
// the class's. All layers have experts, of the width that intermediate_size gives.
func (o *object) experts(m *Model, names nn.ExpertNames, count, topK int) *nn.Experts {
	x := &m.Experts
	first := ""
	for _, key := range []string{"num_local_experts", "num_experts", "n_routed_experts"} {
		switch n := o.count(key, "", count); {
		case o.raw(key) == nil:
		case first != "" && n != x.Count:
			o.refuse("%s %d and %s %d differ: keep the one that the model was trained with", first, x.Count, key, n)
		default:
			x.Count, first = n, key
		}
	}
	if first == "" {
		x.Count = count
	}
	x.Router = device.Router{TopK: o.count("num_experts_per_tok", "", topK), Scale: 1}
	if x.Count > MostExperts {
		o.refuse("%d experts; want at most %d", x.Count, MostExperts)
	}
	if k := x.Router.TopK; k > min(x.Count, device.MaxTopK) {
		o.refuse("num_experts_per_tok %d of %d experts; want at most %d", k, x.Count, min(x.Count, device.MaxTopK))
	}
	x.Names, x.FFN, m.FFN = names, m.FFN, 0
	return x
}

// balance reads the coefficient of the balancing loss, which transformers adds if output_router_logits is true.
func (o *object) balance(m *Model, otherwise float64) {
	if maybe(o, "output_router_logits", false) {
		m.RouterAux = o.number("router_aux_loss_coef", otherwise, func(x float64) bool { return x >= 0 && !math.IsInf(x, 0) })
	}
}

// sparse reads which layers have experts of the width moe_intermediate_size; the others have an MLP.
func (o *object) sparse(m *Model, width int) {
	x, ffn := &m.Experts, m.Experts.FFN
	only, every := maybe[[]int](o, "mlp_only_layers", nil), o.count("decoder_sparse_step", "", 1)
	x.FFN = o.count("moe_intermediate_size", "", width)
	for i := range min(m.Layers, MostLayers) {
		x.Dense = append(x.Dense, slices.Contains(only, i) || (i+1)%every != 0)
	}
	switch {
	case !slices.Contains(x.Dense, false):
		o.refuse("mlp_only_layers and decoder_sparse_step leave no layer with experts")
	case !slices.Contains(x.Dense, true):
		x.Dense = nil
	default:
		m.FFN = ffn
	}
}

func readMixtral(o *object, m *Model) {
	o.rope(m, 1e6)
	window := 0
	if !o.null("sliding_window") {
		window = o.window(0)
	}
	o.sameLayers(m, window)
	o.experts(m, mixtralNames, 8, 2).Router.Normalize = true
	o.balance(m, 0.001)
}

// writeMixtral writes the config of a Llama whose layers all have experts.
func writeMixtral(m Model, all map[string]any) {
	x := m.Experts
	m.FFN = x.FFN
	writeLlama(m, all)
	for _, key := range []string{"attention_bias", "mlp_bias", "rope_scaling"} {
		delete(all, key)
	}
	maps.Copy(all, map[string]any{"num_local_experts": x.Count, "num_experts_per_tok": x.Router.TopK, "sliding_window": nil, "router_aux_loss_coef": 0.001, "output_router_logits": false})
}

// FreshExperts returns the experts of a model that comes from no folder: Mixtral's.
func FreshExperts(count, topK, width int) nn.Experts {
	return nn.Experts{Count: count, FFN: width, Router: device.Router{TopK: topK, Normalize: true, Scale: 1}, Names: mixtralNames}
}

func readQwen2MoE(o *object, m *Model) {
	o.rope(m, 10000)
	m.BiasQKV = maybe(o, "qkv_bias", true)
	x := o.experts(m, qwenNames, 60, 4)
	x.Router.Normalize = maybe(o, "norm_topk_prob", false)
	x.Shared, x.Gated = o.count("shared_expert_intermediate_size", "", 5632), true
	o.sparse(m, 1408)
	o.balance(m, 0.001)
	used, before, window := maybe(o, "use_sliding_window", false), get(o, "max_window_layers", 28), 4096
	if o.raw("sliding_window"); used {
		window = o.window(window)
	}
	o.layers(m, window, func(layer int) bool { return used && layer%2 == 0 && layer < before })
}

func readQwen3MoE(o *object, m *Model) {
	o.rope(m, 10000)
	m.HeadNorm = nn.EachHead
	o.biases(m)
	o.experts(m, qwenNames, 128, 8).Router.Normalize = maybe(o, "norm_topk_prob", false)
	o.sparse(m, 768)
	o.balance(m, 0.001)
	window := 0
	if o.raw("sliding_window"); maybe(o, "use_sliding_window", false) {
		window = o.window(4096)
	}
	o.sameLayers(m, window)
}

func readOLMoE(o *object, m *Model) {
	o.rope(m, 10000)
	m.HeadNorm = nn.AllHeads
	o.biases(m)
	o.sameLayers(m, 0)
	o.experts(m, qwenNames, 64, 8).Router.Normalize = maybe(o, "norm_topk_prob", false)
	o.balance(m, 0.01)
}

// readGraniteMoE reads Granite with experts, weighed by the softmax of the chosen logits: as that of all,
// normalized.
func readGraniteMoE(o *object, m *Model) {
	readGranite(o, m)
	o.experts(m, graniteNames, 8, 2).Router.Normalize = true
	o.balance(m, 0.001)
}

func readGraniteMoEShared(o *object, m *Model) {
	readGraniteMoE(o, m)
	if n := get(o, "shared_intermediate_size", 0); n != 0 {
		m.Experts.Shared = o.count("shared_intermediate_size", "", 1)
	}
}
