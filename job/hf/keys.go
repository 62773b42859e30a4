package hf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/internal/show"
	"zeroth/nn"
)

// Every key of config.json is either read, or listed in one of the tables below, or unknown to
// transformers' class of the family: then a run notes it.
//
// The tables are based on transformers 4.51.3 and 5.23.0, configurations and models of the families,
// and on the keys with which related families change the computation of a block.

// neutral lists keys that change the computation, each with the JSON values that do not. Any
// other value is refused.
var neutral = map[string][]string{
	// Keys of transformers itself.
	"is_causal":                       {"true"}, // otherwise, even with null, positions attend to later ones
	"per_layer_config":                {"null", "{}"},
	"quantization_config":             {"null"},
	"compression_config":              {"null"},
	"quantization":                    {"null"},
	"pruned_heads":                    {"null", "{}"},
	"is_encoder_decoder":              {"false", "null"},
	"add_cross_attention":             {"false", "null"},
	"cross_attention_hidden_size":     {"null"},
	"use_sliding_window":              {"false", "null"},
	"sliding_window":                  {"null"}, // in classes without use_sliding_window; generation applies it
	"attention_chunk_size":            {"null"},
	"use_bidirectional_attention":     {"false", "null"},
	"attention_bias":                  {"false", "null"},
	"mlp_bias":                        {"false", "null"},
	"scale_attn_weights":              {"true"},
	"partial_rotary_factor":           {"1", "null"},
	"mlp_layer_types":                 {"null", "[]"},
	"fusion_config":                   {"null"},
	"scale_attn_by_inverse_layer_idx": {"false"},
	// Keys of families that otherwise equal Llama.
	"rotary_pct":              {"1", "null"},
	"rope_interleaved":        {"false", "null"},
	"no_rope_layers":          {"null", "[]"},
	"no_rope_layer_interval":  {"null", "0"},
	"qk_norm":                 {"false", "null"},
	"use_qk_norm":             {"false", "null"},
	"qk_layernorm":            {"false", "null"},
	"clip_qkv":                {"null"},
	"qkv_bias":                {"false", "null"},
	"attn_logit_softcapping":  {"null"},
	"final_logit_softcapping": {"null"},
	"query_pre_attn_scalar":   {"null"},
	"attention_multiplier":    {"null"},
	"embedding_multiplier":    {"1", "null"},
	"residual_multiplier":     {"1", "null"},
	"logits_scaling":          {"1", "null"},
	"logit_scale":             {"1", "null"},
	"alibi":                   {"false", "null"},
	"parallel_attn":           {"false", "null"},
	"use_parallel_residual":   {"false", "null"},
	// Of experts.
	"num_experts":          {"0", "null"},
	"num_local_experts":    {"0", "null"},
	"n_routed_experts":     {"0", "null"},
	"router_jitter_noise":  {"0", "null"}, // training multiplies inputs by random numbers
	"input_jitter_noise":   {"0", "null"},
	"output_router_logits": {"false", "null"}, // training adds a balancing loss
}

// harmless lists keys, in any family, that do not affect the loss or its gradient: outputs to return,
// labels of other heads, generation, bookkeeping.
var harmless = words(`
	_attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
	_experts_implementation _experts_implementation_internal _flash_attn_2_enabled _name_or_path
	attn_implementation begin_suppress_tokens bad_words_ids chunk_size_feed_forward decoder_start_token_id
	diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size experts_implementation
	exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing
	id2label initializer_range is_decoder keys_to_ignore_at_inference label2id length_penalty max_length min_length
	name_or_path neftune_noise_alpha no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences
	output_attentions output_hidden_states output_past output_scores prefix pretraining_tp problem_type
	remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens
	task_specific_params temperature tf_legacy_loss transformers.js_config tie_encoder_decoder tie_last_hidden_states tokenizer_class top_k top_p
	torchscript transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache
	use_return_dict xla_device`)

// originalContext is read only with rotary positions that are scaled.
const originalContext = "original_max_position_embeddings"

func words(s string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Fields(s) {
		set[word] = true
	}
	return set
}

// unknownKeys checks the keys that the family did not read, and returns the unknown ones.
func (o *object) unknownKeys(f family) (unknown []string) {
	o.classes(f)
	o.remoteCode()
	for _, key := range o.rest() {
		values, decides := neutral[key]
		switch {
		case f.ignored[key] || harmless[key] || key == originalContext && f.base.layers > 0:
		case !decides:
			unknown = append(unknown, show.Brief(key))
		case !slices.ContainsFunc(values, func(v string) bool { return sameJSON([]byte(v), o.raw(key)) }):
			o.refuse("%s %s is not supported; want %s, or remove the key", key, shown(o.raw(key)), show.Either(values))
		}
	}
	return unknown
}

// classes refuses a class other than the family's language model, such as a classifier.
func (o *object) classes(f family) {
	names := f.class
	for _, class := range maybe[[]string](o, "architectures", nil) {
		if !strings.EqualFold(class, names[0]) && !strings.EqualFold(class, names[1]) {
			o.refuse("architectures \"%s\" is not supported; want %s", show.Brief(class), names[0])
		}
	}
}

// remoteCode refuses a model computed by custom code. Custom code of a tokenizer is accepted.
func (o *object) remoteCode() {
	code := o.object("auto_map")
	if code == nil {
		return
	}
	for _, class := range slices.Sorted(maps.Keys(code.values)) {
		if class != "AutoTokenizer" {
			o.refuse("auto_map names custom code for this model (%s %s), which is not executed", show.Brief(class), shown(code.values[class]))
		}
	}
}

// probability reads a dropout probability, with the class's default.
func (o *object) probability(key string, otherwise float64) float64 {
	p := maybe(o, key, otherwise)
	if !device.Droppable(p) {
		o.refuse("%s %v is out of range: want 0, or at least 1/65536 and less than 1", key, p)
	}
	return p
}

// residual reads the supported dropout, from the class's keys for the embedding ("" if it has
// none) and for additions to the residual stream.
func (o *object) residual(m *Model, otherwise float64, embed, residual string) {
	m.Dropout.Residual = o.probability(residual, otherwise)
	values := fmt.Sprintf("%s %v", residual, m.Dropout.Residual)
	if embed != "" {
		m.Dropout.Embed = o.probability(embed, otherwise)
		values = fmt.Sprintf("%s %v, %s", embed, m.Dropout.Embed, values)
	}
	if m.Dropout != (nn.Dropout{}) {
		o.note("config.json sets dropout (%s): training applies it, unless model.dropout is set", values)
	}
}

// weights reads the dropout of attention weights, which is not adopted: it is applied only if the job
// requests it.
func (o *object) weights(otherwise float64, key string) {
	if p := o.probability(key, otherwise); p > 0 {
		o.note("config.json sets dropout of attention weights (%s %v): training applies none, unless model.attention_dropout is set", key, p)
	}
}
