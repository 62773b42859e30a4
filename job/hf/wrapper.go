package hf

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"zeroth/internal/show"
)

// A Gemma 3 model for text and images is a wrapper: config.json has the language model's in
// text_config, and the names of its parameters have one of the prefixes below. Only the language
// model is read, and from then on it is a gemma3_text.

const wrapperNote = "config.json describes a model of text and images (Gemma3ForConditionalGeneration): only its language model is used, and it is exported as a Gemma3ForCausalLM"

// wrapperKeys are the keys of the wrapper that do not concern its language model. Its pad_token_id is
// not the one of the embedding.
var wrapperKeys = words(`architectures boi_token_id boi_token_index eoi_token_id eoi_token_index image_token_id image_token_index
	initializer_range mm_tokens_per_image model_type pad_token_id processor_class text_config vision_config`)

// generationKeys are keys that concern the language model but differ there without consequence.
var generationKeys = words(`bos_token_id eos_token_id dtype torch_dtype transformers_version use_cache`)

// languageModel returns the config.json of the language model inside a wrapper's config.json, and
// whether raw is a wrapper's. Otherwise it returns raw.
func languageModel(raw []byte) (config []byte, wrapped bool, err error) {
	o, err := readObject(raw)
	if err != nil || !sameJSON(o.raw("model_type"), []byte(`"gemma3"`)) {
		return raw, false, nil // other errors are reported when it is read
	}
	for _, class := range maybe[[]string](o, "architectures", nil) {
		if class != "Gemma3ForConditionalGeneration" {
			o.refuse("architectures \"%s\" is not supported; want Gemma3ForConditionalGeneration", show.Brief(class))
		}
	}
	text := o.object("text_config")
	if text == nil {
		o.refuse("text_config is missing")
		return nil, true, o.err()
	}
	if kind := maybe(text, "model_type", "gemma3_text"); kind != "gemma3_text" {
		o.refuse("text_config.model_type \"%s\" is not supported; want gemma3_text", show.Brief(kind))
	}
	if !text.null("final_logit_softcapping") {
		o.refuse("text_config.final_logit_softcapping %s applies in the language model, but not in a Gemma3ForConditionalGeneration; want null", shown(text.raw("final_logit_softcapping")))
	}
	const tied = "tie_word_embeddings"
	if a, b := get(o, tied, true), get(text, tied, true); a != b {
		o.refuse("%s %t and text_config.%s %t differ: keep the one that the model was trained with", tied, a, tied, b)
	}
	merged := maps.Clone(text.values)
	for _, key := range slices.Sorted(maps.Keys(o.values)) {
		own, both := merged[key]
		switch {
		case wrapperKeys[key]:
		case !both || generationKeys[key]:
			merged[key] = o.values[key]
		case !sameJSON(own, o.values[key]):
			o.refuse("%s %s and text_config.%s %s differ: keep the one that the model was trained with", key, shown(o.values[key]), key, shown(own))
		}
	}
	merged["model_type"], merged["architectures"] = json.RawMessage(`"gemma3_text"`), MustJSON(gemma3.class[:1])
	return append(MustJSON(merged), '\n'), true, o.err()
}

// unwrapped returns the names that a parameter may have in a wrapper's files: of transformers before
// 4.52, and since then.
func unwrapped(name string) []string {
	names := []string{"language_model." + name}
	if rest, ok := strings.CutPrefix(name, "model."); ok {
		names = append(names, "model.language_model."+rest)
	}
	return names
}
