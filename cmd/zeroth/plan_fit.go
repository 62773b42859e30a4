package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"zeroth/job"
)

func (a *app) fit() *cobra.Command {
	p := &planned{}
	var flops float64
	var link, largest string
	cmd := &cobra.Command{
		Use:   "fit [JOB.yaml]",
		Short: "Say which settings of a job fit a machine, and which are fastest",
		Long: `Search the settings of a job that change its memory and its speed (stage, shard
groups, micro-batch, recomputing, prefetch, chunks of the loss) for those that
fit, by closed forms, and rehearse what is listed. The sequences of a step stay
the job's. Times are relative: products of matrices at --flops, communication at
--link, hidden behind them as far as it can be.`,
		Example: `  zeroth fit job.yaml --gpus 8 --gpu-memory 80GiB
  zeroth fit --model Llama-3-8B --gpus 8 --gpu-memory 80GiB --seq 8192 --micro-batch 2
  zeroth fit job.yaml --gpus 8 --gpu-memory 80GiB --largest seq`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			c, m, err := p.load(args)
			if err != nil {
				return err
			}
			l := job.Limits{Ranks: c.Parallel.Ranks, Memory: m.Memory, GPU: true, Rates: job.Rates{Flops: flops}}
			if l.Rates.Link, err = rate(link); err != nil {
				return err
			}
			if err := checkFit(l); err != nil {
				return err
			}
			if largest != "" {
				return a.largest(c, l, largest, p.json)
			}
			f, err := c.Fit(l)
			if err != nil {
				return err
			}
			if p.json {
				return writeJSON(a.out, f)
			}
			return f.Print(a.out)
		}),
	}
	p.flags(cmd.Flags())
	cmd.Flags().Float64Var(&flops, "flops", 4e14, "floating-point operations a GPU does in a `second`")
	cmd.Flags().StringVar(&link, "link", "50GB", "`bytes` a GPU can send in a second")
	cmd.Flags().StringVar(&largest, "largest", "", "answer what is the largest `model`, seq or micro_batch that fits")
	return cmd
}

// rate reads bytes a second.
func rate(s string) (float64, error) {
	n, err := job.ParseSize(s)
	if err != nil {
		return 0, job.BadInput(fmt.Errorf("--link: %w", err))
	}
	return float64(n), nil
}

func checkFit(l job.Limits) error {
	switch {
	case l.Memory == 0:
		return job.BadInput(errors.New("--gpu-memory is missing: how much has each GPU? For example --gpu-memory 80GiB"))
	case !(l.Rates.Flops > 0):
		return job.BadInput(fmt.Errorf("--flops %v; want a positive number", l.Rates.Flops))
	}
	return nil
}

func (a *app) largest(c *job.Config, l job.Limits, of string, asJSON bool) error {
	r, err := c.Largest(of, l)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.out, r)
	}
	return r.Print(a.out)
}
