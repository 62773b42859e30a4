package bench

import (
	"fmt"
	"slices"
	"time"

	"zeroth/device"
	"zeroth/job/build"
	"zeroth/job/config"
)

// quickJob has the shapes of examples/quickstart.yaml.
const quickJob = `data: {text: [text]}
model: {layers: 4, heads: 7, width: 448, context: 64}
train: {steps: 1, micro_batch: 4}
parallel: {ranks: 4}
zero: {stage: %d}
precision: %v
device: cpu
`

// simulatedRounds is how often, at most, measuring and training take turns, so that both
// see the same machine.
const simulatedRounds = 3

// simulated compares whole steps with what was simulated of them: the fastest with
// the fastest, because nothing but others makes one slower, and ranks that share
// processors wait for each other, which the gate takes for others.
func (b *bench) simulated() error {
	for _, j := range []struct {
		name, text string
		t          device.DType
	}{{"29.5M, 2 ranks", stepJob, device.F32}, {"quickstart, 4 ranks", quickJob, device.BF16}} {
		for stage := range 4 {
			if err := b.simulatedOf(fmt.Sprintf("%s, %v, stage %d", j.name, j.t, stage), fmt.Sprintf(j.text, stage, j.t)); err != nil || b.ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) simulatedOf(name, text string) error {
	b.tell("simulated " + name)
	ranks, c, err := openText(text)
	if err != nil {
		return err
	}
	defer build.CloseAll(ranks)
	w := b.processors()
	var simulations, steps []float64
	end := time.Now().Add(time.Duration(15 * b.Seconds * float64(time.Second)))
	for round := 0; round == 0 || round < simulatedRounds && time.Now().Before(end); round++ {
		if b.ctx.Err() != nil {
			return nil
		}
		h, err := Measure(c)
		if err != nil {
			return err
		}
		f, err := SimulateHere(c, h)
		if err != nil {
			return err
		}
		simulations = append(simulations, f.Seconds)
		for since := time.Now(); len(steps) == 0 || time.Since(since).Seconds() < b.Seconds; {
			start := time.Now()
			if err := trainStep(c, ranks); err != nil {
				return err
			}
			steps = append(steps, time.Since(start).Seconds())
		}
	}
	tokens := float64(config.TokensPerStep(c))
	b.row("simulated", name, w, tokens, "token/s", "", sample{seconds: slices.Min(steps), n: len(steps)})
	last := &b.report.Lines[len(b.report.Lines)-1]
	last.Limit, last.Of = tokens/slices.Min(simulations), "simulated"
	last.Share = last.Rate / last.Limit
	return nil
}
