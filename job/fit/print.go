package fit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"zeroth/device"
	"zeroth/job/config"
	"zeroth/job/hf"
	"zeroth/job/show"
	"zeroth/job/sim"
)

// Print writes what fits for people.
func (f *Result) Print(out io.Writer) error {
	var b strings.Builder
	l, j := f.Limits, f.Job.Config
	fmt.Fprintf(&b, "job     %s, %d sequences of %s tokens a step\n", title(j.Model), j.Train.Batch, show.Grouped(int64(j.Model.Context)))
	for _, line := range l.lines() {
		fmt.Fprintln(&b, line)
	}
	t := show.Columns{Align: "lllllrrlrrrrrl"}
	t.Add("", "stage", "shard ×", "micro-batch ×", "recompute", "prefetch,", "loss chunk,", "offload", "allocated", "free", "a step", "of the", "MFU", "a step")
	t.Add("", "", "replicate", "accumulate", "", "units", "tokens", "", "a rank", "a rank", "takes", "fastest", "", "")
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
	fmt.Fprintf(&b, "\n%s\n%s", t.Within(show.Width(out)), f.advice())
	return show.Print(out, b.String())
}

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
	free, why, time := show.ByteSize(low), "", "-"
	if high != low {
		free += " to " + show.ByteSize(high)
	}
	if fastest > 0 {
		time = fmt.Sprintf("× %.2f", x.Seconds()/fastest)
	}
	step, used := "-", "-"
	if x.Simulated != nil {
		step, used = show.Seconds(x.Simulated.Seconds), fmt.Sprintf("%.0f %%", 100*x.Simulated.Used)
	}
	switch {
	case low < 0 && high >= 0:
		why = "fits if what is outside is small"
	case !x.Fits():
		why = x.binds()
	default:
		why = x.spends()
	}
	t.Add(word, fmt.Sprint(c.Zero.Stage), fmt.Sprintf("%d × %d", mesh.Shard, mesh.Replicate), fmt.Sprintf("%d × %d", c.Train.MicroBatch, c.Train.Accumulate),
		c.Zero.Recompute, fmt.Sprint(c.Zero.Prefetch), fmt.Sprint(c.Train.LossChunk), cmp.Or(c.Zero.Offload.String(), "-"), show.ByteSize(x.Needs.Device.Total()), free, step, time, used, why)
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
	what, bytes := c.Binding()
	return fmt.Sprintf("%s takes %s", what, show.ByteSize(bytes))
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
	tried := fmt.Sprintf("%s settings tried by closed forms; the bytes of what is listed are those of a dry run.\n", show.Grouped(int64(f.Tried)))
	if len(f.Fits) == 0 {
		return tried + "Nothing fits: more ranks, more memory for each, a smaller model or shorter sequences.\n"
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
	n := m.Network()
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
