package job

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"zeroth/device"
)

// Print writes what fits for people.
func (f *Fit) Print(out io.Writer) error {
	var b strings.Builder
	l, j := f.Limits, f.Job.Config
	fmt.Fprintf(&b, "job     %s, %d sequences of %s tokens a step\n", j.Model.title(), j.Train.Batch, grouped(int64(j.Model.Context)))
	fmt.Fprintf(&b, "limits  %d ranks of %s\n", l.Ranks, bothUnits(l.Memory))
	fmt.Fprintf(&b, "rates   %.4g flop/s a rank, %s/s sent: for the relative times alone\n", l.Rates.Flops, decimalSize(int64(l.Rates.Link)))
	t := columns{align: "lllllrrrrrl"}
	t.add("", "stage", "shard", "micro-batch", "recompute", "prefetch", "loss chunk", "allocated", "free", "time", "")
	var fastest float64
	for _, x := range f.Fits {
		if s := x.Cost.Seconds(); fastest == 0 || s < fastest {
			fastest = s
		}
	}
	for i, x := range f.Fits {
		f.row(&t, []string{"fits", "fits (fastest)"}[map[bool]int{true: 1}[i == 0]], x, fastest)
	}
	for _, x := range f.Others {
		f.row(&t, "does not fit", x, fastest)
	}
	f.row(&t, "as it is set", f.Job, fastest)
	fmt.Fprintf(&b, "\n%v\n%s", &t, f.advice())
	_, err := io.WriteString(out, b.String())
	return err
}

func (f *Fit) row(t *columns, word string, x *Choice, fastest float64) {
	c, mesh := x.Config, x.Config.Mesh()
	low, high := x.Free()
	free, why, time := byteSize(low), "", "-"
	if high != low {
		free += " to " + byteSize(high)
	}
	if fastest > 0 {
		time = fmt.Sprintf("%.2f", x.Cost.Seconds()/fastest)
	}
	switch {
	case high < 0:
		why = x.binds()
	case low < 0:
		why = "fits if what is outside is small"
	default:
		why = x.spends()
	}
	t.add(word, fmt.Sprint(c.Zero.Stage), fmt.Sprintf("%d × %d", mesh.Shard, mesh.Replicate), fmt.Sprintf("%d × %d", c.Train.MicroBatch, c.Train.Accumulate),
		c.Zero.Recompute, fmt.Sprint(c.Zero.Prefetch), fmt.Sprint(c.Train.LossChunk), byteSize(x.Allocated.Total()), free, time, why)
}

// binds says what takes most of a choice that does not fit.
func (c *Choice) binds() string {
	use := c.Binding()
	return fmt.Sprintf("%v take %s", use, byteSize(c.Allocated[use]))
}

// spends says what a step's time goes into.
func (c *Choice) spends() string {
	words := []string{decimalSize(c.Cost.Sent) + " sent"}
	if c.Cost.Again > 0 {
		words = append(words, fmt.Sprintf("%.0f %% recomputed", 100*c.Cost.Again/(c.Cost.Flops-c.Cost.Again)))
	}
	if s := c.Cost.Seconds(); c.Cost.Exposed > 0.005*s {
		words = append(words, fmt.Sprintf("%.0f %% waiting", 100*c.Cost.Exposed/s))
	}
	return strings.Join(words, ", ")
}

// advice is what to do about it.
func (f *Fit) advice() string {
	tried := fmt.Sprintf("%s settings tried by closed forms; what is listed was rehearsed and is exact.\n", grouped(int64(f.Tried)))
	if len(f.Fits) == 0 {
		return tried + "Nothing fits: more ranks, more memory for each, a smaller model or shorter sequences.\n"
	}
	line := "The job is set to the fastest already.\n"
	if sets := f.Fits[0].Sets; len(sets) > 0 {
		line = "The fastest: --set " + strings.Join(sets, " --set ") + "\n"
	}
	return tried + line
}

// title names a model: "GPT-2 124.4M".
func (m Model) title() string {
	n := m.network()
	total := 0
	for _, p := range parameters(n) {
		total += p.Numel()
	}
	return n.Name + " " + compact(float64(total))
}

// MarshalJSON is the choice for programs.
func (c *Choice) MarshalJSON() ([]byte, error) {
	low, high := c.Free()
	by, x, mesh := map[string]int64{}, c.Config, c.Config.Mesh()
	for use, n := range c.Allocated {
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
		Set        []string         `json:"set"`
		Allocated  int64            `json:"allocated"`
		Categories map[string]int64 `json:"categories"`
		FreeLow    int64            `json:"free_low"`
		FreeHigh   int64            `json:"free_high"`
		Binding    string           `json:"binding"`
		Seconds    float64          `json:"seconds"`
		Cost       Cost             `json:"cost"`
		Rehearsed  bool             `json:"rehearsed"`
	}{
		c.Fits(), x.Zero.Stage, mesh.Shard, mesh.Replicate, x.Train.MicroBatch, x.Train.Accumulate, x.Zero.Recompute, x.Zero.Prefetch,
		x.Train.LossChunk, c.Sets, c.Allocated.Total(), by, low, high, c.Binding().String(), c.Cost.Seconds(), c.Cost, c.Rehearsed,
	})
}

// MarshalJSON is the answer for programs.
func (f *Fit) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Limits Limits    `json:"limits"`
		Model  string    `json:"model"`
		Tried  int       `json:"tried"`
		Job    *Choice   `json:"job"`
		Fits   []*Choice `json:"fits"`
		Others []*Choice `json:"misfits"`
	}{f.Limits, f.Job.Config.Model.title(), f.Tried, f.Job, f.Fits, f.Others})
}
