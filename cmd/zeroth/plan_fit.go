package main

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"zeroth/config"
	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/spec"
)

func (a *app) fit() *cobra.Command {
	p := a.planned()
	p.searched = true
	o := fitting{}
	var largest string
	var longest bool
	cmd := &cobra.Command{
		Use:   "fit [JOB.yaml]",
		Short: "Find the fastest settings of a job that fit a machine",
		Long: `Find the settings that fit and are fastest, among all that change a job's memory and
speed: mesh, pipeline schedule, stage, micro-batch, recomputation, prefetch, loss
chunks, offload. The global batch stays the same. Each setting tried is planned and, if
it fits, simulated on --machine (see 'zeroth plan'). The search starts from the job and
from the best meshes, and changes one setting at a time until no change to a near value
makes a step shorter by a thousandth. A job whose batch has too few sequences for its
GPUs starts with its model divided among as few GPUs as necessary. --flops, --link and
so on replace single figures of the machine. The answer begins with what no flag gives.

Exit codes: 0 something fits, 1 nothing fits, 2 a mistake in the command line or the
job.`,
		Example: `  zeroth fit job.yaml --gpus 8 --gpu-memory 80GiB
  zeroth fit --model Llama-3-8B --gpus 8 --gpu-memory 80GiB --seq 8192 --micro-batch 2
  zeroth fit --model Llama-3-70B --gpus auto --tokens 15T
  zeroth fit job.yaml --gpus 8 --gpu-memory 80GiB --longest`,
		Args: arguments(0, 1),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			debug.SetGCPercent(300) // dry runs allocate much and keep little
			if err := p.searches(longest, &largest); err != nil {
				return err
			}
			c, m, err := p.load(args, &o.machine, func(c *spec.Job, m forecast.Machine) bool {
				l, err := o.limits(c, m.Memory)
				return err == nil && forecast.Possible(c, l)
			})
			if err != nil {
				return err
			}
			a.noteContext(c)
			l, err := o.limits(c, m.Memory)
			if err != nil {
				return err
			}
			if largest != "" {
				return a.largest(c, l, largest, p.json)
			}
			f, err := forecast.Search(c, l)
			if err != nil {
				return err
			}
			f.Command = func(sets []string) string { return p.command(c, o.machine, sets) }
			costs := ""
			if len(f.Fits) > 0 {
				costs = p.costs(f.Fits[0].Simulated)
			}
			if p.json {
				err = a.writeJSON(f)
			} else {
				a.say("%s", p.assumptions())
				err = f.Print(a.out)
				a.say("%s", costs)
			}
			return cmp.Or(err, found(len(f.Fits) > 0))
		}),
	}
	p.addFlags(cmd)
	cmd.Flags().StringVar(&o.host, "host-memory", "", "host memory of each machine, such as 1TiB, for offloaded optimizer state and parameters")
	cmd.Flags().StringVar(&o.disk, "disk", "", "disk space of each machine, such as 4TB, for offloaded optimizer state and parameters")
	intVar(cmd.Flags(), &o.node, "gpus-per-node", 8, "GPUs per machine, which share its memory and disk")
	cmd.Flags().StringVar(&o.machine, "machine", "", "hardware to simulate: "+strings.Join(forecast.HardwareNames(), ", ")+", or a `file`; by default the one that has GPUs of --gpu-memory, or "+usualMachine)
	f := cmd.Flags()
	o.replaced = f.Changed
	f.Float64Var(&o.flops, "flops", 0, "floating-point operations per second of a GPU")
	f.StringVar(&o.link, "link", "", "`bytes` per second that a GPU can send to any other")
	f.StringVar(&o.hostLink, "host-link", "", "`bytes` per second between a GPU and host memory, each way")
	f.StringVar(&o.hostRate, "host-rate", "", "`bytes` per second that a machine's processors read and write")
	f.StringVar(&o.diskRate, "disk-rate", "", "`bytes` per second to or from a machine's disks")
	cmd.Flags().StringVar(&largest, "largest", "", "find the largest `model`, seq or micro_batch that fits")
	cmd.Flags().BoolVar(&longest, "longest", false, "find the longest sequence that fits and what limits it; the same as --largest seq")
	must(cmd.RegisterFlagCompletionFunc("largest", oneOf(forecast.Quantities...)))
	must(cmd.RegisterFlagCompletionFunc("machine", wordsOrFile(forecast.HardwareNames()...)))
	return cmd
}

// fitting holds the flags that describe the machines.
type fitting struct {
	machine                            string
	replaced                           func(flag string) bool // whether a flag replaces a figure of the machine
	flops                              float64                // operations per second
	host, disk                         string                 // bytes of a machine
	link, hostLink, hostRate, diskRate string                 // bytes per second
	node                               int                    // GPUs per machine
}

// limits returns the limits of one rank: its share of its machine.
func (f *fitting) limits(c *spec.Job, memory int64) (forecast.Limits, error) {
	ranks := c.Parallel.Ranks
	h, err := openHardware(f.machine, forecast.Machine{GPU: true})
	if err != nil {
		return forecast.Limits{}, err
	}
	var wrong input.Problems
	read := func(flag, s string, share int) int64 {
		if s == "" {
			return 0
		}
		n, err := config.ParseSize(s)
		wrong.If(err != nil, "--%s: %w", flag, err)
		return n / int64(max(1, share))
	}
	sharers := min(f.node, ranks) // ranks of a machine
	replace := func(flag, s string, share int, rate *float64) {
		if f.replaced(flag) {
			*rate = float64(read(flag, s, share))
		}
	}
	if f.replaced("link") {
		link := forecast.Link{}
		replace("link", f.link, 1, &link.Bandwidth)
		h.Links = []forecast.Link{link}
	}
	if n := len(h.Links); n > 1 && f.replaced("gpus-per-node") {
		h.Links = slices.Clone(h.Links)
		h.Links[0].Ranks = min(h.Links[0].Ranks, max(1, f.node))
	}
	replace("host-link", f.hostLink, 1, &h.HostLink)
	replace("host-rate", f.hostRate, sharers, &h.HostMemory)
	replace("disk-rate", f.diskRate, sharers, &h.Disk)
	if f.replaced("flops") {
		h.Flops = map[string]float64{c.Precision.String(): f.flops}
	}
	l := forecast.Limits{Ranks: ranks, Memory: memory, GPU: true, Host: read("host-memory", f.host, sharers), Disk: read("disk", f.disk, sharers),
		Hardware: h}
	wrong.If(memory == 0, "--gpu-memory is missing; want the memory of each GPU, such as --gpu-memory 80GiB")
	wrong.If(f.replaced("flops") && !(f.flops >= 1 && f.flops <= 1e24), "--flops %v; want a number from 1 to 1e24", f.flops)
	wrong.If(f.node < 1, "--gpus-per-node %d; want at least 1", f.node)
	wrong.If(l.Disk > 0 && l.Host == 0, "--disk needs --host-memory, because state on disk passes through it")
	if err := wrong.Err(); err != nil {
		return l, err
	}
	return l, input.BadInput(h.Serves(setup.Planned(c), l.Host > 0, l.Disk > 0))
}

// searches returns in largest which quantity to search for. It refuses one that a flag sets.
func (p *planned) searches(longest bool, largest *string) error {
	by := "--largest " + *largest
	if longest {
		if *largest != "" && *largest != "seq" {
			return input.BadInput(fmt.Errorf("--longest is --largest seq, but --largest is %s; want one of them", *largest))
		}
		by, *largest = "--longest", "seq"
	}
	flag := strings.ReplaceAll(*largest, "_", "-")
	key := shortcuts[flag]
	if key == "" || !p.gives(key) {
		return nil
	}
	return input.BadInput(fmt.Errorf("%s finds the largest %s that fits, but --%s or --set gives its value; drop %[1]s to plan with that value, or the other to search", by, key, flag))
}

func (a *app) largest(c *spec.Job, l forecast.Limits, quantity string, asJSON bool) error {
	r, err := forecast.FindLargest(c, quantity, l)
	if err != nil {
		return err
	}
	if asJSON {
		err = a.writeJSON(r)
	} else {
		err = r.Print(a.out)
	}
	return cmp.Or(err, found(r.Any != nil))
}

// found returns nil, or errFound for a search that found nothing and has reported it.
func found(any bool) error {
	if any {
		return nil
	}
	return errFound
}
