package hf

var granite = family{
	kind: "granite", name: "Granite", class: [2]string{"GraniteForCausalLM", "GraniteModel"},
	ignored: words(`original_max_position_embeddings`),
	read:    readGranite,
}

// readGranite reads Hugging Face's GraniteConfig: Llama with multipliers of embeddings, attention
// scores (replacing their scale) and residual additions, and a divisor of logits.
func readGranite(o *object) (Model, []string) {
	m, notes := readLlama(o)
	factor := func(key string) float64 { return o.number(key, 1, Positive) }
	scores := factor("attention_multiplier")
	m.Scale = 1 / (scores * scores)
	m.Factors.Embed, m.Factors.Residual, m.Factors.Logits = factor("embedding_multiplier"), factor("residual_multiplier"), 1/factor("logits_scaling")
	for _, f := range []*float64{&m.Factors.Embed, &m.Factors.Residual, &m.Factors.Logits} {
		if *f == 1 {
			*f = 0
		}
	}
	return m, notes
}
