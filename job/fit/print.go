package fit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/job/config"
	"zeroth/job/hf"
	"zeroth/job/plan"
	"zeroth/job/setup"
	"zeroth/job/show"
	"zeroth/job/sim"
	"zeroth/nn"
)

// Print writes what fits for people.
func (f *Result) Print(out io.Writer) error {
	var b strings.Builder
	l, j := f.Limits, f.Job.Config
	fmt.Fprintf(&b, "job     %s, %d sequences of %s tokens a step\n", title(j.Model), j.Train.Batch, show.Grouped(int64(j.Model.Context)))
	for _, line := range l.lines() {
		fmt.Fprintln(&b, line)
	}
	t := show.Columns{Align: "lllllrrrrrrl"}
	t.Add("", "stage", "shard ×", "micro-batch", "recompute", "prefetch", "chunk", "allocated", "free", "a step", "MFU", "")
	t.Add("", "", "replicate", "× accumulate", "", "units", "tokens", "a rank", "a rank", "takes", "", "")
	var fastest float64
	for _, x := range f.Fits {
		if s := x.Seconds(); fastest == 0 || s < fastest {
			fastest = s
		}
	}
	for i, x := range f.Fits {
		f.row(&t, fitting(x, fastest, i == 0), x, fastest)
	}
	for _, x := range f.Others {
		f.row(&t, "does not fit", x, fastest)
	}
	f.row(&t, "as it is set", f.Job, fastest)
	width := show.Width(out)
	if width == 0 || width > widest {
		width = widest
	}
	fmt.Fprintf(&b, "\n%s\n%s", t.Within(width), f.advice())
	return show.Print(out, b.String())
}

// widest is the columns of a row at most.
const widest = 120

// fitting says of a choice that fits how fast it is: those that a step's time does
// not tell apart are told to be equal.
func fitting(x *Choice, fastest float64, first bool) string {
	switch alike := x.Seconds() < fastest*tie; {
	case first:
		return "fits, fastest"
	case alike:
		return "fits, as fast"
	}
	return "fits"
}

// tie is how much longer a step may take that is as fast: less than what a simulated
// time is worth.
const tie = 1.005

func (f *Result) row(t *show.Columns, word string, x *Choice, fastest float64) {
	c, mesh := x.Config, config.Mesh(x.Config)
	low, high := x.Free()
	why, step, used := "", "-", "-"
	if fastest > 0 {
		step = fmt.Sprintf("× %.2f", x.Seconds()/fastest)
	}
	if x.Simulated != nil {
		step, used = show.Seconds(x.Simulated.Seconds), fmt.Sprintf("%.0f %%", 100*x.Simulated.Used)
	}
	switch {
	case low < 0 && high >= 0:
		why = fmt.Sprintf("up to %s free: fits if what is outside is small", show.ByteSize(high))
	case !x.Fits():
		why = x.binds()
	default:
		why = x.spends()
	}
	if offload := c.Zero.Offload.String(); offload != "" {
		why = offload + ": " + why
	}
	t.Add(word, fmt.Sprint(c.Zero.Stage), fmt.Sprintf("%d × %d", mesh.Shard, mesh.Replicate), fmt.Sprintf("%d × %d", c.Train.MicroBatch, c.Train.Accumulate),
		c.Zero.Recompute, fmt.Sprint(c.Zero.Prefetch), fmt.Sprint(c.Train.LossChunk), show.ByteSize(x.Needs.Device.Total()), show.ByteSize(low), step, used, why)
}

// lines are the limits in words.
func (l Limits) lines() []string {
	words := fmt.Sprintf("limits  %d ranks of %s", l.Ranks, show.BothUnits(l.Memory))
	rates := fmt.Sprintf("rates   %.4g flop/s a rank, %s/s sent", l.Rates.Flops, show.DecimalSize(int64(l.Rates.Link)))
	if l.Host > 0 {
		words += fmt.Sprintf(", with %s of host memory for each", show.BothUnits(l.Host))
		rates += fmt.Sprintf(", %s/s to host memory, %s/s there", show.DecimalSize(int64(l.Rates.Host)), show.DecimalSize(int64(l.Rates.Memory)))
	}
	if l.Disk > 0 {
		words += fmt.Sprintf(" and %s of disk", show.BothUnits(l.Disk))
		rates += fmt.Sprintf(", %s/s to disk", show.DecimalSize(int64(l.Rates.Disk)))
	}
	if l.Hardware != nil {
		return []string{words, fmt.Sprintf("on      %s: %s", l.Hardware.Name, l.Hardware.Summary())}
	}
	return []string{words, rates + ": for the relative times alone"}
}

// binds says what takes most of a choice that does not fit.
func (c *Choice) binds() string {
	what, bytes := c.binding(plan.Title)
	return fmt.Sprintf("most is %s, %s", what, show.ByteSize(bytes))
}

// spends says what a step's time goes into.
func (c *Choice) spends() string {
	words := []string{show.DecimalSize(c.Cost.Sent) + " sent"}
	if c.Cost.Again > 0 {
		words = append(words, fmt.Sprintf("%.0f %% recomputed", 100*c.Cost.Again/(c.Cost.Flops-c.Cost.Again)))
	}
	s, waits, updates := c.Cost.Seconds(), c.Cost.Exposed, c.Cost.Update
	if f := c.Simulated; f != nil {
		s, waits, updates = f.Seconds, f.Exposed, f.Offload
	}
	if waits > 0.005*s {
		words = append(words, fmt.Sprintf("%.0f %% waiting", 100*waits/s))
	}
	if updates > 0 {
		words = append(words, fmt.Sprintf("%.0f %% updating, %s of host memory", 100*updates/s, show.ByteSize(c.Needs.Host.Total())))
	}
	if c.least > 0 {
		words = append(words, c.saves())
	}
	if c.Needs.Disk > 0 {
		words = append(words, show.ByteSize(c.Needs.Disk)+" of disk")
	}
	return strings.Join(words, ", ")
}

// advice is what to do about it.
func (f *Result) advice() string {
	tried := fmt.Sprintf("%s settings tried by dry runs of a few layers; what is listed has had a dry run of all of them.\n", show.Grouped(int64(f.Tried)))
	if len(f.Fits) == 0 {
		return tried + f.withHost() + "Nothing fits: more ranks, more memory for each, a smaller model or shorter sequences.\n"
	}
	line := "The job is set to the fastest already.\n"
	if sets := f.Fits[0].Sets; len(sets) > 0 {
		line = "The fastest: --set " + strings.Join(sets, " --set ") + "\n"
	}
	if f.Job.Fits() && len(f.Fits[0].Sets) > 0 && f.Job.Seconds() < f.Fits[0].Seconds()*tie {
		line = "The job as it is set is as fast as any.\n"
	}
	if n := f.ties(); n > 0 {
		line += fmt.Sprintf("%d of the others are as fast as the first, to half a percent.\n", n)
	}
	return tried + line
}

// withHost says how much host memory would make something fit, if there is none so far
// and some would; else it is empty.
func (f *Result) withHost() string {
	l, c := f.Limits, f.Job.Config
	l.Host = math.MaxInt64 / 2
	if f.Limits.Host > 0 || l.Hardware != nil && l.Hardware.Serves(setup.Planned(c), true, false) != nil {
		return ""
	}
	with, err := Search(c, l)
	if err != nil || len(with.Fits) == 0 {
		return ""
	}
	least := slices.MinFunc(with.Fits, func(a, b *Choice) int { return cmp.Compare(a.Needs.Host.Total(), b.Needs.Host.Total()) })
	need := least.Needs.Host.Total()
	ranks := int64(min(8, l.Ranks)) // of a machine, as an example
	return fmt.Sprintf("It fits with %s of host memory for each rank, for example with --host-memory %dGiB for a machine of %d.\n",
		show.ByteSize(need), (ranks*need+1<<30-1)>>30, ranks)
}

// ties are the choices beside the first that are as fast.
func (f *Result) ties() (n int) {
	for _, x := range f.Fits[1:] {
		if x.Seconds() < f.Fits[0].Seconds()*tie {
			n++
		}
	}
	return n
}

// title names a model: "GPT-2 124.4M".
func title(m hf.Model) string {
	n := m.Network(nn.LoRA{})
	total := 0
	for _, p := range hf.Parameters(n) {
		total += p.Numel()
	}
	return n.Name + " " + show.Compact(float64(total))
}

// MarshalJSON is the choice for programs.
func (c *Choice) MarshalJSON() ([]byte, error) {
	low, high := c.Free()
	binding, _ := c.Binding()
	by, x, mesh := map[string]int64{}, c.Config, config.Mesh(c.Config)
	for use, n := range c.Needs.Device {
		by[device.Use(use).String()] = n
	}
	return json.Marshal(struct {
		Fits       bool             `json:"fits"`
		Stage      int              `json:"stage"`
		Shard      int              `json:"shard"`
		Replicate  int              `json:"replicate"`
		MicroBatch int              `json:"micro_batch"`
		Accumulate int              `json:"accumulate"`
		Recompute  string           `json:"recompute"`
		Prefetch   int              `json:"prefetch"`
		LossChunk  int              `json:"loss_chunk"`
		Optimizer  string           `json:"offload_optimizer"`
		Params     string           `json:"offload_parameters"`
		Ratio      float64          `json:"offload_ratio"`
		Set        []string         `json:"set"`
		Allocated  int64            `json:"allocated"`
		Categories map[string]int64 `json:"categories"`
		Host       int64            `json:"host"`
		Disk       int64            `json:"disk"`
		FreeLow    int64            `json:"free_low"`
		FreeHigh   int64            `json:"free_high"`
		Binding    string           `json:"binding"`
		Seconds    float64          `json:"seconds"`
		Cost       sim.Cost         `json:"cost"`
		Simulated  *sim.Result      `json:"simulated,omitempty"`
		Exact      bool             `json:"exact"`
	}{
		c.Fits(), x.Zero.Stage, mesh.Shard, mesh.Replicate, x.Train.MicroBatch, x.Train.Accumulate, x.Zero.Recompute, x.Zero.Prefetch,
		x.Train.LossChunk, x.Zero.Offload.Optimizer, x.Zero.Offload.Parameters, x.Zero.Offload.Ratio, c.Sets, c.Needs.Device.Total(), by,
		c.Needs.Host.Total(), c.Needs.Disk, low, high, binding, c.Seconds(), c.Cost, c.Simulated, c.Exact,
	})
}

// MarshalJSON is the answer for programs.
func (f *Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Limits Limits    `json:"limits"`
		Model  string    `json:"model"`
		Tried  int       `json:"tried"`
		Job    *Choice   `json:"job"`
		Fits   []*Choice `json:"fits"`
		Others []*Choice `json:"misfits"`
	}{f.Limits, title(f.Job.Config.Model), f.Tried, f.Job, f.Fits, f.Others})
}
