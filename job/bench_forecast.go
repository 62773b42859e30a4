package job

import (
	"fmt"
	"slices"

	"zeroth/device"
)

// quickJob has the shapes of examples/quickstart.yaml.
const quickJob = `data: {text: [text]}
model: {layers: 4, heads: 7, width: 448, context: 64}
train: {steps: 1, micro_batch: 4}
parallel: {ranks: 4}
zero: {stage: %d}
precision: %v
`

// forecastRounds is how often measuring and training take turns, so that both
// see the same machine.
const forecastRounds = 3

// forecast compares whole steps with what was forecast of them.
func (b *bench) forecast() error {
	for _, j := range []struct {
		name, text string
		t          device.DType
	}{{"29.5M, 2 ranks", stepJob, device.F32}, {"quickstart, 4 ranks", quickJob, device.BF16}} {
		for stage := range 4 {
			if err := b.forecastOf(fmt.Sprintf("%s, %v, stage %d", j.name, j.t, stage), fmt.Sprintf(j.text, stage, j.t)); err != nil || b.ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) forecastOf(name, text string) error {
	b.tell("forecast " + name)
	ranks, c, err := openText(text)
	if err != nil {
		return err
	}
	defer closeAll(ranks)
	w := b.processors()
	var forecasts []float64
	var good, bad [][2]float64
	for range forecastRounds {
		if b.ctx.Err() != nil {
			return nil
		}
		h, err := c.Measure()
		if err != nil {
			return err
		}
		f, err := c.ForecastHere(h)
		if err != nil {
			return err
		}
		forecasts = append(forecasts, f.Seconds)
		s, err := b.gatedRuns(w, b.Seconds, func() error { return trainStep(c, ranks) })
		if err != nil {
			return err
		}
		good, bad = append(good, s[0].good...), append(bad, s[0].bad...)
	}
	slices.Sort(forecasts)
	tokens := float64(c.TokensPerStep())
	b.row("forecast", name, w, tokens, "token/s", "", settle(good, bad))
	last := &b.report.Lines[len(b.report.Lines)-1]
	last.Limit, last.Of = tokens/forecasts[len(forecasts)/2], "forecast"
	last.Share = last.Rate / last.Limit
	return nil
}
