package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/job/build"
	"zeroth/job/config"
	"zeroth/job/fit"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/zero"
)

// collective measures groups of goroutine ranks. The limit is that of the
// memory they must touch: a gather's copies, each rank's from all others, and a
// reduction's reads of all buffers and writes of a part of each.
func (b *bench) collective() error {
	w := b.processors()
	for _, ranks := range []int{2, 4} {
		for _, mb := range []int{1, 64} {
			err := onGroup(ranks, mb<<18, func(each func(op func(g collective.Group, q device.Queue, buf device.Buffer)) error) error {
				bytes, size := float64(mb<<20), float64(ranks)
				name := fmt.Sprintf("all-gather, %d ranks, %d MiB", ranks, mb)
				err := b.line("collective", name, w, 2*bytes*(size-1), "B/s", "copy", func() error {
					return each(func(g collective.Group, q device.Queue, buf device.Buffer) { collective.AllGather(g, q, buf) })
				})
				if err != nil {
					return err
				}
				name = fmt.Sprintf("reduce-scatter, %d ranks, %d MiB", ranks, mb)
				return b.line("collective", name, w, bytes*(size+1), "B/s", "triad", func() error {
					return each(func(g collective.Group, q device.Queue, buf device.Buffer) { collective.ReduceScatter(g, q, buf) })
				})
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// onGroup runs f with a group of ranks, each with n floats; each issues an
// operation on all ranks and waits for it.
func onGroup(size, n int, f func(each func(op func(collective.Group, device.Queue, device.Buffer)) error) error) error {
	groups := collective.NewLocal(size)
	queues, bufs, errs := make([]*cpu.Queue, size), make([]device.Buffer, size), make([]error, size)
	for r := range groups {
		d := cpu.NewHost(1)
		defer d.Close()
		mem, err := d.Alloc(device.F32, n, device.Workspace)
		if err != nil {
			return err
		}
		defer d.Free(mem)
		fillNoise(mem.F32())
		queues[r], bufs[r] = d.NewQueue("comm"), mem
		defer queues[r].Close()
	}
	return f(func(op func(collective.Group, device.Queue, device.Buffer)) error {
		var wg sync.WaitGroup
		for r, g := range groups {
			wg.Go(func() {
				op(g, queues[r], bufs[r])
				errs[r] = queues[r].Wait()
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// stepJob is the GPT of 29.5 million parameters that peers were measured with:
// eight layers of width 512, 4,096 tokens, 4 sequences of 128 a rank, 2 ranks.
const stepJob = `data: {text: [text]}
model: {layers: 8, heads: 8, width: 512, context: 128, vocab: 4096}
train: {steps: 1, micro_batch: 4}
parallel: {ranks: 2}
zero: {stage: %d}
precision: %v
device: cpu
`

// flops are the multiplications and additions a token costs by the model's
// arithmetic, forward and backward: 6 for each parameter in a matrix product,
// and for each layer 12 for each of C elements of half of T positions.
func flops(m hf.Model) float64 {
	c := float64(m.Width)
	weights := float64(m.Layers)*12*c*c + float64(m.Vocab)*c
	return 6*weights + 6*float64(m.Layers)*float64(m.Context)*c
}

// step measures whole steps, stages in turn so that both see the same machine.
func (b *bench) step() error {
	for _, t := range benchTypes {
		if err := b.stepOf(t, []int{0, 3}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) stepOf(t device.DType, stages []int) error {
	var fs []func() error
	var c *config.Config
	for _, stage := range stages {
		ranks, config, err := openStep(stage, t)
		if err != nil {
			return err
		}
		defer build.CloseAll(ranks)
		c = config
		fs = append(fs, func() error { return trainStep(c, ranks) })
	}
	b.tell(fmt.Sprintf("step, %v", t))
	w := b.processors()
	samples, err := b.gated(w, 15*b.Seconds, fs...)
	if err != nil || b.ctx.Err() != nil {
		return err
	}
	tokens := float64(config.TokensPerStep(c))
	for i, s := range samples {
		name := fmt.Sprintf("29.5M, 2 ranks, %v, stage %d", t, stages[i])
		b.row("step", name+", tokens", w, tokens, "token/s", "", s)
		b.row("step", name+", model arithmetic", w, tokens*flops(c.Model), "FLOP/s", "fp32", s)
	}
	last := &b.report.Lines[len(b.report.Lines)-2]
	last.Limit, last.Of = tokens/samples[0].seconds, fmt.Sprintf("stage %d", stages[0])
	last.Share = last.Rate / last.Limit
	return nil
}

// openStep opens the step's job.
func openStep(stage int, t device.DType) (ranks []*build.Rank, c *config.Config, err error) {
	return openText(fmt.Sprintf(stepJob, stage, t))
}

// openText opens a job whose data is never read, with fresh parameters.
func openText(body string) (ranks []*build.Rank, c *config.Config, err error) {
	dir, err := os.MkdirTemp("", "zeroth-bench")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	text, file := filepath.Join(dir, "text"), filepath.Join(dir, "job.yaml")
	if err := os.WriteFile(text, []byte("made up"), 0o600); err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		return nil, nil, err
	}
	if c, err = config.Load(file, []string{"data.text=[" + text + "]"}); err != nil {
		return nil, nil, err
	}
	if ranks, err = fit.OpenAffordable(c, build.Setup{}); err != nil {
		return nil, nil, err
	}
	err = build.Together(ranks, func(r *build.Rank) error {
		return r.Trainer.Fill(zero.Master, func(p zero.Part, dst []float32) error {
			nn.Fill(1, p.Param, p.At, dst)
			return nil
		})
	})
	if err != nil {
		build.CloseAll(ranks)
	}
	return ranks, c, err
}

// trainStep is a step on made-up tokens, to its very end.
func trainStep(c *config.Config, ranks []*build.Rank) error {
	return build.Together(ranks, func(r *build.Rank) error {
		_, err := r.Trainer.Step(func(_ int, input, target, _ []int32) error {
			for i := range input {
				input[i], target[i] = int32(i*7%c.Model.Vocab), int32((i*7+7)%c.Model.Vocab)
			}
			return nil
		}, 1e-4)
		for _, q := range r.Queues {
			if err == nil {
				err = q.Wait()
			}
		}
		return err
	})
}
