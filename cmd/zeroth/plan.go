package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"zeroth/config"
	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/bench"
	"zeroth/job/hf"
	"zeroth/job/spec"
)

// planned is the job that plan and fit are asked about.
type planned struct {
	file  string
	sets  []string
	model string
	world int
	gpus  int

	processes, hosts int // that ranks are divided over; 0 means one

	gpu   string             // memory of a GPU, with its unit
	keys  map[string]*string // values of shortcuts by flag; empty if not given
	json  bool
	given func(flag string) bool

	machine  func(processes, ranks int) spec.Environment
	searched bool // the job's mesh is searched

	auto           bool     // the number of GPUs is to be found
	batch, tokens  string   // of a step and of a whole run, in tokens
	usual, assumed []string // settings that no flag gives, and their descriptions
	on             string   // a description of the assumed GPUs
}

// shortcuts maps flags to the keys that they set: what --model leaves open.
var shortcuts = map[string]string{"seq": "model.context", "micro-batch": "train.micro_batch", "stage": "zero.stage", "recompute": "zero.recompute"}

// planned returns a job to plan.
func (a *app) planned() *planned {
	return &planned{machine: func(processes, ranks int) spec.Environment {
		return a.machine(context.Background(), processes, ranks)
	}}
}

// addFlags declares the flags that plan and fit share.
func (p *planned) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	p.given = f.Changed
	setsFlag(cmd, &p.sets)
	f.StringVar(&p.model, "model", "", "a Hugging Face `folder` or config.json, hf://org/name, s3://bucket/folder, or a published model such as Llama-3-8B, instead of a job file")
	gpusVar(f, p)
	f.StringVar(&p.gpu, "gpu-memory", "", "memory of each GPU, such as 80GiB")
	f.StringVar(&p.batch, "batch-tokens", "", "`tokens` of a step, such as 4M, instead of train.batch")
	f.StringVar(&p.tokens, "tokens", "", "`tokens` to train on, such as 15T, for the days and GPU-hours that this takes")
	f.BoolVar(&p.json, "json", false, "print JSON")
	p.keys = map[string]*string{}
	for flag, key := range shortcuts {
		k, _ := config.Explain(key)
		p.keys[flag] = f.String(flag, "", fmt.Sprintf("%s (%s)", k.Meaning, key))
		if k.Choices != nil {
			must(cmd.RegisterFlagCompletionFunc(flag, oneOf(k.Choices...)))
		}
	}
	must(cmd.RegisterFlagCompletionFunc("model", wordsOrFile(publishedNames()...)))
	cmd.ValidArgsFunction = completeJob
}

// publishedNames returns the names of the models that can be planned without a folder.
func publishedNames() (names []string) {
	for _, s := range hf.Published() {
		names = append(names, s.Name)
	}
	return names
}

// load reads the job to plan on a machine, which may be unknown. fits reports whether it has enough
// GPUs.
func (p *planned) load(args []string, machine *string, fits func(*spec.Job, forecast.Machine) bool) (*spec.Job, forecast.Machine, error) {
	m := forecast.Machine{}
	if err := p.check(p.searched || *machine != ""); err != nil {
		return nil, m, err
	}
	switch {
	case len(args) == 1 && p.model == "":
		p.file = args[0]
	case len(args) > 0:
		return nil, m, input.BadInput(errors.New("--model replaces the job file; want only one of them"))
	case p.model == "":
		return nil, m, input.BadInput(errors.New("nothing to plan; want a job file, or --model with a Hugging Face folder or the name of a published model"))
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"gpus", p.gpus}, {"world", p.world}} {
		if p.given(f.name) && !p.auto && (f.n < 1 || f.n > config.MostRanks) {
			return nil, m, input.BadInput(fmt.Errorf("--%s %d; want 1 to %d", f.name, f.n, config.MostRanks))
		}
	}
	m, err := p.device(machine)
	if err != nil {
		return nil, m, err
	}
	c, err := p.enough(func() (*spec.Job, error) { return p.draft(m) }, func(c *spec.Job) bool { return fits(c, m) })
	if err != nil {
		return nil, m, err
	}
	if p.searched && (p.auto || !p.given("gpus")) {
		p.assumed = append(p.assumed, count(c.Parallel.Ranks, "GPU")+" (--gpus)")
	}
	m.Spread, err = p.spread(c)
	return c, m, err
}

// spread returns the processes and hosts to plan for; zero means one of each.
func (p *planned) spread(c *spec.Job) (s setup.Spread, err error) {
	if !p.given("processes") && !p.given("hosts") {
		return s, nil
	}
	s.Hosts, s.GPU = max(1, p.hosts), p.gpus > 0 || p.gpu != "" || c.On() == "cuda"
	s.Processes = max(s.Hosts, p.processes)
	if p.processes < 0 || p.hosts < 0 || c.Parallel.Ranks%s.Processes != 0 || s.Processes%s.Hosts != 0 {
		return s, input.BadInput(fmt.Errorf("--processes %d --hosts %d for %d ranks; want the same number of ranks in every process, and of processes on every host", s.Processes, s.Hosts, c.Parallel.Ranks))
	}
	return s, nil
}

// overlays returns the flags as key=value settings; later ones override earlier ones.
func (p *planned) overlays() (sets []string) {
	if p.model != "" {
		sets = append(sets, fmt.Sprintf("model.from=%q", p.model))
	}
	if n := max(p.world, p.gpus); n > 0 {
		sets = append(sets, fmt.Sprintf("parallel.ranks=%d", n), "parallel.shard=null")
	}
	return slices.Concat(sets, p.shortened(), p.sets, p.usual)
}

// shortened returns the shortcut flags that were given as key=value.
func (p *planned) shortened() (sets []string) {
	for _, flag := range slices.Sorted(maps.Keys(shortcuts)) {
		if value := *p.keys[flag]; value != "" {
			sets = append(sets, shortcuts[flag]+"="+value)
		}
	}
	return sets
}

func (a *app) plan() *cobra.Command {
	p, o := a.planned(), &planning{}
	cmd := &cobra.Command{
		Use:        "plan [JOB.yaml]",
		Short:      "Show a job's memory per rank, and its speed, before it runs",
		SuggestFor: []string{"estimate", "memory", "simulate", "simulated"},
		Long: `Show the memory that each rank of a job will use, by category, before it runs. The
job's schedule runs on a device that only counts bytes (a dry run). No data is read
and nothing is allocated, so you can plan any model for any number of ranks.

Everything is allocated before step 1. Memory "at rest" is in use between steps, memory
"at the peak" at the moment that the plan names. Memory outside the allocator (contexts,
communicators) is estimated, with sources. 1 GiB is 2^30 bytes, 1 GB is 10^9.

With --machine the same schedule is simulated on a given machine: step time, exposed
communication (not hidden by computation), tokens per second and MFU. "here" measures
the job's kernels and collectives on this machine, where ranks share the processors.
Other names are machines with measured and published figures. A file describes any other machine:
see examples/machine.json.

--model plans a Hugging Face folder, a model on the Hub (hf://org/name[@revision]; only
config.json is downloaded), or a published model by name, without its files: GPT-2, Llama
3, Qwen3, Gemma 3, Mistral, OLMo 2, Phi and SmolLM3; an unknown name lists them all.
What no flag gives has the values that people train with, which are printed: 4M tokens
a step, micro-batches of 1 sequence of at most 8192 tokens, recomputed blocks, and stage
1 if it fits the GPUs, else 3.`,
		Example: `  zeroth plan examples/quickstart.yaml
  zeroth plan examples/quickstart.yaml --world 64 --set zero.stage=1 --timeline plan.html
  zeroth plan --model Llama-3-8B --stage 3 --gpus 64 --gpu-memory 80GiB --micro-batch 1 --seq 8192 --recompute block
  zeroth plan --model Llama-3-70B --gpus auto --machine h100 --tokens 15T`,
		Args: arguments(0, 1),
		RunE: a.do(func(_ *cobra.Command, args []string) error { return a.runPlan(p, o, args) }),
	}
	p.addFlags(cmd)
	f := cmd.Flags()
	intVar(f, &p.world, "world", 0, "number of ranks to plan for, on machines like this one")
	intVar(f, &p.processes, "processes", 0, "number of processes to divide the ranks over; transfers between them need memory")
	intVar(f, &p.hosts, "hosts", 0, "number of hosts to divide the processes over")
	o.pictures.addFlags(f)
	f.StringVar(&o.machine, "machine", "", "simulate the step time on: here, "+strings.Join(forecast.HardwareNames(), ", ")+", or a `file`")
	f.StringVar(&o.trace, "trace", "", "write the simulated queues of a rank to a `file` for ui.perfetto.dev; needs --machine")
	cmd.MarkFlagsMutuallyExclusive("world", "gpus")
	must(cmd.RegisterFlagCompletionFunc("machine", wordsOrFile(append([]string{"here"}, forecast.HardwareNames()...)...)))
	return cmd
}

// noteContext reports that training takes the length of sequences from the data, which plan does
// not read.
func (a *app) noteContext(c *spec.Job) {
	if spec.FollowsData(c) {
		a.note(fmt.Sprintf("training takes model.context from the longest document; this is for the model's limit of %d (--seq plans for another)", c.Model.Context))
	}
}

// runPlan plans the job, and writes and prints the results.
func (a *app) runPlan(p *planned, o *planning, args []string) error {
	c, m, err := p.load(args, &o.machine, func(c *spec.Job, m forecast.Machine) bool {
		f, err := forecast.NewPlan(c, m)
		return err == nil && f.Suffices()
	})
	if err == nil {
		err = o.check(m)
	}
	if err != nil {
		return err
	}
	a.noteContext(c)
	newPlan := forecast.PlanHere
	if m.GPU || p.given("world") || p.hosts > 1 { // not limited by this machine's memory
		newPlan = forecast.NewPlan
	}
	planned, err := newPlan(c, m)
	if err != nil {
		return err
	}
	if planned.Simulated, err = a.simulated(c, m, o.machine); err != nil {
		return err
	}
	stages, err := p.compare(o.stages, m, newPlan)
	if err != nil {
		return err
	}
	if err := o.write(planned); err != nil {
		return err
	}
	costs := p.costs(planned.Simulated)
	if p.json {
		return cmp.Or(a.writeJSON(planned), planned.Fits())
	}
	a.say("%s", p.assumptions())
	if err := planned.Print(a.out); err != nil {
		return err
	}
	a.say("%s", costs)
	for _, line := range stages {
		a.say("%v\n", line)
	}
	if err := a.adviseRatio(c, m, o.machine); err != nil {
		return err
	}
	if next := p.next(c, planned, o.machine); next != "" {
		a.say("next    %s\n", next)
	}
	return planned.Fits()
}

// planning holds the flags that ask for more than the plan.
type planning struct {
	pictures
	trace, machine string
}

// check reports flags that exclude each other, before anything is written.
func (o *planning) check(m forecast.Machine) error {
	switch {
	case m.GPU && o.machine == "here":
		return input.BadInput(errors.New("--machine here measures processors, not GPUs; leave out --gpus and --gpu-memory, or name another machine"))
	case o.trace != "" && o.machine == "":
		return input.BadInput(errors.New("--trace needs the speed of some hardware; add --machine here, or one of " + strings.Join(forecast.HardwareNames(), ", ")))
	}
	return o.pictures.check()
}

// simulated returns a simulated step of the job on a machine, or nil if none is named.
func (a *app) simulated(c *spec.Job, m forecast.Machine, machine string) (*forecast.Step, error) {
	switch machine {
	case "":
		return nil, nil
	case "here":
		if c.On() == "cuda" {
			return nil, input.BadInput(errors.New("--machine here measures processors, but the job runs on GPUs; set device: cpu, or measure the GPU with 'zeroth bench gpu --write-machine FILE' and use --machine FILE"))
		}
		h, err := bench.Measure(c, func(doing string) { a.note("measuring " + doing) })
		if err != nil {
			return nil, err
		}
		return bench.SimulateHere(c, h)
	}
	h, err := openHardware(machine, m)
	if err != nil {
		return nil, err
	}
	if s := m.Spread; s.Processes > 0 {
		s.GPU = h.GPU || c.On() == "cuda"
		return forecast.Simulate(s.Of(c), h)
	}
	return forecast.Simulate(setup.Planned(c), h)
}

// openHardware opens a machine by its name or file. Its ranks are on GPUs if m's are.
func openHardware(name string, m forecast.Machine) (*forecast.Hardware, error) {
	h, err := forecast.OpenHardware(name)
	if err == nil {
		h.GPU = h.GPU || m.GPU
	}
	return h, err
}

// adviseRatio prints how much of the optimizer a job should offload to GPUs with a known
// memory and, if a machine is named, what that saves.
func (a *app) adviseRatio(c *spec.Job, m forecast.Machine, machine string) (err error) {
	if !m.GPU || c.Zero.Offload.Optimizer == "none" {
		return nil
	}
	l := forecast.Limits{Ranks: c.Parallel.Ranks, Memory: m.Memory, GPU: true}
	if machine != "" {
		if l.Hardware, err = openHardware(machine, m); err != nil {
			return err
		}
	}
	line, err := forecast.Advice(c, l)
	if line != "" {
		a.say("advice  %s\n", line)
	}
	return err
}

// writeJSON writes v as indented JSON. It also escapes control characters beyond ASCII, which a
// terminal may obey.
func writeJSON(out io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(out, show.Escape(b.String()))
	return err
}

// write writes the files that flags ask for.
func (o *planning) write(plan *forecast.Plan) error {
	err := o.pictures.draw(plan)
	if o.trace != "" {
		err = errors.Join(err, writeFile(o.trace, plan.WriteTrace))
	}
	return err
}
