package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"zeroth/job"
)

func (a *app) fit() *cobra.Command {
	p := &planned{}
	o := fitting{}
	var largest string
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
			l, err := o.limits(c.Parallel.Ranks, m.Memory)
			if err != nil {
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
	cmd.Flags().StringVar(&o.host, "host-memory", "", "of each machine, such as 1TiB: optimizer state and parameters may be offloaded to it")
	cmd.Flags().StringVar(&o.disk, "disk", "", "of each machine, such as 4TB: alike")
	cmd.Flags().IntVar(&o.node, "gpus-per-node", 8, "GPUs of each machine, which share its memory and disk")
	cmd.Flags().Float64Var(&o.flops, "flops", 4e14, "floating-point operations a GPU does in a second")
	cmd.Flags().StringVar(&o.link, "link", "50GB", "`bytes` a GPU can send to others in a second")
	cmd.Flags().StringVar(&o.hostLink, "host-link", "25GB", "`bytes` a second between a GPU and host memory, each way")
	cmd.Flags().StringVar(&o.hostRate, "host-rate", "200GB", "`bytes` a second that a machine's processors read and write")
	cmd.Flags().StringVar(&o.diskRate, "disk-rate", "10GB", "`bytes` a second to or from a machine's disks")
	cmd.Flags().StringVar(&largest, "largest", "", "answer what is the largest `model`, seq or micro_batch that fits")
	return cmd
}

// fitting is what fit is told of the machines.
type fitting struct {
	flops                              float64
	host, disk                         string // of a machine
	link, hostLink, hostRate, diskRate string // bytes a second
	node                               int    // GPUs of a machine
}

// limits are those of a rank: what its machine has is shared.
func (f *fitting) limits(ranks int, memory int64) (job.Limits, error) {
	var errs []error
	read := func(flag, s string, share int) int64 {
		if s == "" {
			return 0
		}
		n, err := job.ParseSize(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
		return n / int64(max(1, share))
	}
	here := min(f.node, ranks)
	l := job.Limits{Ranks: ranks, Memory: memory, GPU: true, Host: read("host-memory", f.host, here), Disk: read("disk", f.disk, here), Rates: job.Rates{
		Flops: f.flops, Link: float64(read("link", f.link, 1)), Host: float64(read("host-link", f.hostLink, 1)),
		Memory: float64(read("host-rate", f.hostRate, here)), Disk: float64(read("disk-rate", f.diskRate, here)),
	}}
	if memory == 0 {
		errs = append(errs, errors.New("--gpu-memory is missing: how much has each GPU? For example --gpu-memory 80GiB"))
	}
	if !(f.flops > 0) {
		errs = append(errs, fmt.Errorf("--flops %v; want a positive number", f.flops))
	}
	if f.node < 1 {
		errs = append(errs, fmt.Errorf("--gpus-per-node %d; want at least 1", f.node))
	}
	if l.Disk > 0 && l.Host == 0 {
		errs = append(errs, errors.New("--disk without --host-memory: what rests on disk passes through host memory"))
	}
	if r := l.Rates; len(errs) == 0 && min(r.Link, r.Host, r.Memory, r.Disk) < 1 {
		errs = append(errs, errors.New("--link, --host-link, --host-rate and --disk-rate want at least 1B a second"))
	}
	if len(errs) > 0 {
		return l, job.BadInput(errors.Join(errs...))
	}
	return l, nil
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
