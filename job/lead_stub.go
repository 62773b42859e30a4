package job

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Temporary: the loop is written elsewhere and replaces this file at merge.

type SampleOptions struct {
	Run         string
	Prompt      string
	Tokens      int
	Temperature float64
	TopK        int
	Seed        uint64
}

func Train(ctx context.Context, c *Config, out string, obs Observer) error {
	if err := os.WriteFile(filepath.Join(out, "job.yaml"), c.YAML(), 0o644); err != nil {
		return err
	}
	m, err := OpenMetrics(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		return err
	}
	defer m.Close()
	all := Observers{m, obs}
	all.Start(Header{Model: "stub", Ranks: c.Parallel.Ranks, Steps: c.Train.Steps, GlobalBatch: c.Train.Batch, TokensPerStep: c.TokensPerStep(), Precision: c.Precision.String(), Stage: c.Zero.Stage, Out: out})
	n := 0
	for n < c.Train.Steps && ctx.Err() == nil {
		n++
		time.Sleep(10 * time.Millisecond)
		all.Step(Step{Step: n, Loss: 1 + 4/float64(n), Tokens: int64(n * c.TokensPerStep()), StepSeconds: 0.01, TokensPerSecond: float64(c.TokensPerStep()) * 100})
	}
	all.Done(Summary{Steps: n, Out: out, Stopped: ctx.Err() != nil})
	return ctx.Err()
}

func Sample(ctx context.Context, o SampleOptions, w io.Writer) error {
	if _, err := Load(filepath.Join(o.Run, "job.yaml"), nil); err != nil {
		return err
	}
	fmt.Fprintln(w, o.Prompt)
	return nil
}
