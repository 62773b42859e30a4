package tests

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"testing"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

const dyadicRows, dyadicWidth = 8, 32

// TestDyadicBlocksHaveTheSameBits checks blocks of numbers whose sums are all exact: outputs and
// gradients of inputs and parameters have the same bits for any number of ranks that divide the
// matrices. Rows of ±1024 make norms exact, sequences of one position make attention exact, and
// Llama's gates are so large that silu returns 0 or its input. The halves of a block are tested
// separately, since the other half's norm rounds.
func TestDyadicBlocksHaveTheSameBits(t *testing.T) {
	nightly.Parallel(t)
	gpt := func(g nn.GPT2) func(nn.Cut) *nn.Model {
		return func(c nn.Cut) *nn.Model {
			g := g // ranks construct their models concurrently
			g.Layers, g.Heads, g.Width, g.Context, g.Vocab, g.Eps, g.Cut = 1, 8, dyadicWidth, 1, 8, 1e-5, c
			return g.Model()
		}
	}
	llama := func(l nn.Llama) func(nn.Cut) *nn.Model {
		l.KV, l.FFN, l.Theta = 8, 48, 1e4
		return func(c nn.Cut) *nn.Model {
			l := l
			l.Layers, l.Heads, l.Width, l.Context, l.Vocab, l.Eps, l.Cut = 1, 16, dyadicWidth, 1, 8, 1e-5, c
			return l.Model()
		}
	}
	lora := nn.Shape{LoRA: nn.LoRA{Rank: 2, Alpha: 4, Targets: []string{nn.AllLinear}}}
	for name, model := range map[string]func(nn.Cut) *nn.Model{
		"GPT-2":           gpt(nn.GPT2{Act: device.Relu}),
		"GPT-2, adapters": gpt(nn.GPT2{Act: device.Relu, Shape: lora}),
		"Llama":           llama(nn.Llama{}),
		"biases":          llama(nn.Llama{BiasQKV: true, BiasOut: true, BiasMLP: true}),
		"head norms":      llama(nn.Llama{HeadNorm: nn.EachHead, BiasQKV: true}),
		"fused":           llama(nn.Llama{Fused: true, BiasQKV: true, BiasMLP: true}),
		"adapters":        llama(nn.Llama{Shape: lora}),
		"fused, adapters": llama(nn.Llama{Fused: true, Shape: lora}),
	} {
		for half, silent := range map[string][]string{"attention": {"mlp.c_proj", "mlp.down_proj"}, "MLP": {"attn.c_proj", "attn.o_proj"}} {
			t.Run(name+", "+half, func(t *testing.T) {
				t.Parallel()
				want := dyadicBlock(t, model, 1, silent)
				for _, ranks := range []int{2, 4, 8} {
					got := dyadicBlock(t, model, ranks, silent)
					for name, w := range want {
						if !slices.Equal(got[name], w) {
							t.Errorf("%d ranks: %s is %v, want %v", ranks, name, got[name], w)
						}
					}
					if len(got) != len(want) {
						t.Errorf("%d ranks: %d results, want %d", ranks, len(got), len(want))
					}
				}
			})
		}
	}
}

// dyadic returns element i of a parameter: -1, 0 or 1, except 1 or 2 for norm weights and 128
// times as much for weights that compute gates.
func dyadic(p shard.Param, i int, silent []string) float32 {
	x := float32(scramble(p.Name, i)%3) - 1
	for _, s := range silent {
		if strings.Contains(p.Name, s) {
			return 0
		}
	}
	switch {
	case p.Init.Mean == 1:
		return 1 + float32(scramble(p.Name, i)%2)
	case strings.Contains(p.Name, "lora_A"):
	case strings.Contains(p.Name, "mlp.gate_proj"), strings.Contains(p.Name, "mlp.gate_up_proj") && 2*i < (shard.Param{Shape: p.Tensor()}).Numel():
		return 128 * x
	}
	return x
}

// dyadicTensor is the group of ranks that divide matrices, as modules see it.
type dyadicTensor struct {
	*collective.Local
	q device.Queue
}

func (g dyadicTensor) Gather(whole, own device.Buffer) { g.AllGather(g.q, whole, own) }
func (g dyadicTensor) Reduce(own, whole device.Buffer) { g.ReduceScatter(g.q, own, whole) }

// dyadicBlock runs a model's block forward and backward on that many ranks and returns its output
// y, the gradient dx of its input, and the parameter gradients by name.
func dyadicBlock(t *testing.T, model func(nn.Cut) *nn.Model, ranks int, silent []string) map[string][]float32 {
	all := map[string][]float32{"y": make([]float32, dyadicRows*dyadicWidth), "dx": make([]float32, dyadicRows*dyadicWidth)}
	groups := collective.NewLocal(ranks)
	var mu sync.Mutex
	var done sync.WaitGroup
	for rank := range ranks {
		done.Go(func() {
			dev := cpu.NewHost(1)
			defer dev.Close()
			q := dev.NewQueue(fmt.Sprint("rank ", rank))
			defer q.Close()
			mod := model(nn.Cut{Index: rank, Count: ranks}).Modules[1]
			bt := &nn.Batch{B: dyadicRows, T: 1, Compute: device.F32}
			if ranks > 1 {
				bt.Tensor = dyadicTensor{groups[rank], q}
			}
			var w, dw []device.Buffer
			for _, p := range mod.Params() {
				x := make([]float32, p.Numel())
				for tensor, own := range p.Runs(shard.Range{Hi: p.Numel()}) {
					for i := range tensor.Len() {
						x[own.Lo+i] = dyadic(p, tensor.Lo+i, silent)
					}
				}
				w, dw = append(w, device.OfF32(x)), append(dw, device.OfF32(make([]float32, p.Numel())))
			}
			lo, hi := bt.Own()
			var x, d []float32
			for i := lo * dyadicWidth; i < hi*dyadicWidth; i++ {
				sign := bits.OnesCount(uint((i/dyadicWidth+1)&(i%dyadicWidth))) % 2 // half of a row is positive
				x, d = append(x, float32(1024-2048*sign)), append(d, float32(scramble("d", i)%3)-1)
			}
			y, mem, saved := make([]float32, len(x)), device.NewArena(device.OfF32(make([]float32, 1<<16))), new(nn.Saved)
			mod.Forward(q, mem, w, bt, device.OfF32(x), device.OfF32(y), saved)
			mod.Backward(q, mem, w, dw, bt, device.OfF32(x), device.OfF32(d), saved)
			if err := q.Wait(); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			copy(all["y"][lo*dyadicWidth:], y)
			copy(all["dx"][lo*dyadicWidth:], d)
			for i, p := range mod.Params() {
				if all[p.Name] == nil {
					all[p.Name] = make([]float32, shard.Param{Shape: p.Tensor()}.Numel())
				}
				for tensor, own := range p.Runs(shard.Range{Hi: p.Numel()}) {
					for j := range tensor.Len() { // each rank has a partial sum of undivided gradients
						all[p.Name][tensor.Lo+j] += dw[i].F32()[own.Lo+j]
					}
				}
			}
		})
	}
	done.Wait()
	return all
}
