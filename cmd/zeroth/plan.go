package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zeroth/job"
)

// planned is what 'plan' and 'fit' are told to plan.
type planned struct {
	file  string
	sets  []string
	model string
	world int
	gpus  int
	gpu   string // memory of a GPU, with its unit
	keys  [][2]*string
	json  bool
}

// shortcuts are flags that stand for keys of the job file.
var shortcuts = []struct{ flag, key, usage string }{
	{"stage", "zero.stage", "0 to 3"},
	{"shard", "parallel.shard", "ranks that together hold one copy"},
	{"replicate", "parallel.replicate", "such copies"},
	{"micro-batch", "train.micro_batch", "sequences a rank takes at once"},
	{"accumulate", "train.accumulate", "micro-batches a step"},
	{"seq", "model.context", "tokens of a sequence"},
	{"precision", "precision", "fp32, bf16 or fp16"},
	{"recompute", "zero.recompute", "none or block"},
	{"prefetch", "zero.prefetch", "units gathered ahead"},
	{"loss-chunk", "train.loss_chunk", "tokens whose logits are in memory at once"},
	{"optimizer", "optimizer.type", "adamw, adam, sgd or lion"},
}

// flags are those both commands have.
func (p *planned) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&p.sets, "set", nil, "replace a `key=value` of the job file, the value in YAML (repeatable)")
	f.StringVar(&p.model, "model", "", "`folder` with a Hugging Face config.json, or the file, instead of a job file")
	f.IntVar(&p.gpus, "gpus", 0, "plan for so many GPUs, one a rank")
	f.StringVar(&p.gpu, "gpu-memory", "", "of each, such as 80GiB")
	f.BoolVar(&p.json, "json", false, "write JSON, for programs")
	for _, s := range shortcuts {
		value := new(string)
		f.StringVar(value, s.flag, "", fmt.Sprintf("%s (%s)", s.usage, s.key))
		p.keys = append(p.keys, [2]*string{&s.key, value})
	}
}

// load reads the job there is to plan.
func (p *planned) load(args []string) (*job.Config, job.Machine, error) {
	var m job.Machine
	switch {
	case len(args) == 1 && p.model == "":
		p.file = args[0]
	case len(args) > 0:
		return nil, m, job.BadInput(errors.New("--model is planned instead of a job file; give one of the two"))
	case p.model == "":
		return nil, m, job.BadInput(errors.New("there is nothing to plan; want a job file, or --model with a folder that has a config.json"))
	}
	if p.gpus < 0 || p.world < 0 {
		return nil, m, job.BadInput(fmt.Errorf("%d ranks; want at least 1", min(p.gpus, p.world)))
	}
	m.GPU = p.gpus > 0 || p.gpu != ""
	if p.gpu != "" {
		bytes, err := job.ParseSize(p.gpu)
		if err != nil {
			return nil, m, job.BadInput(fmt.Errorf("--gpu-memory: %w", err))
		}
		m.Memory = bytes
	}
	c, err := job.Draft(p.file, p.overlays())
	return c, m, err
}

// overlays are the flags as sets. The order is that of the command's rank.
func (p *planned) overlays() (sets []string) {
	if p.model != "" {
		sets = append(sets, fmt.Sprintf("model.from=%q", p.model))
	}
	if n := max(p.world, p.gpus); n > 0 {
		sets = append(sets, fmt.Sprintf("parallel.ranks=%d", n), "parallel.shard=null")
	}
	for _, k := range p.keys {
		if *k[1] != "" {
			sets = append(sets, *k[0]+"="+*k[1])
		}
	}
	return append(sets, p.sets...)
}

func (a *app) plan() *cobra.Command {
	p := &planned{}
	var html, svg, csv, machine, trace string
	var deepspeed bool
	var node int
	cmd := &cobra.Command{
		Use:   "plan [JOB.yaml]",
		Short: "Say what memory a job will use, before it runs",
		Long: `Say what memory each rank of a job will use, by category, before it runs: its
schedule is rehearsed on a device that only counts. No data is read and nothing
is allocated, so a model of any size can be planned, for any number of ranks.

Everything is allocated before step 1; of that, "at rest" is in use between
steps and "at the peak" at the instant that is named. What is outside the
allocator (contexts, communicators) is estimated, each with its source.
1 GiB is 2^30 bytes, 1 GB is 10^9.

With --machine the same rehearsal is replayed, queue by queue, at the speed of
some hardware: how long a step takes, what of its communication no computing
hides, tokens a second, and the share of the peak that the model's arithmetic
is. "here" measures the kernels and collectives of the job on this machine, whose
ranks share its processors. Other names are machines others have measured. A
file describes any other, in JSON: see examples/machine.json.`,
		Example: `  zeroth plan examples/quickstart.yaml
  zeroth plan examples/quickstart.yaml --world 64 --set zero.stage=1 --html plan.html
  zeroth plan --model Llama-3-8B --stage 3 --gpus 64 --gpu-memory 80GiB --micro-batch 1 --seq 8192 --recompute block`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			c, m, err := p.load(args)
			if err != nil {
				return err
			}
			if node < 1 {
				return job.BadInput(fmt.Errorf("--gpus-per-node %d; want at least 1", node))
			}
			plan, err := c.Plan(m)
			if err != nil {
				return err
			}
			if plan.Forecast, err = forecast(c, machine); err != nil {
				return err
			}
			if err := writeFiles(plan, html, svg, csv); err != nil {
				return err
			}
			if trace != "" && plan.Forecast == nil {
				return job.BadInput(errors.New("--trace without --machine: how fast is it to be?"))
			}
			if trace != "" {
				if err := writeFile(trace, plan.WriteTrace); err != nil {
					return err
				}
			}
			if p.json {
				return writeJSON(a.out, plan)
			}
			if err := plan.Print(a.out); err != nil || !deepspeed {
				return err
			}
			return plan.PrintDeepSpeed(a.out, node)
		}),
	}
	p.flags(cmd.Flags())
	cmd.Flags().IntVar(&p.world, "world", 0, "plan for so many ranks of this machine's kind")
	cmd.Flags().StringVar(&html, "html", "", "write the report with its timeline to a `file`, complete in itself")
	cmd.Flags().StringVar(&svg, "svg", "", "write the timeline to a `file`")
	cmd.Flags().StringVar(&csv, "csv", "", "write the timeline to a `file`")
	cmd.Flags().StringVar(&machine, "machine", "", "forecast a step's time on: here, "+strings.Join(job.HardwareNames(), ", ")+", or a `file`")
	cmd.Flags().StringVar(&trace, "trace", "", "write what the queues of a rank will do to a `file` that ui.perfetto.dev opens; needs --machine")
	cmd.Flags().BoolVar(&deepspeed, "deepspeed-estimate", false, "add what DeepSpeed's own estimators answer")
	cmd.Flags().IntVar(&node, "gpus-per-node", 8, "for that estimate")
	return cmd
}

// forecast is that of the job on a machine; nil if none is named.
func forecast(c *job.Config, machine string) (*job.Forecast, error) {
	switch machine {
	case "":
		return nil, nil
	case "here":
		h, err := c.Measure()
		if err != nil {
			return nil, err
		}
		return c.ForecastHere(h)
	}
	h, err := job.OpenHardware(machine)
	if err != nil {
		return nil, err
	}
	return c.Forecast(h)
}

func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// writeFiles writes the drawings that are asked for.
func writeFiles(plan *job.Plan, html, svg, csv string) error {
	var errs []error
	for _, f := range []struct {
		path  string
		write func(io.Writer) error
	}{{html, plan.WriteHTML}, {csv, plan.WriteCSV}} {
		if f.path != "" {
			errs = append(errs, writeFile(f.path, f.write))
		}
	}
	if svg != "" {
		errs = append(errs, plan.WriteSVG(svg))
	}
	return errors.Join(errs...)
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
