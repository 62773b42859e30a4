package nn

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"zeroth/device"
)

// oracle is a model in float64, in plain loops, with the mean loss as computed by transformers. Its
// gradients are central differences: there is no backward pass that could share a mistake with the
// one under test.
type oracle struct {
	trunk
	layers, width, vocab int
	B, T                 int
	drops                Drops
	input, target        []int32              // (B*T)
	w                    map[string][]float64 // by parameter name
	constant             map[string][]float64 // the same, but not differentiated
}

// trunk is the computation of a family.
type trunk interface {
	embed() []float64                   // (B*T, C)
	block(n int, x []float64) []float64 // layer n of x, (B*T, C)
	logits(x []float64) []float64       // (B*T, V)
}

// gptTrunk computes Radford et al.'s GPT-2.
type gptTrunk struct {
	*oracle
	g GPT2
}

// embed returns wte[token] + wpe[position], (B*T, C).
func (o gptTrunk) embed() []float64 {
	C := o.g.Width
	y := make([]float64, o.B*o.T*C)
	for i, id := range o.input {
		for j := range C {
			y[i*C+j] = o.w["transformer.wte.weight"][int(id)*C+j] + o.w["transformer.wpe.weight"][i%o.T*C+j]
		}
	}
	return o.drop(0, o.g.Dropout.Embed, y)
}

// drop returns x, (B*T, C), with training's dropout at a place of the model: device.Dropout's
// definition, element by element.
func (o *oracle) drop(place int, p float64, x []float64) []float64 {
	return o.dropWide(place, p, o.width, x)
}

// dropWide is drop for rows of any width.
func (o *oracle) dropWide(place int, p float64, width int, x []float64) []float64 {
	d := device.Dropout{Seed: o.drops.Seed}
	limit, y := math.Round(p*65536), slices.Clone(x)
	if limit == 0 {
		return y
	}
	var r [4]uint32 // for eight elements
	for i, v := range x {
		row, c := o.drops.Row+uint64(i/width), i%width
		if c%8 == 0 {
			r = device.Philox([4]uint32{uint32(c / 8), uint32(place), uint32(row), uint32(row >> 32)}, d.Key())
		}
		if half := r[c%8/2] >> (16 * (c % 2)) & 0xffff; float64(half) >= limit {
			y[i] = v / (1 - limit/65536)
		} else {
			y[i] = 0
		}
	}
	return y
}

// kept returns the factor that dropout of probability p applies to the weight of a key for a query
// of a head in training, as device.Attn defines it.
func (o *oracle) kept(layer int, p float64, b, h, t, s int) float64 {
	d := device.Dropout{Seed: o.drops.Seed}
	limit, row := math.Round(p*65536), o.drops.Row+uint64(b*o.T+t)+uint64(h)<<44
	if limit == 0 {
		return 1
	}
	r := device.Philox([4]uint32{uint32(s / 8), 1<<31 + uint32(layer), uint32(row), uint32(row >> 32)}, d.Key())
	if half := r[s%8/2] >> (16 * (s % 2)) & 0xffff; float64(half) < limit {
		return 0
	}
	return 1 / (1 - limit/65536)
}

// block returns layer n of x, (B*T, C).
func (o gptTrunk) block(n int, x []float64) []float64 {
	p := fmt.Sprintf("transformer.h.%d.", n)
	qkv := o.linear(p+"attn.c_attn", o.norm(p+"ln_1", x))
	x = add(x, o.drop(2*n+1, o.g.Dropout.Residual, o.linear(p+"attn.c_proj", o.attention(n, qkv))))
	hidden := o.linear(p+"mlp.c_fc", o.norm(p+"ln_2", x))
	for i, v := range hidden {
		hidden[i] = activated(o.g.Act, v)
	}
	return add(x, o.drop(2*n+2, o.g.Dropout.Residual, o.linear(p+"mlp.c_proj", hidden)))
}

func activated(f device.Activation, x float64) float64 {
	switch f {
	case device.GeluErf:
		return x / 2 * math.Erfc(-x/math.Sqrt2)
	case device.Relu:
		return max(0, x)
	case device.Silu:
		return x / (1 + math.Exp(-x))
	case device.Tanh:
		return math.Tanh(x)
	}
	return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

func add(a, b []float64) []float64 {
	sum := make([]float64, len(a))
	for i := range a {
		sum[i] = a[i] + b[i]
	}
	return sum
}

// norm computes LayerNorm with the parameters name.weight and name.bias.
func (o gptTrunk) norm(name string, x []float64) []float64 {
	C := o.g.Width
	y := make([]float64, len(x))
	for i := 0; i < len(x); i += C {
		var mean, variance float64
		for _, v := range x[i : i+C] {
			mean += v / float64(C)
		}
		for _, v := range x[i : i+C] {
			variance += (v - mean) * (v - mean) / float64(C)
		}
		for j := range C {
			y[i+j] = (x[i+j]-mean)/math.Sqrt(variance+float64(o.g.Eps))*o.w[name+".weight"][j] + o.w[name+".bias"][j]
		}
	}
	return y
}

// linear returns x·weight + bias, where weight is (in, out).
func (o gptTrunk) linear(name string, x []float64) []float64 {
	weight, bias := o.w[name+".weight"], o.w[name+".bias"]
	out := len(bias)
	in := len(weight) / out
	y := make([]float64, len(x)/in*out)
	for i := range len(x) / in {
		for j := range out {
			y[i*out+j] = bias[j]
			for k := range in {
				y[i*out+j] += x[i*in+k] * weight[k*out+j]
			}
		}
	}
	return add(y, o.adapted(o.g.LoRA, "attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj", name, in, out, x))
}

// adapted returns the output of an adapter of a linear layer: alpha/rank B·A·x, with dropout of x;
// the last part of the layer's name is number which in order.
func (o *oracle) adapted(l LoRA, order, name string, in, out int, x []float64) []float64 {
	a, b := o.w[name+".lora_A.weight"], o.w[name+".lora_B.weight"]
	y := make([]float64, len(x)/in*out)
	rank := len(a) / in
	if rank == 0 {
		return y
	}
	var layer int
	_, after, _ := strings.Cut(strings.ReplaceAll(name, ".h.", ".layers."), ".layers.")
	number, after, _ := strings.Cut(after, ".")
	fmt.Sscan(number, &layer)
	x = o.dropWide(1<<30+8*layer+slices.Index(strings.Fields(order), after), l.Dropout, in, x)
	alpha := l.Alpha
	for _, p := range l.Alphas {
		if strings.HasSuffix(name, p.Name) {
			alpha = p.Value
		}
	}
	for k := range rank {
		for i := range len(x) / in {
			u := dot(a[k*in:(k+1)*in], x[i*in:(i+1)*in]) * alpha / float64(rank)
			for j := range out {
				y[i*out+j] += u * b[j*rank+k]
			}
		}
	}
	return y
}

// attention returns each head's causal softmax(q·k/sqrt(D))·v, (B*T, C), of qkv (B*T, 3C): the
// queries of all heads, their keys, their values.
func (o gptTrunk) attention(layer int, qkv []float64) []float64 {
	C, D := o.g.Width, o.g.Width/o.g.Heads
	y := make([]float64, o.B*o.T*C)
	at := func(b, t, part, j int) float64 { return qkv[(b*o.T+t)*3*C+part*C+j] }
	for b := range o.B {
		for h := 0; h < C; h += D {
			for t := range o.T {
				weights, sum := make([]float64, t+1), 0.0
				for s := range weights {
					for j := h; j < h+D; j++ {
						weights[s] += at(b, t, 0, j) * at(b, s, 1, j) / math.Sqrt(float64(D))
					}
					weights[s] = math.Exp(weights[s])
					sum += weights[s]
				}
				for s, w := range weights {
					w *= o.kept(layer, o.g.Dropout.Attention, b, h/D, t, s)
					for j := h; j < h+D; j++ {
						y[(b*o.T+t)*C+j] += w / sum * at(b, s, 2, j)
					}
				}
			}
		}
	}
	return y
}

// logits returns the final norm of x times the token embedding, (B*T, V).
func (o gptTrunk) logits(x []float64) []float64 {
	C, V := o.g.Width, o.g.Vocab
	x = o.norm("transformer.ln_f", x)
	out := o.w["transformer.wte.weight"]
	if o.g.Untied {
		out = o.w["lm_head.weight"]
	}
	y := make([]float64, len(x)/C*V)
	for i := range y {
		for j := range C {
			y[i] += x[i/V*C+j] * out[i%V*C+j]
		}
	}
	return y
}

// losses returns -log softmax(logits)[target] of each position, (B*T).
func (o *oracle) losses(x []float64) []float64 {
	logits, loss := o.logits(x), make([]float64, o.B*o.T)
	for i := range loss {
		row, sum := logits[i*o.vocab:(i+1)*o.vocab], 0.0
		for _, v := range row {
			sum += math.Exp(v)
		}
		loss[i] = math.Log(sum) - row[o.target[i]]
	}
	return loss
}

// module returns the output of module i of the model for x: the residual stream, or for the last
// one the losses.
func (o *oracle) module(i int, x []float64) []float64 {
	switch i {
	case 0:
		return o.embed()
	case o.layers + 1:
		return o.losses(x)
	}
	return o.block(i-1, x)
}

// all returns the losses of the whole model.
func (o *oracle) all() []float64 { return o.from(0, nil) }

// from returns the losses, given the input x of module i.
func (o *oracle) from(i int, x []float64) []float64 {
	for ; i < o.layers+2; i++ {
		x = o.module(i, x)
	}
	return x
}

// slopes returns the derivatives of f in every step-th element of x, by central differences. In
// float64 their error is about 1e-10: h² of the third derivative and 1e-16/h of the value.
func slopes(x []float64, step int, f func() float64) []float64 {
	const h = 1e-5
	var d []float64
	for i := 0; i < len(x); i += step {
		at := x[i]
		x[i] = at + h
		up := f()
		x[i] = at - h
		d = append(d, (up-f())/(2*h))
		x[i] = at
	}
	return d
}

func dot(a, b []float64) (s float64) {
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}
