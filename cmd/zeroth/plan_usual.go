package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"zeroth/config"
	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/show"
	"zeroth/job/spec"
)

// What people train with, for a model that no job file describes.
const (
	usualTokens   = 4 << 20 // of a step
	usualSequence = 8192    // tokens
	usualGPUs     = 8
	usualMachine  = "h100"
)

// gpus is the value of --gpus: a number or auto.
type gpus struct {
	decimal[int]
	auto *bool
}

func gpusVar(f *pflag.FlagSet, p *planned) {
	f.Var(gpus{decimal[int]{&p.gpus, strconv.Atoi}, &p.auto}, "gpus", "`number` of GPUs to plan for, one per rank; auto is the smallest power of two that suffices")
}

func (g gpus) Set(s string) error {
	if *g.auto = s == "auto"; *g.auto {
		return nil
	}
	if err := g.decimal.Set(s); err != nil {
		return fmt.Errorf("%w, or auto", err)
	}
	return nil
}

// assume adds a setting that no flag gives.
func (p *planned) assume(set, what string) {
	p.usual, p.assumed = append(p.usual, set), append(p.assumed, what)
}

// assumeUnlessSearched is like assume for a setting that a search changes.
func (p *planned) assumeUnlessSearched(set, what string) {
	if p.usual = append(p.usual, set); !p.searched {
		p.assumed = append(p.assumed, what)
	}
}

// gives reports whether a flag sets one of the keys.
func (p *planned) gives(keys ...string) bool {
	return spec.Given(append(p.shortened(), p.sets...), keys...)
}

// draft loads the job. What flags leave open of a model has usual values.
func (p *planned) draft(m forecast.Machine) (*spec.Job, error) {
	load := p.machine(1, 0).Draft
	if p.searched {
		load = p.machine(1, 0).DraftDivided
	}
	p.usual, p.assumed = nil, nil
	if p.auto && !p.searched {
		p.assumed = append(p.assumed, count(p.gpus, "GPU")+" (--gpus)")
	}
	c, err := load(p.file, p.overlays())
	for _, open := range []func(*spec.Job, forecast.Machine) error{p.openPasses, p.openSequence, p.openBatch, p.openStage} {
		if p.model != "" || p.batch != "" {
			if err = open(c, m); err == nil {
				c, err = load(p.file, p.overlays())
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return c, err
}

func (p *planned) openPasses(*spec.Job, forecast.Machine) error {
	for _, s := range [][3]string{{"train.micro_batch", "1", "micro-batches of 1 sequence (--micro-batch)"}, {"zero.recompute", "block", "blocks recomputed (--recompute)"}} {
		if p.model != "" && !p.gives(s[0]) {
			p.assumeUnlessSearched(s[0]+"="+s[1], s[2])
		}
	}
	return nil
}

func (p *planned) openSequence(c *spec.Job, _ forecast.Machine) error {
	if p.model != "" && !p.gives("model.context") && c.Model.Context > usualSequence {
		p.assume(fmt.Sprint("model.context=", usualSequence), fmt.Sprintf("sequences of %s tokens (--seq)", show.Grouped(usualSequence)))
	}
	return nil
}

// openBatch chooses a batch of about --batch-tokens that the ranks divide. In a search, a batch of fewer
// sequences than ranks divides the model.
func (p *planned) openBatch(c *spec.Job, _ forecast.Machine) (err error) {
	tokens := float64(usualTokens)
	if p.batch != "" {
		tokens, err = parseCount("batch-tokens", p.batch)
	} else if p.gives("train.batch", "train.accumulate") {
		return nil
	}
	n, each := max(1, int(math.Round(tokens/float64(c.Model.Context)))), c.Train.MicroBatch*c.Parallel.DataRanks()
	if !p.searched || n >= each {
		n = max(1, n/each) * each
	}
	p.usual = append(p.usual, "train.accumulate=null", fmt.Sprint("train.batch=", n))
	if p.batch == "" {
		p.assumed = append(p.assumed, fmt.Sprintf("%s tokens a step (--batch-tokens)", show.Compact(float64(n*c.Model.Context))))
	}
	return err
}

// openStage chooses ZeRO stage 1 if the device is known to have enough memory for it, else stage 3. A
// search tries all.
func (p *planned) openStage(_ *spec.Job, m forecast.Machine) error {
	if p.model == "" || p.gives("zero.stage") {
		return nil
	}
	why := ""
	if !p.searched && m.Memory > 0 {
		p.usual = append(p.usual, "zero.stage=1")
		if x, err := p.machine(1, 0).Draft(p.file, p.overlays()); err == nil {
			if f, err := forecast.NewPlan(x, m); err == nil && f.Suffices() {
				p.assumed = append(p.assumed, "stage 1 (--stage)")
				return nil
			}
		}
		why = ", because stage 1 does not fit"
	}
	p.assumeUnlessSearched("zero.stage=3", "stage 3"+why+" (--stage)")
	return nil
}

// device returns the GPUs to plan for. Their memory is --gpu-memory, else that of a machine. If no machine
// is named, a search simulates the one that has such GPUs, or the usual one.
func (p *planned) device(machine *string) (m forecast.Machine, err error) {
	named := *machine != "" && *machine != "here"
	if p.searched && p.model != "" && p.gpus == 0 && !p.gives("parallel.ranks") {
		p.gpus = usualGPUs
	}
	m.GPU = p.searched || p.auto || p.gpu != "" || p.gpus > 0 || p.model != "" && named
	if p.gpu != "" {
		if m.Memory, err = config.ParseSize(p.gpu); err != nil {
			return m, input.BadInput(fmt.Errorf("--gpu-memory: %w", err))
		}
	}
	if !p.searched && (m.Memory > 0 || p.model == "" && !p.auto || !m.GPU) {
		return m, nil
	}
	name, alike := *machine, forecast.MachineWith(m.Memory)
	if !named {
		name = cmp.Or(alike, usualMachine)
	}
	if p.searched {
		*machine = name
	}
	h, err := forecast.OpenHardware(name)
	switch {
	case err != nil:
	case m.Memory == 0 && h.DeviceMemory > 0:
		m.Memory = h.DeviceMemory
		p.on = fmt.Sprintf("GPUs of %s, those of %s (--gpu-memory, --machine)", show.ByteSize(m.Memory), h.Name)
	case !named && alike == "":
		p.on = fmt.Sprintf("the speed of %s, as no known machine has GPUs of %s: describe yours with --machine FILE", h.Name, show.ByteSize(m.Memory))
	}
	return m, err
}

// assumptions returns a line of what no flag gives, empty if there is nothing.
func (p *planned) assumptions() string {
	all := p.assumed
	if p.on != "" {
		all = append(all, p.on)
	}
	if len(all) == 0 {
		return ""
	}
	return "assumed " + strings.Join(all, ", ") + "\n"
}

// enough loads the job for the smallest power of two of GPUs that fits, if --gpus is auto.
func (p *planned) enough(load func() (*spec.Job, error), fits func(*spec.Job) bool) (*spec.Job, error) {
	if !p.auto {
		return load()
	}
	var first error
	for p.gpus = 1; p.gpus <= config.MostRanks; p.gpus *= 2 {
		c, err := load()
		if err == nil && fits(c) {
			return c, nil
		}
		first = cmp.Or(first, err)
	}
	return nil, cmp.Or(first, input.BadInput(fmt.Errorf("--gpus auto: no number of GPUs up to %d suffices; want more memory in each, shorter sequences or smaller micro-batches", config.MostRanks)))
}

// costs returns a line of what training on the tokens of --tokens takes, which it also sets in the step; empty without
// one.
func (p *planned) costs(f *forecast.Step) string {
	if p.tokens == "" || f == nil {
		return ""
	}
	n, _ := parseCount("tokens", p.tokens) // checked before
	f.Train(n)
	t := f.Training
	return fmt.Sprintf("costs   %s tokens are %s steps: %.1f days, %s GPU-hours\n", show.Compact(n), show.Grouped(t.Steps), t.Days, show.Grouped(int64(math.Ceil(t.GPUHours))))
}

// check reports mistakes in the flags, before anything is planned.
func (p *planned) check(speed bool) error {
	var errs []error
	for flag, s := range map[string]string{"batch-tokens": p.batch, "tokens": p.tokens} {
		if s != "" {
			_, err := parseCount(flag, s)
			errs = append(errs, err)
		}
	}
	if p.tokens != "" && !speed {
		errs = append(errs, input.BadInput(errors.New("--tokens needs the speed of some hardware; add --machine here, or one of "+strings.Join(forecast.HardwareNames(), ", "))))
	}
	return errors.Join(errs...)
}

// parseCount parses a number of tokens such as 15T, 300B or 4M.
func parseCount(flag, s string) (float64, error) {
	digits := strings.TrimRight(strings.ToUpper(s), "KMBT")
	unit, known := map[string]float64{"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[strings.ToUpper(s)[len(digits):]]
	n, err := strconv.ParseFloat(digits, 64)
	if n *= unit; err != nil || !known || !(n >= 1 && n <= 1e18) {
		return 0, input.BadInput(fmt.Errorf("--%s: %q is not a number of tokens; want 1 to 1e18, such as 300B or 15T", flag, show.Cut(s, 80)))
	}
	return n, nil
}
