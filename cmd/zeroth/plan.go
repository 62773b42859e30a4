package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zeroth/input"
	"zeroth/job/bench"
	"zeroth/job/config"
	"zeroth/job/fit"
	"zeroth/job/hf"
	"zeroth/job/plan"
	"zeroth/job/setup"
	"zeroth/job/show"
	"zeroth/job/sim"
)

// planned is what 'plan' and 'fit' are told to plan.
type planned struct {
	file  string
	sets  []string
	model string
	world int
	gpus  int

	processes, hosts int // that have the ranks; 0: one

	gpu   string             // memory of a GPU, with its unit
	keys  map[string]*string // of shortcuts, by flag; empty: not given
	json  bool
	given func(flag string) bool
}

// shortcuts are flags that stand for keys of the job file.
var shortcuts = config.Shortcuts()

// flags are those both commands have.
func (p *planned) flags(f *pflag.FlagSet) {
	p.given = f.Changed
	f.StringArrayVar(&p.sets, "set", nil, "replace a `key=value` of the job file, the value in YAML (repeatable)")
	f.StringVar(&p.model, "model", "", "a Hugging Face `folder` or config.json, or a published model such as Llama-3-8B, instead of a job file")
	intVar(f, &p.gpus, "gpus", 0, "plan for so many GPUs, one a rank")
	f.StringVar(&p.gpu, "gpu-memory", "", "of each, such as 80GiB")
	f.BoolVar(&p.json, "json", false, "write JSON, for programs")
	p.keys = map[string]*string{}
	for flag, key := range shortcuts {
		k, _ := config.Explain(key)
		p.keys[flag] = f.String(flag, "", fmt.Sprintf("%s (%s)", k.Meaning, key))
	}
}

// completePlanned completes the values of what flags declares.
func completePlanned(cmd *cobra.Command) {
	must(cmd.RegisterFlagCompletionFunc("set", completeKey))
	for flag, key := range shortcuts {
		if k, ok := config.Explain(key); ok && k.Choices != nil {
			must(cmd.RegisterFlagCompletionFunc(flag, words(k.Choices...)))
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

// load reads the job there is to plan.
func (p *planned) load(args []string) (*config.Config, plan.Machine, error) {
	var m plan.Machine
	switch {
	case len(args) == 1 && p.model == "":
		p.file = args[0]
	case len(args) > 0:
		return nil, m, input.BadInput(errors.New("--model is planned instead of a job file; give one of the two"))
	case p.model == "":
		return nil, m, input.BadInput(errors.New("there is nothing to plan; want a job file, or --model with a folder that has a config.json"))
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"gpus", p.gpus}, {"world", p.world}} {
		if p.given(f.name) && (f.n < 1 || f.n > config.MostRanks) {
			return nil, m, input.BadInput(fmt.Errorf("--%s %d; want 1 to %d", f.name, f.n, config.MostRanks))
		}
	}
	m.GPU = p.gpus > 0 || p.gpu != ""
	if p.gpu != "" {
		bytes, err := config.ParseSize(p.gpu)
		if err != nil {
			return nil, m, input.BadInput(fmt.Errorf("--gpu-memory: %w", err))
		}
		m.Memory = bytes
	}
	c, err := setup.Here(1, 0).Draft(p.file, p.overlays())
	if err == nil {
		m.Spread, err = p.spread(c)
	}
	return c, m, err
}

// spread is the processes and hosts to plan for; zero: one of each.
func (p *planned) spread(c *config.Config) (s setup.Spread, err error) {
	if !p.given("processes") && !p.given("hosts") {
		return s, nil
	}
	s.Hosts, s.GPU = max(1, p.hosts), p.gpus > 0 || p.gpu != "" || c.On() == "cuda"
	s.Processes = max(s.Hosts, p.processes)
	if p.processes < 0 || p.hosts < 0 || c.Parallel.Ranks%s.Processes != 0 || s.Processes%s.Hosts != 0 {
		return s, input.BadInput(fmt.Errorf("--processes %d --hosts %d for %d ranks; want equally many ranks in each process, and processes on each host", s.Processes, s.Hosts, c.Parallel.Ranks))
	}
	return s, nil
}

// overlays are the flags as sets. The order is that of the command's rank.
func (p *planned) overlays() (sets []string) {
	if p.model != "" {
		sets = append(sets, fmt.Sprintf("model.from=%q", p.model))
	}
	if n := max(p.world, p.gpus); n > 0 {
		sets = append(sets, fmt.Sprintf("parallel.ranks=%d", n), "parallel.shard=null")
	}
	return append(append(sets, p.shortened()...), p.sets...)
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
	p, o := &planned{}, &planning{}
	cmd := &cobra.Command{
		Use:        "plan [JOB.yaml]",
		Short:      "Say what memory a job will use, before it runs",
		SuggestFor: []string{"estimate", "memory", "simulate", "simulated"},
		Long: `Say what memory each rank of a job will use, by category, before it runs: its
schedule runs on a device that only counts (a dry run). No data is read and nothing
is allocated, so a model of any size can be planned, for any number of ranks.

Everything is allocated before step 1; of that, "at rest" is in use between
steps and "at the peak" at the instant that is named. What is outside the
allocator (contexts, communicators) is estimated, each with its source.
1 GiB is 2^30 bytes, 1 GB is 10^9.

With --machine the same schedule is simulated, queue by queue, at the speed of
some hardware: how long a step takes, what of its communication no computing
hides, tokens a second, and the share of the peak that the model's arithmetic
is. "here" measures the kernels and collectives of the job on this machine, whose
ranks share its processors, in steps of a few layers; where these would take long,
on fewer tokens. Other names are machines others have measured. A
file describes any other, in JSON: see examples/machine.json.

--model plans a Hugging Face folder, or a published model by name, without its
files: GPT-2, Llama 3, Qwen3, Gemma 3, Mistral, OLMo 2, Phi and SmolLM3; an unknown
name lists them all.`,
		Example: `  zeroth plan examples/quickstart.yaml
  zeroth plan examples/quickstart.yaml --world 64 --set zero.stage=1 --timeline plan.html
  zeroth plan --model Llama-3-8B --stage 3 --gpus 64 --gpu-memory 80GiB --micro-batch 1 --seq 8192 --recompute block`,
		Args: arguments(0, 1),
		RunE: a.do(func(_ *cobra.Command, args []string) error { return a.runPlan(p, o, args) }),
	}
	p.flags(cmd.Flags())
	f := cmd.Flags()
	intVar(f, &p.world, "world", 0, "plan for so many ranks of this machine's kind")
	intVar(f, &p.processes, "processes", 0, "plan for ranks in so many processes, which need memory for what is on its way between them")
	intVar(f, &p.hosts, "hosts", 0, "on so many hosts")
	o.pictures.flags(f)
	f.StringVar(&o.machine, "machine", "", "simulate a step's time on: here, "+strings.Join(sim.HardwareNames(), ", ")+", or a `file`")
	f.StringVar(&o.trace, "trace", "", "write what the queues of a rank will do to a `file` that ui.perfetto.dev opens; needs --machine")
	cmd.MarkFlagsMutuallyExclusive("world", "gpus")
	must(cmd.RegisterFlagCompletionFunc("machine", wordsOrFile(append([]string{"here"}, sim.HardwareNames()...)...)))
	completePlanned(cmd)
	return cmd
}

// runPlan plans the job, and writes and prints what is wanted of the plan.
func (a *app) runPlan(p *planned, o *planning, args []string) error {
	c, m, err := p.load(args)
	if err != nil {
		return err
	}
	if err := o.check(m); err != nil {
		return err
	}
	of := fit.PlanHere
	if m.GPU || p.given("world") || p.hosts > 1 { // not this machine's memory
		of = plan.New
	}
	planned, err := of(c, m)
	if err != nil {
		return err
	}
	if planned.Simulated, err = a.simulated(c, m, o.machine); err != nil {
		return err
	}
	stages, err := p.compare(o.stages, m, of)
	if err != nil {
		return err
	}
	if err := o.write(planned); err != nil {
		return err
	}
	if p.json {
		return cmp.Or(writeJSON(a.out, planned), planned.Fits())
	}
	if err := planned.Print(a.out); err != nil {
		return err
	}
	for _, line := range stages {
		a.say("%v\n", line)
	}
	if err := a.adviseRatio(c, m, o.machine); err != nil {
		return err
	}
	if next := p.next(c, planned); next != "" {
		a.say("next    %s\n", next)
	}
	return planned.Fits()
}

// planning is what is wanted of a plan besides itself.
type planning struct {
	pictures
	trace, machine string
}

// check refuses what does not go together, before anything is written.
func (o *planning) check(m plan.Machine) error {
	switch {
	case m.GPU && o.machine == "here":
		return input.BadInput(errors.New("--machine here: ranks of this machine are no GPUs; want it without --gpus and --gpu-memory, or another machine"))
	case o.trace != "" && o.machine == "":
		return input.BadInput(errors.New("--trace without --machine: a trace needs the speed of some hardware; add --machine here, or one of " + strings.Join(sim.HardwareNames(), ", ")))
	}
	return o.pictures.check()
}

// simulated is the job's step on a machine; nil if none is named.
func (a *app) simulated(c *config.Config, m plan.Machine, machine string) (*sim.Result, error) {
	switch machine {
	case "":
		return nil, nil
	case "here":
		if c.On() == "cuda" {
			return nil, input.BadInput(errors.New("--machine here measures kernels of processors, and the job's ranks are on GPUs; want device: cpu, or what 'zeroth bench gpu --write-machine FILE' says of this machine's: --machine FILE"))
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
		return sim.Simulate(s.Of(c), h)
	}
	return sim.Simulate(setup.Planned(c), h)
}

// openHardware is a machine by its name, whose ranks are on GPUs if that is what is planned
// for.
func openHardware(name string, m plan.Machine) (*sim.Hardware, error) {
	h, err := sim.OpenHardware(name)
	if err == nil {
		h.GPU = h.GPU || m.GPU
	}
	return h, err
}

// adviseRatio prints what part of the optimizer a job for GPUs of a known memory
// should offload, and what that saves at the speed of a machine, if one is named.
func (a *app) adviseRatio(c *config.Config, m plan.Machine, machine string) (err error) {
	if !m.GPU || c.Zero.Offload.Optimizer == "none" {
		return nil
	}
	l := fit.Limits{Ranks: c.Parallel.Ranks, Memory: m.Memory, GPU: true}
	if machine != "" {
		if l.Hardware, err = openHardware(machine, m); err != nil {
			return err
		}
	}
	line, err := fit.Advice(c, l)
	if line != "" {
		a.say("advice  %s\n", line)
	}
	return err
}

// writeJSON writes a value for programs, with nothing in it that a terminal obeys.
func writeJSON(out io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(out, show.Escape(b.String()))
	return err
}

// write writes the files that are asked for.
func (o *planning) write(plan *plan.Plan) error {
	err := o.pictures.draw(plan)
	if o.trace != "" {
		err = errors.Join(err, writeFile(o.trace, plan.WriteTrace))
	}
	return err
}
