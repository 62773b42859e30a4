package hf

import "zeroth/nn"

var olmo2 = family{
	kind: "olmo2", name: "OLMo 2", class: [2]string{"Olmo2ForCausalLM", "Olmo2Model"},
	base: decoder{layers: 32, heads: 32, width: 4096, ffn: 11008, vocab: 50304, longest: 2048, eps: 1e-5, padded: true, pad: 1},
	read: readOLMo2,
}

func readOLMo2(o *object, m *Model) {
	o.rope(m, 10000)
	m.HeadNorm, m.Norms = nn.AllHeads, nn.NormAfter
	o.biases(m)
	o.sameLayers(m, 0) // no windows
}

var olmo3 = family{
	kind: "olmo3", name: "OLMo 3", class: [2]string{"Olmo3ForCausalLM", "Olmo3Model"},
	base: decoder{layers: 32, heads: 32, width: 4096, ffn: 11008, vocab: 50304, longest: 2048, eps: 1e-5, padded: true, pad: 1},
	read: readOLMo3,
}

// readOLMo3 reads Hugging Face's Olmo3Config: OLMo 2 plus layers with a window, whose rotary
// positions are not scaled.
func readOLMo3(o *object, m *Model) {
	m.HeadNorm, m.Norms = nn.AllHeads, nn.NormAfter
	o.biases(m)
	const theta = 500_000
	if !o.ropes(m, theta, theta) {
		if m.LocalTheta = theta; m.Theta != theta {
			o.refuse("rope_theta %v in an olmo3 without rope_parameters: transformers 4 also applies it to layers with a window, but 5 does not: use rope_parameters", m.Theta)
		}
	}
	o.layers(m, o.window(4096), func(layer int) bool { return (layer+1)%4 != 0 })
}
