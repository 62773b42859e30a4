package nn

import (
	"fmt"
	"math"
	"math/cmplx"

	"zeroth/device"
)

// llamaTrunk is Touvron et al.'s Llama as transformers computes it.
type llamaTrunk struct {
	*oracle
	l Llama
}

// llamaSubject is a small model of odd shape: two query heads share a key head.
func llamaSubject(name string, l Llama) subject {
	l.Layers, l.Width, l.Context, l.Vocab, l.Heads, l.KV, l.FFN, l.Eps, l.Theta = 2, 24, 7, 13, 4, 2, 21, 1e-5, 50
	return subject{name, l.Model, func(o *oracle) trunk { return llamaTrunk{o, l} }}
}

func (o llamaTrunk) embed() []float64 {
	var y []float64
	for _, id := range o.input {
		w := o.w
		if o.l.Padded && int(id) == o.l.Pad {
			w = o.constant
		}
		y = append(y, w["model.embed_tokens.weight"][int(id)*o.width:][:o.width]...)
	}
	return y
}

func (o llamaTrunk) block(n int, x []float64) []float64 {
	p := fmt.Sprintf("model.layers.%d.", n)
	norm := o.norm(p+"input_layernorm", x)
	q, k, v := o.linear(p+"self_attn.q_proj", norm), o.linear(p+"self_attn.k_proj", norm), o.linear(p+"self_attn.v_proj", norm)
	x = add(x, o.linear(p+"self_attn.o_proj", o.attention(o.turn(q), o.turn(k), v)))
	norm = o.norm(p+"post_attention_layernorm", x)
	gate, up := o.linear(p+"mlp.gate_proj", norm), o.linear(p+"mlp.up_proj", norm)
	for i, g := range gate {
		up[i] *= g / (1 + math.Exp(-g))
	}
	return add(x, o.linear(p+"mlp.down_proj", up))
}

func (o llamaTrunk) norm(name string, x []float64) []float64 {
	w, y := o.w[name+".weight"], make([]float64, len(x))
	for i := range x {
		row := x[i/o.width*o.width:][:o.width]
		y[i] = x[i] / math.Sqrt(dot(row, row)/float64(o.width)+float64(o.l.Eps)) * w[i%o.width]
	}
	return y
}

// linear is x·weightᵀ, weight (out, in), plus the bias if there is one.
func (o llamaTrunk) linear(name string, x []float64) []float64 {
	weight, bias, in := o.w[name+".weight"], o.w[name+".bias"], o.width
	if len(x) == o.B*o.T*o.l.FFN {
		in = o.l.FFN
	}
	var y []float64
	for ; len(x) > 0; x = x[in:] {
		for j := range len(weight) / in {
			y = append(y, dot(weight[j*in:(j+1)*in], x[:in]))
			if bias != nil {
				y[len(y)-1] += bias[j]
			}
		}
	}
	return y
}

// turn multiplies the complex numbers whose parts are elements j and j+D/2 of a
// head by e^(i position frequency).
func (o llamaTrunk) turn(x []float64) []float64 {
	D, cols := o.width/o.l.Heads, len(x)/(o.B*o.T)
	y := make([]float64, len(x))
	for i := range x {
		if j := i % cols % D; j < D/2 {
			angle := float64(i/cols%o.T) * o.frequency(j)
			z := complex(x[i], x[i+D/2]) * cmplx.Exp(complex(0, angle))
			y[i], y[i+D/2] = real(z), imag(z)
		}
	}
	return y
}

// frequency is theta^(-2j/D), scaled as transformers'
// _compute_llama3_parameters does it.
func (o llamaTrunk) frequency(j int) float64 {
	f, s := math.Pow(o.l.Theta, -2*float64(j)/float64(o.width/o.l.Heads)), o.l.Scaling
	wave := 2 * math.Pi / f
	switch old := float64(s.Context); {
	case s == device.RopeScaling{} || wave < old/s.High:
		return f
	case wave > old/s.Low:
		return f / s.Factor
	default:
		smooth := (old/wave - s.Low) / (s.High - s.Low)
		return (1-smooth)*f/s.Factor + smooth*f
	}
}

// attention is each query head's causal softmax(q·k/sqrt(D))·v, (B*T, C).
func (o llamaTrunk) attention(q, k, v []float64) []float64 {
	D, H, KV := o.width/o.l.Heads, o.l.Heads, o.l.KV
	at := func(b, t, h, heads int) int { return ((b*o.T+t)*heads + h) * D }
	y := make([]float64, len(q))
	for i := range o.B * o.T * H {
		b, t, h := i/H/o.T, i/H%o.T, i%H
		kv, out, sum := h/(H/KV), y[i*D:(i+1)*D], 0.0
		for s := range t + 1 {
			from := at(b, s, kv, KV)
			p := math.Exp(dot(q[i*D:(i+1)*D], k[from:from+D]) / math.Sqrt(float64(D)))
			sum += p
			for j := range out {
				out[j] += p * v[from+j]
			}
		}
		for j := range out {
			out[j] /= sum
		}
	}
	return y
}

func (o llamaTrunk) logits(x []float64) []float64 {
	name := "lm_head"
	if o.l.Tied {
		name = "model.embed_tokens"
	}
	return o.linear(name, o.norm("model.norm", x))
}
