package forecast

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/nn"
)

// Quantities lists the quantities that FindLargest can maximize.
var Quantities = []string{"model", "seq", "micro_batch"}

// Largest is the largest value of a quantity that fits, with the job's own settings and with any
// settings.
type Largest struct {
	Of     string  `json:"of"`
	As     *Answer `json:"as_set"` // nil: nothing fits
	Any    *Answer `json:"any"`    // nil: nothing fits
	Limits Limits  `json:"limits"`
	Lacks  string  `json:"lacks,omitempty"` // if nothing fits: what would make the smallest fit
}

// Answer is a value and a choice that fits with it.
type Answer struct {
	Value  int     `json:"value"` // heads, tokens or sequences
	Title  string  `json:"title"`
	Choice *Choice `json:"choice"`

	Limit string `json:"limit,omitempty"`           // of a sequence: the use of memory that exceeds what there is first
	Grows []Grow `json:"bytes_per_token,omitempty"` // of a sequence: what each token of its second half needs of a rank, most first
}

// Grow is a use of memory that grows with the sequence.
type Grow struct {
	Of    string  `json:"of"`
	Bytes float64 `json:"bytes"`
}

// FindLargest searches for the largest model of the job's proportions, sequence or micro-batch
// that fits. In a model, the head width is constant, and width, hidden layer and layers grow
// together.
func FindLargest(c *spec.Job, of string, l Limits) (*Largest, error) {
	grown := map[string]func(*spec.Job, int) (*spec.Job, string){"model": grownModel, "seq": grownContext, "micro_batch": grownMicroBatch}[of]
	if grown == nil {
		return nil, input.BadInput(fmt.Errorf("--largest %s; want %s", of, show.Either(Quantities)))
	}
	if err := searchable(c); err != nil {
		return nil, err
	}
	if c.Own.Model != nil && of != "micro_batch" {
		return nil, input.BadInput(fmt.Errorf("--largest %s: the size of a program's network is fixed; want --largest micro_batch", of))
	}
	g := growth{job: onRanks(c, l.Ranks), limits: l, of: of, fixed: of == "micro_batch", grown: grown}
	as, err := g.answer(0, func(_ *search, job *Choice) *Choice { return job })
	if err != nil {
		return nil, err
	}
	any, err := g.answer(0, func(s *search, job *Choice) *Choice {
		lean := s.each([]*spec.Job{s.lean(s.job)})
		if s.found(job) || len(lean) == 0 {
			return job
		}
		return lean[0]
	})
	if err == nil && any != nil {
		var more *Answer
		if more, err = g.answer(any.Value, (*search).descend); more != nil {
			any = more
		}
	}
	r := &Largest{Of: of, As: as, Any: any, Limits: l}
	if smallest, title := grown(g.job, 1); err == nil && any == nil && smallest != nil {
		l.Host = math.MaxInt64
		r.Lacks = title + ": " + nearby(smallest, l, (*Choice).over, setup.Footprint.DeviceTotal)
	}
	return r, err
}

// growth makes a job larger.
type growth struct {
	job    *spec.Job
	limits Limits
	of     string                                   // of Quantities
	fixed  bool                                     // micro-batches grow
	grown  func(*spec.Job, int) (*spec.Job, string) // the job with a value, nil beyond its limits, and a title
}

// answer returns the largest value above least for which the choice that best returns fits, nil if
// none does.
func (g *growth) answer(least int, best func(*search, *Choice) *Choice) (*Answer, error) {
	var wrong error
	try := func(n int) *Choice {
		x, _ := g.grown(g.job, n)
		if x == nil || wrong != nil {
			return nil
		}
		s := newSearch(x, g.limits)
		s.undivided, s.ownMesh, s.untimed = g.fixed, true, true
		var c *Choice
		if c, wrong = s.measure(s.job); wrong == nil {
			c = best(s, c)
		}
		return c
	}
	n := bisect(func(n int) bool {
		c := try(least + n)
		return c != nil && c.Fits()
	})
	if n == 0 || wrong != nil {
		return nil, wrong
	}
	n += least
	_, title := g.grown(g.job, n)
	if more, _ := g.grown(g.job, n+1); more == nil {
		title += "; larger ones were not searched"
	}
	c := try(n)
	c.simulate()
	a := &Answer{Value: n, Title: title, Choice: c}
	if g.of == "seq" {
		a.limit(try(n+1), g.limits)
	}
	return a, wrong
}

// limit sets what limits a sequence, given the choice for one that is too long, which is nil if no such job is
// searched.
func (a *Answer) limit(longer *Choice, l Limits) {
	if longer == nil {
		a.Limit = "the positions of the model, or the limits of a job"
		return
	}
	a.Limit, _ = longer.binding(device.Use.String)
	if a.Value < 2 {
		return
	}
	x, _ := grownContext(a.Choice.Config, a.Value/2)
	all, err := NewPlan(a.Choice.Config, l.machine(x))
	half, wrong := NewPlan(x, l.machine(x))
	if err != nil || wrong != nil {
		return
	}
	grow := func(of string, more int64) {
		if more > 0 {
			a.Grows = append(a.Grows, Grow{of, float64(more) / float64(seqStep*(a.Value-a.Value/2))})
		}
	}
	for c, x := range categories {
		grow(x.title, all.Peak.InUse[c]-half.Peak.InUse[c])
	}
	slices.SortFunc(a.Grows, func(x, y Grow) int { return cmp.Compare(y.Bytes, x.Bytes) })
	grow("host memory", all.Host.Total()-half.Host.Total())
}

// limited describes what limits a sequence.
func (a *Answer) limited() string {
	words := []string{}
	for _, g := range a.Grows {
		words = append(words, show.ByteSize(int64(g.Bytes))+" "+g.Of)
	}
	if len(words) == 0 {
		return "limited by " + a.Limit
	}
	return fmt.Sprintf("limited by %s; a token needs %s", a.Limit, strings.Join(words, ", "))
}

// bisect returns the largest n for which ok holds, 0 if it never does. If ok holds for n, it must
// hold for all smaller numbers.
func bisect(ok func(int) bool) int {
	if !ok(1) {
		return 0
	}
	lo, hi := 1, 2
	for ok(hi) {
		lo, hi = hi, 2*hi
	}
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; ok(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// counts reports whether the job's settings are within config's limits.
func counts(c *spec.Job) bool {
	wrong, _ := spec.Countable(c)
	return wrong == ""
}

// grownModel returns the job with a model of n groups of heads. A group is the query heads that
// share keys and values in the job's model, or one head.
func grownModel(c *spec.Job, n int) (*spec.Job, string) {
	x, m := c.Copy(), c.Model
	group := 1
	if m.Family == "llama" {
		group = m.Heads / m.KV
		x.Model.KV = n
		x.Model.FFN = (m.FFN*n*group/m.Heads + 63) / 64 * 64
		x.Model.Experts.FFN = (m.Experts.FFN*n*group/m.Heads + 63) / 64 * 64
		x.Model.Experts.Shared = (m.Experts.Shared*n*group/m.Heads + 63) / 64 * 64
	}
	x.Model.From, x.Model.Heads = "", n*group
	x.Model.Width = m.Width / m.Heads * x.Model.Heads
	x.Model.Layers = max(1, (m.Layers*x.Model.Heads+m.Heads/2)/m.Heads)
	if x.Model.Width > hf.Most || x.Model.FFN > 4*hf.Most || x.Model.Experts.FFN > hf.Most || x.Model.Layers > fitLayers || !counts(x) {
		return nil, ""
	}
	return x, fmt.Sprintf("%s: %d layers, width %d, %d heads", hf.Title(x.Model.Network(nn.LoRA{})), x.Model.Layers, x.Model.Width, x.Model.Heads)
}

// seqStep is the number of tokens by which sequences grow.
const seqStep = 64

// grownContext returns the job with sequences of n times seqStep tokens.
func grownContext(c *spec.Job, n int) (*spec.Job, string) {
	x := c.Copy()
	x.Model.Context = seqStep * n
	if c.Model.From != "" && c.Model.Family == "gpt2" && x.Model.Context > max(c.Model.Context, c.Model.Longest) {
		return nil, "" // GPT-2 has no more position embeddings
	}
	if x.Model.Context > hf.Most || !counts(x) {
		return nil, ""
	}
	return x, fmt.Sprintf("sequences of %s tokens", show.Grouped(int64(x.Model.Context)))
}

// grownMicroBatch returns the job with micro-batches of n sequences, one per step.
func grownMicroBatch(c *spec.Job, n int) (*spec.Job, string) {
	x := c.Copy()
	x.Train.MicroBatch, x.Train.Accumulate, x.Train.Batch = n, 1, n*c.Parallel.Ranks
	if !counts(x) {
		return nil, ""
	}
	return x, fmt.Sprintf("micro-batches of %d sequences", n)
}

// Print prints the answer as a table.
func (r *Largest) Print(out io.Writer) error {
	t := show.Columns{Align: "lll"}
	for _, a := range []struct {
		how string
		*Answer
	}{{"with the job's settings", r.As}, {"with any", r.Any}} {
		if a.Answer == nil {
			t.Add(a.how, "nothing fits, not even the smallest", "zeroth plan says what it needs")
			continue
		}
		low, _ := a.Choice.Free()
		words := fmt.Sprintf("%s allocated, %s free", show.ByteSize(a.Choice.Needs.Device.Total()), show.ByteSize(low))
		t.Add(a.how, a.Title, words)
		if a.Limit != "" {
			t.Add("", "", a.limited())
		}
		for _, s := range a.Choice.Sets {
			t.Add("", "", "--set "+s)
		}
	}
	text := fmt.Sprintf("the largest %s on %d ranks of %s\n%v", r.Of, r.Limits.Ranks, show.BothUnits(r.Limits.Memory), &t)
	if r.Lacks != "" {
		text = strings.TrimRight(text, "\n") + "\n" + r.Lacks + "\n"
	}
	return show.Print(out, text)
}
