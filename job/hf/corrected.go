package hf

import (
	"zeroth/device"
	"zeroth/nn"
)

// The families whose routers choose by the logistic function of the logits plus a correction.
var (
	glm4MoE = family{
		kind: "glm4_moe", name: "GLM-4-MoE", class: [2]string{"Glm4MoeForCausalLM", "Glm4MoeModel"},
		ignored: words(`output_router_logits topk_method scoring_func`),
		base:    decoder{layers: 46, heads: 96, kv: 8, head: 128, width: 4096, ffn: 10944, vocab: 151552, longest: 131072, eps: 1e-5},
		read:    readGLM4MoE,
	}
	dots1 = family{
		kind: "dots1", name: "dots1", class: [2]string{"Dots1ForCausalLM", "Dots1Model"},
		ignored: words(`output_router_logits topk_method scoring_func moe_layer_freq`),
		base:    decoder{layers: 62, heads: 32, kv: 32, width: 4608, ffn: 10944, vocab: 152064, longest: 2048, eps: 1e-6},
		read:    readDots1,
	}
	minimaxM2 = family{
		kind: "minimax_m2", name: "MiniMax-M2", class: [2]string{"MiniMaxM2ForCausalLM", "MiniMaxM2Model"},
		ignored: words(`router_aux_loss_coef`),
		base:    decoder{layers: 62, heads: 48, kv: 8, head: 128, width: 3072, ffn: 1536, vocab: 200064, longest: 196608, eps: 1e-6},
		read:    readMiniMaxM2,
	}
)

// corrected reads the router and experts of DeepSeek-V3's kind: groups, a scale, a correction, the first layers
// dense, and shared experts, which are one. The router is float32.
func (o *object) corrected(m *Model, count, topK, width, dense int, normalize bool) {
	names := qwenNames
	names.Bias, names.Shared = "mlp.gate.e_score_correction_bias", nn.MLPNames{Gate: "mlp.shared_experts.gate_proj", Up: "mlp.shared_experts.up_proj", Down: "mlp.shared_experts.down_proj"}
	ffn := m.FFN
	x := o.experts(m, names, count, topK)
	x.Single, x.FFN = true, o.count("moe_intermediate_size", "", width)
	if n := maybe(o, "n_shared_experts", 0); n != 0 {
		x.Shared = o.count("n_shared_experts", "", 1) * x.FFN
	}
	r := &x.Router
	r.Score, r.Bias, r.GroupBest = device.Sigmoid, true, 2
	r.Groups, r.TopGroups = o.count("n_group", "", 1), o.count("topk_group", "", 1)
	if each := x.Count / r.Groups; r.Groups > 1 && (x.Count%r.Groups != 0 || each < r.GroupBest || r.TopGroups > min(r.Groups, device.MaxTopK) || r.TopK > r.TopGroups*each) {
		o.refuse("n_group %d and topk_group %d do not leave %d of %d experts; want groups of equally many experts, at least %d, and num_experts_per_tok of them in topk_group groups", r.Groups, r.TopGroups, r.TopK, x.Count, r.GroupBest)
		r.Groups, r.TopGroups = 1, 1
	}
	r.Normalize, r.Floor = maybe(o, "norm_topk_prob", normalize), 1e-20
	r.Scale = float32(o.number("routed_scaling_factor", 1, Positive))
	first := maybe(o, "first_k_dense_replace", dense)
	if first < 0 || first >= m.Layers {
		o.refuse("first_k_dense_replace %d leaves no layer of %d with experts", first, m.Layers)
	} else if first > 0 {
		m.FFN, x.Dense = ffn, make([]bool, min(m.Layers, MostLayers))
		for i := range first {
			x.Dense[i] = true
		}
	}
	if n := maybe(o, "num_nextn_predict_layers", 0); n > 0 {
		m.Predicting = min(n, Most)
	}
}

func readGLM4MoE(o *object, m *Model) {
	o.partial(m, 0.5)
	o.rope(m, 10000)
	m.BiasQKV = maybe(o, "attention_bias", false)
	if maybe(o, "use_qk_norm", false) {
		m.HeadNorm = nn.EachHead
	}
	o.corrected(m, 128, 8, 1408, 1, true)
	o.sameLayers(m, 0)
}

func readDots1(o *object, m *Model) {
	o.rope(m, 10000)
	m.HeadNorm = nn.EachHead
	o.biases(m)
	o.corrected(m, 1, 1, 1408, 0, false)
	window, from := o.window(4096), maybe(o, "max_window_layers", 62)
	o.layers(m, window, func(layer int) bool { return window > 0 && layer >= from })
}

// readMiniMaxM2 reads a model whose router has the type of the other weights.
func readMiniMaxM2(o *object, m *Model) {
	part := 1.0
	if !o.null("rotary_dim") {
		part = float64(o.count("rotary_dim", "", m.Head())) / float64(m.Head())
	}
	o.partial(m, part)
	o.rope(m, 5e6)
	m.HeadNorm = nn.AllHeads
	names := mixtralNames
	names.Bias = "block_sparse_moe.e_score_correction_bias"
	x := o.experts(m, names, 256, 8)
	x.Router.Score, x.Router.Bias, x.Router.Normalize, x.Router.Floor = device.Sigmoid, true, true, 1e-20
	o.balance(m, 0.001)
	o.sameLayers(m, 0)
}
