package nn

import (
	"reflect"
	"testing"

	"zeroth/device"
	"zeroth/shard"
)

// TestLlamaParameters pins names, shapes, initial distributions and weight decay. They are those of
// transformers' LlamaForCausalLM, and with biases of Qwen2ForCausalLM: linear and embedding weights
// normal with standard deviation 0.02, norms 1, biases 0.
func TestLlamaParameters(t *testing.T) {
	matrix := func(name string, shape ...int) shard.Param {
		return shard.Param{Name: name, Shape: shape, Init: shard.Init{Std: 0.02}, Group: shard.Decayed}
	}
	scale := func(name string) shard.Param {
		return shard.Param{Name: name, Shape: []int{12}, Init: shard.Init{Mean: 1}}
	}
	const h = "model.layers.0."
	embed, norm, out := matrix("model.embed_tokens.weight", 11, 12), scale("model.norm.weight"), matrix("lm_head.weight", 11, 12)
	block := []shard.Param{
		scale(h + "input_layernorm.weight"),
		matrix(h+"self_attn.q_proj.weight", 12, 12), matrix(h+"self_attn.k_proj.weight", 4, 12),
		matrix(h+"self_attn.v_proj.weight", 4, 12), matrix(h+"self_attn.o_proj.weight", 12, 12),
		scale(h + "post_attention_layernorm.weight"),
		matrix(h+"mlp.gate_proj.weight", 20, 12), matrix(h+"mlp.up_proj.weight", 20, 12), matrix(h+"mlp.down_proj.weight", 12, 20),
	}
	biases := []shard.Param{
		{Name: h + "self_attn.q_proj.bias", Shape: []int{12}},
		{Name: h + "self_attn.k_proj.bias", Shape: []int{4}},
		{Name: h + "self_attn.v_proj.bias", Shape: []int{4}},
	}
	l := Llama{Shape: Shape{Layers: 1, Width: 12, Context: 7, Vocab: 11, Heads: 6}, KV: 2, FFN: 20}
	tied, biased := l, l
	tied.Tied, biased.BiasQKV = true, true
	biased.Name = "Qwen2"
	for _, c := range []struct {
		l     Llama
		name  string
		units []string
		want  [][]shard.Param
	}{
		{l, "Llama", []string{"embed", "layers.0", "head"}, [][]shard.Param{{embed}, block, {out, norm}}},
		{tied, "Llama", []string{"root", "layers.0", "root"}, [][]shard.Param{{embed, norm}, block, {embed, norm}}},
		{biased, "Qwen2", []string{"embed", "layers.0", "head"}, [][]shard.Param{{embed}, append(block, biases...), {out, norm}}},
	} {
		m := c.l.Model()
		if m.Name != c.name || !reflect.DeepEqual(unitsOf(m), c.units) || m.Width != 12 || m.Vocab != 11 || m.Context != 7 {
			t.Errorf("%+v: %s with units %v, width %d, vocabulary %d, context %d", c.l, m.Name, unitsOf(m), m.Width, m.Vocab, m.Context)
		}
		for i, mod := range m.Modules {
			if got := mod.Params(); !reflect.DeepEqual(got, c.want[i]) {
				t.Errorf("%+v: unit %s has %+v, want %+v", c.l, c.units[i], got, c.want[i])
			}
		}
	}
}

// TestLlamaPublishedSizes compares parameter counts of published models, and of one block, with
// transformers'.
func TestLlamaPublishedSizes(t *testing.T) {
	for _, c := range []struct {
		name        string
		l           Llama
		total, each int
	}{
		{"Llama-3.2 1B", Llama{Shape: Shape{Layers: 16, Width: 2048, Heads: 32, Vocab: 128256}, KV: 8, FFN: 8192, Tied: true}, 1_235_814_400, 60_821_504},
		{"Llama-3 8B", Llama{Shape: Shape{Layers: 32, Width: 4096, Heads: 32, Vocab: 128256}, KV: 8, FFN: 14336}, 8_030_261_248, 218_112_000},
		{"Llama-3 70B", Llama{Shape: Shape{Layers: 80, Width: 8192, Heads: 64, Vocab: 128256}, KV: 8, FFN: 28672}, 70_553_706_496, 855_654_400},
		{"Llama-3 405B", Llama{Shape: Shape{Layers: 126, Width: 16384, Heads: 128, Vocab: 128256}, KV: 8, FFN: 53248}, 405_853_388_800, 3_187_703_808},
		{"Llama-2 7B", Llama{Shape: Shape{Layers: 32, Width: 4096, Heads: 32, Vocab: 32000}, KV: 32, FFN: 11008}, 6_738_415_616, 202_383_360},
		{"Qwen2 0.5B", Llama{Shape: Shape{Layers: 24, Width: 896, Heads: 14, Vocab: 151936}, KV: 2, FFN: 4864, Tied: true, BiasQKV: true}, 494_032_768, 14_912_384},
	} {
		m := c.l.Model()
		n, each := 0, 0
		for _, p := range unique(m) {
			n += p.Numel()
		}
		for _, p := range m.Modules[1].Params() {
			each += p.Numel()
		}
		if n != c.total || each != c.each {
			t.Errorf("%s: %d parameters, %d in a block, want %d, %d", c.name, n, each, c.total, c.each)
		}
	}
}

// TestLongRoPE checks that the longest document of a batch decides how positions turn, as in
// transformers, however many positions its sequences have.
func TestLongRoPE(t *testing.T) {
	b := &llamaBlock{l: Llama{Shape: Shape{Heads: 1, Width: 4}, Theta: 1e4, Scaling: device.RopeScaling{Kind: device.RopeLong, Context: 8, Factors: []float64{1, 2}, Beyond: []float64{3, 4}}}}
	for _, c := range []struct {
		positions, longest int
		factor             float64
	}{{8, 0, 1}, {9, 0, 3}, {16, 8, 1}, {16, 9, 3}, {8, 9, 3}} {
		if got := b.rope(&Batch{B: 1, T: c.positions, Longest: c.longest}).Scaling.Factors[0]; got != c.factor {
			t.Errorf("%d positions, %d tokens: factor %v, want %v", c.positions, c.longest, got, c.factor)
		}
	}
}
