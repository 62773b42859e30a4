package nn

import (
	"fmt"
	"math"
	"math/cmplx"

	"zeroth/device"
)

// llamaTrunk computes Touvron et al.'s Llama like transformers.
type llamaTrunk struct {
	*oracle
	l Llama
}

// llamaSubject returns a small model of odd shape: two query heads share a key head.
func llamaSubject(name string, l Llama) subject {
	l.Layers, l.Width, l.Context, l.Vocab, l.Heads, l.KV, l.FFN, l.Eps, l.Theta = 2, 24, tinyContext, 13, 4, 2, 21, 1e-5, 50
	return subject{name: name, model: l.Model, trunk: func(o *oracle) trunk { return llamaTrunk{o, l} }}
}

func (o llamaTrunk) embed() []float64 {
	var y []float64
	scale := 1.0
	if o.l.Gemma {
		scale = math.Sqrt(float64(o.width))
	}
	if f := o.l.Factors.Embed; f != 0 {
		scale = f
	}
	for _, id := range o.input {
		w := o.w
		if o.l.Padded && int(id) == o.l.Pad {
			w = o.constant
		}
		for _, x := range w["model.embed_tokens.weight"][int(id)*o.width:][:o.width] {
			y = append(y, scale*x)
		}
	}
	return o.drop(0, o.l.Dropout.Embed, y)
}

func (o llamaTrunk) block(n int, x []float64) []float64 {
	p := fmt.Sprintf("model.layers.%d.", n)
	x = o.half(2*n+1, p, [2]string{"input", "post_attention"}, x, func(x []float64) []float64 { return o.attend(p+"self_attn.", n, x) })
	second := [2]string{"post_attention", "post_feedforward"}
	if o.l.Norms == NormBoth {
		second[0] = "pre_feedforward"
	}
	return o.half(2*n+2, p, second, x, func(x []float64) []float64 { return o.mlp(p+"mlp.", x) })
}

// half returns x plus f of it, with the norms before and after f, if any; the added term is dropped
// in training.
func (o llamaTrunk) half(place int, p string, norms [2]string, x []float64, f func([]float64) []float64) []float64 {
	y := x
	if o.l.Norms != NormAfter {
		y = o.norm(p+norms[0]+"_layernorm", o.width, y)
	}
	y = f(y)
	if o.l.Norms != NormBefore {
		y = o.norm(p+norms[1]+"_layernorm", o.width, y)
	}
	if f := o.l.Factors.Residual; f != 0 {
		y = scaledBy(f, y)
	}
	return add(x, o.drop(place, o.l.Dropout.Residual, y))
}

func (o llamaTrunk) mlp(p string, x []float64) []float64 {
	var gate, up []float64
	if o.l.Fused {
		both := o.linear(p+"gate_up_proj", o.width, x)
		gate, up = columns(both, 2*o.l.FFN, 0, o.l.FFN), columns(both, 2*o.l.FFN, o.l.FFN, 2*o.l.FFN)
	} else {
		gate, up = o.linear(p+"gate_proj", o.width, x), o.linear(p+"up_proj", o.width, x)
	}
	for i, g := range gate {
		up[i] *= activated(o.l.Gate.activation(), g)
	}
	return o.linear(p+"down_proj", o.l.FFN, up)
}

func scaledBy(f float64, x []float64) (y []float64) {
	for _, v := range x {
		y = append(y, f*v)
	}
	return y
}

// columns returns columns [lo, hi) of rows of n.
func columns(x []float64, n, lo, hi int) (y []float64) {
	for ; len(x) > 0; x = x[n:] {
		y = append(y, x[lo:hi]...)
	}
	return y
}

func (o llamaTrunk) head() int {
	if o.l.Head > 0 {
		return o.l.Head
	}
	return o.width / o.l.Heads
}

func (o llamaTrunk) attend(p string, layer int, x []float64) []float64 {
	var q, k, v []float64
	a, kv := o.l.Heads*o.head(), o.l.KV*o.head()
	if o.l.Fused {
		all := o.linear(p+"qkv_proj", o.width, x)
		q, k, v = columns(all, a+2*kv, 0, a), columns(all, a+2*kv, a, a+kv), columns(all, a+2*kv, a+kv, a+2*kv)
	} else {
		q, k, v = o.linear(p+"q_proj", o.width, x), o.linear(p+"k_proj", o.width, x), o.linear(p+"v_proj", o.width, x)
	}
	switch o.l.HeadNorm {
	case EachHead:
		q, k = o.norm(p+"q_norm", o.head(), q), o.norm(p+"k_norm", o.head(), k)
	case AllHeads:
		q, k = o.norm(p+"q_norm", a, q), o.norm(p+"k_norm", kv, k)
	}
	if o.l.Layout == "" || o.l.Layout[layer] != 'u' {
		q, k = o.turn(layer, q), o.turn(layer, k)
	}
	return o.linear(p+"o_proj", a, o.attention(layer, q, k, v))
}

// norm normalizes rows of n elements.
func (o llamaTrunk) norm(name string, n int, x []float64) []float64 {
	w, y := o.w[name+".weight"], make([]float64, len(x))
	for i := range x {
		row, gain := x[i/n*n:][:n], w[i%n]
		if o.l.Gemma {
			gain++
		}
		y[i] = x[i] / math.Sqrt(dot(row, row)/float64(n)+float64(o.l.Eps)) * gain
	}
	return y
}

// linear returns x·weightᵀ, rows of in elements, weight (out, in), plus the bias if there is one.
func (o llamaTrunk) linear(name string, in int, x []float64) []float64 {
	weight, bias := o.w[name+".weight"], o.w[name+".bias"]
	var y []float64
	order := "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj"
	if o.l.Fused {
		order = "self_attn.qkv_proj self_attn.o_proj mlp.gate_up_proj mlp.down_proj"
	}
	more := o.adapted(o.l.LoRA, order, name, in, len(weight)/in, x)
	for ; len(x) > 0; x = x[in:] {
		for j := range len(weight) / in {
			y = append(y, dot(weight[j*in:(j+1)*in], x[:in]))
			if bias != nil {
				y[len(y)-1] += bias[j]
			}
		}
	}
	return add(y, more)
}

// turn multiplies the complex numbers with parts j and j+D/2 of a head by e^(i position frequency).
func (o llamaTrunk) turn(layer int, x []float64) []float64 {
	D, cols := o.head(), len(x)/(o.B*o.T)
	amplitude := complex(1, 0)
	if a := o.l.Scaling.Amplitude; a != 0 {
		amplitude = complex(a, 0)
	}
	y, frequency := make([]float64, len(x)), make([]float64, D/2)
	for j := range frequency {
		frequency[j] = o.frequency(layer, j)
	}
	for i := range x {
		if j := i % cols % D; j < D/2 {
			angle := float64(i/cols%o.T) * frequency[j]
			z := amplitude * complex(x[i], x[i+D/2]) * cmplx.Exp(complex(0, angle))
			y[i], y[i+D/2] = real(z), imag(z)
		}
	}
	return y
}

// frequency returns theta^(-2j/D), scaled like transformers' _compute_linear_scaling_...,
// _compute_llama3_parameters and _compute_yarn_parameters.
func (o llamaTrunk) frequency(layer, j int) float64 {
	theta, s := o.l.Theta, o.l.Scaling
	if o.l.LocalTheta > 0 && o.l.Layout[layer] == 'w' {
		theta, s = o.l.LocalTheta, device.RopeScaling{}
	}
	f := math.Pow(theta, -2*float64(j)/float64(o.head()))
	switch s.Kind {
	case device.RopeLinear:
		return f / s.Factor
	case device.RopeYaRN:
		ramp := min(1, max(0, (float64(j)-s.Low)/(s.High-s.Low)))
		return f/s.Factor*ramp + f*(1-ramp)
	case device.RopeUnscaled:
		return f
	}
	wave := 2 * math.Pi / f
	switch old := float64(s.Context); {
	case wave < old/s.High:
		return f
	case wave > old/s.Low:
		return f / s.Factor
	default:
		smooth := (old/wave - s.Low) / (s.High - s.Low)
		return (1-smooth)*f/s.Factor + smooth*f
	}
}

// attention returns each query head's causal softmax(q·k/sqrt(D))·v, (B*T, A).
func (o llamaTrunk) attention(layer int, q, k, v []float64) []float64 {
	D, H, KV := o.head(), o.l.Heads, o.l.KV
	scale := float64(D)
	if o.l.Scale > 0 {
		scale = o.l.Scale
	}
	at := func(b, t, h, heads int) int { return ((b*o.T+t)*heads + h) * D }
	y := make([]float64, len(q))
	for i := range o.B * o.T * H {
		b, t, h := i/H/o.T, i/H%o.T, i%H
		kv, out, sum := h/(H/KV), y[i*D:(i+1)*D], 0.0
		for s := range t + 1 {
			if o.l.Layout != "" && o.l.Layout[layer] == 'w' && t-s >= o.l.Window {
				continue
			}
			from := at(b, s, kv, KV)
			p := math.Exp(dot(q[i*D:(i+1)*D], k[from:from+D]) / math.Sqrt(scale))
			sum += p
			p *= o.kept(layer, o.l.Dropout.Attention, b, h, t, s)
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
	y := o.linear(name, o.width, o.norm("model.norm", o.width, x))
	if f := o.l.Factors.Logits; f != 0 {
		y = scaledBy(f, y)
	}
	return y
}
