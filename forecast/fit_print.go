package forecast

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/nn"
)

// title returns the name and the size of a job's network, without adapters.
func title(c *spec.Job) string {
	if m := c.Own.Model; m != nil {
		return hf.Title(m)
	}
	return hf.Title(c.Model.Network(nn.LoRA{}))
}

// Print prints the result as a table with advice.
func (f *Settings) Print(out io.Writer) error {
	var b strings.Builder
	l, j := f.Limits, f.Job.Config
	fmt.Fprintf(&b, "job     %s, %d sequences of %s tokens a step\n", title(j), j.Train.Batch, show.Grouped(int64(j.Model.Context)))
	for _, line := range l.lines() {
		fmt.Fprintln(&b, line)
	}
	var fastest float64
	for _, x := range f.Fits {
		if s := x.Seconds(); fastest == 0 || s < fastest {
			fastest = s
		}
	}
	var rows [][]string
	for i, x := range f.Fits {
		rows = append(rows, f.row(fitting(x, fastest, i == 0), x, fastest))
	}
	for _, x := range f.Others {
		rows = append(rows, f.row("does not fit", x, fastest))
	}
	rows = append(rows, f.row("your job", f.Job, fastest))
	t, alike := tabled(rows)
	if alike != "" {
		fmt.Fprintf(&b, "alike   %s\n", alike)
	}
	width := show.Width(out)
	if width == 0 || width > widest {
		width = widest
	}
	fmt.Fprintf(&b, "\n%s\n%s%s", t.Within(width), legend, f.advice())
	return show.Print(out, b.String())
}

// columns lists the columns of the answer: title, alignment, and the name to use if all rows are
// equal and the column is omitted.
var columns = []struct{ title, align, name string }{
	{"", "l", ""}, {"mesh", "l", ""}, {"schedule", "l", "schedule"}, {"stage", "l", "stage"}, {"micro", "l", "micro-batches"}, {"recompute", "l", "recompute"},
	{"allocated", "r", ""}, {"free", "r", ""}, {"a step", "r", ""}, {"MFU", "r", ""}, {"", "l", ""},
}

// legend explains the titles of columns.
const legend = `Mesh is pipeline × tensor × context × shard × replicate, micro is micro_batch × accumulate, and memory
is per rank. MFU is the model's arithmetic as a share of the peak. Sent is what a rank sends in a step,
recomputed the arithmetic of recompute as a share of the model's, idle a pipeline's bubble, and waiting
communication that no computation hides.
` + overlap + ".\n"

// overlap describes what happens at the same time in a simulation, as in a run.
const overlap = `Ranks compute while they gather and reduce units and move offloaded state, but not while those of a
tensor or context group exchange activations`

// tabled returns the table without the columns in which all rows are equal, and a description of
// those.
func tabled(rows [][]string) (t *show.Columns, alike string) {
	t = &show.Columns{}
	var words []string
	lines := make([][]string, 1+len(rows))
	for i, c := range columns {
		if c.name != "" && !slices.ContainsFunc(rows, func(row []string) bool { return row[i] != rows[0][i] }) {
			if rows[0][i] != "" {
				words = append(words, c.name+" "+rows[0][i])
			}
			continue
		}
		t.Align += c.align
		lines[0] = append(lines[0], c.title)
		for j, row := range rows {
			lines[1+j] = append(lines[1+j], row[i])
		}
	}
	for _, line := range lines {
		t.Add(line...)
	}
	return t, strings.Join(words, ", ")
}

// widest is the maximum width of a row in characters.
const widest = 120

// fitting describes the speed of a choice that fits. Differences below tie count as equal.
func fitting(x *Choice, fastest float64, first bool) string {
	switch alike := x.Seconds() < fastest*tie; {
	case first:
		return "fits, fastest"
	case alike:
		return "fits, equally fast"
	}
	return "fits"
}

// tie is the ratio of step times that count as equal. It is less than the error of a simulation.
const tie = 1.005

// row returns a row of the answer, one cell per column.
func (f *Settings) row(word string, x *Choice, fastest float64) []string {
	c, mesh := x.Config, spec.Mesh(x.Config)
	low, high := x.Free()
	why, step, used, free := "", "-", "-", show.ByteSize(low)
	if low < 0 {
		free = show.ByteSize(-low) + " short"
	}
	switch {
	case x.Simulated == nil:
	case x.limits.Hardware == nil:
		step = fmt.Sprintf("× %.2f", x.Seconds()/fastest)
	default:
		step, used = show.Seconds(x.Simulated.Seconds), fmt.Sprintf("%.0f %%", 100*x.Simulated.Used)
	}
	switch {
	case low < 0 && high >= 0:
		why = fmt.Sprintf("fits if memory outside zeroth is small: at best %s free", show.ByteSize(high))
	case !x.Fits():
		why = x.binds()
	default:
		why = x.spends()
	}
	if j := f.Job.Config; c.Train.LossChunk != j.Train.LossChunk {
		why = fmt.Sprintf("chunks of %d, %s", c.Train.LossChunk, why)
	}
	if j := f.Job.Config; c.Train.MLPChunk != j.Train.MLPChunk {
		why = fmt.Sprintf("MLP in chunks of %d, %s", c.Train.MLPChunk, why)
	}
	if j := f.Job.Config; c.Zero.Prefetch != j.Zero.Prefetch {
		why = fmt.Sprintf("prefetch %d, %s", c.Zero.Prefetch, why)
	}
	if offload := c.Zero.Offload.String(); offload != "" {
		why = offload + ": " + why
	}
	schedule := pipelineOf(c).Schedule
	if n := pipelineOf(c).Virtual; n > 1 {
		schedule = fmt.Sprint("interleaved × ", n)
	}
	divided := ""
	if n := c.Parallel.Expert; n > 1 {
		divided = fmt.Sprintf(" × expert %d", n)
	}
	return []string{word, fmt.Sprintf("%d × %d × %d × %d × %d", c.Parallel.Pipeline, c.Parallel.Tensor, c.Parallel.Context, mesh.Shard, mesh.Replicate) + divided, schedule, fmt.Sprint(c.Zero.Stage),
		fmt.Sprintf("%d × %d", c.Train.MicroBatch, c.Train.Accumulate), c.Zero.Recompute, show.ByteSize(x.Needs.Device.Total()), free, step, used, why}
}

// lines describes the limits.
func (l Limits) lines() []string {
	words := fmt.Sprintf("limits  %d ranks of %s", l.Ranks, show.BothUnits(l.Memory))
	if l.Host > 0 {
		words += fmt.Sprintf(", with %s of host memory for each", show.BothUnits(l.Host))
	}
	if l.Disk > 0 {
		words += fmt.Sprintf(" and %s of disk", show.BothUnits(l.Disk))
	}
	on := fmt.Sprintf("on      %s: %s", l.hardware().Name, l.hardware().Summary())
	if l.Hardware == nil {
		on += ": only ratios of times are meaningful"
	}
	return []string{words, on}
}

// binds describes the largest use of memory in a choice that does not fit.
func (c *Choice) binds() string {
	what, bytes := c.binding(useTitle)
	return fmt.Sprintf("most is %s, %s", what, show.ByteSize(bytes))
}

// spends describes how a step spends its time.
func (c *Choice) spends() string {
	f := c.Simulated
	if f == nil {
		return "too many tasks to simulate"
	}
	words := []string{show.DecimalSize(f.Sent) + " sent"}
	if f.Again > 0 {
		words = append(words, fmt.Sprintf("%.0f %% recomputed", 100*f.Again/f.Flops))
	}
	if f.Bubble > 0 {
		words = append(words, fmt.Sprintf("%.0f %% idle", 100*f.Bubble))
	}
	if f.Exposed > 0.005*f.Seconds {
		words = append(words, fmt.Sprintf("%.0f %% waiting", 100*f.Exposed/f.Seconds))
	}
	if f.Offload > 0 {
		words = append(words, fmt.Sprintf("%.0f %% offloading, %s of host memory", 100*f.Offload/f.Seconds, show.ByteSize(c.Needs.Host.Total())))
	}
	if c.least > 0 {
		words = append(words, c.saves())
	}
	if c.Needs.Disk > 0 {
		words = append(words, show.ByteSize(c.Needs.Disk)+" of disk")
	}
	return strings.Join(words, ", ")
}

// kinds describes the parts of a step's time.
var kinds = [...]string{"computing", "waiting for the pipeline to fill and drain", "waiting for communication", "updating offloaded state"}

// spent returns the simulated seconds of each kind, zero without a simulation.
func (c *Choice) spent() (seconds [len(kinds)]float64) {
	if f := c.Simulated; f != nil {
		seconds = [...]float64{f.Compute, f.Bubble * f.Seconds, f.Exposed, f.Offload}
	}
	return seconds
}

// words describes the mesh and the stage of a choice.
func (c *Choice) words() string {
	words := fmt.Sprintf("%s at stage %d", spec.Mesh(c.Config).Dimensions(), c.Config.Zero.Stage)
	if c.Config.Zero.Recompute != "none" {
		words += " with blocks recomputed"
	}
	return words
}

// why explains in a sentence why the first choice is the best: the time it saves compared with the
// job as set or, if that does not fit, with the next slower choice.
func (f *Settings) why() string {
	first, than, as := f.Fits[0], f.Job, "the job's own settings"
	slower := func(c *Choice) bool { return c.Seconds() > first.Seconds()*tie }
	if !than.Fits() || !slower(than) {
		i := slices.IndexFunc(f.Fits, slower)
		if i < 0 || f.Limits.Hardware == nil {
			return ""
		}
		than, as = f.Fits[i], f.Fits[i].words()
	}
	most, saves := 0, 0.0
	mine, theirs := first.spent(), than.spent()
	for i := range kinds {
		if s := theirs[i] - mine[i]; s > saves {
			most, saves = i, s
		}
	}
	if saves == 0 {
		return ""
	}
	return fmt.Sprintf("It is the fastest that fits: a step spends %s less %s\nthan with %s.\n", show.Seconds(saves), kinds[most], as)
}

// advice returns the recommendation below the table.
func (f *Settings) advice() string {
	tried := fmt.Sprintf("%s settings tried.\n", show.Grouped(int64(f.Tried)))
	if len(f.Fits) == 0 {
		return tried + f.withHost() + "Nothing fits; want more ranks, more memory per rank, a smaller model or shorter sequences.\n"
	}
	line := "Your job has the fastest setting already.\n"
	if sets := f.Fits[0].Sets; len(sets) > 0 {
		line = "The fastest: --set " + strings.Join(sets, " --set ") + "\n"
		if f.Command != nil {
			line = "The fastest: " + f.Command(sets) + "\n"
		}
	}
	if f.Job.Fits() && len(f.Fits[0].Sets) > 0 && f.Job.Seconds() < f.Fits[0].Seconds()*tie {
		line = "No setting is faster than your job's.\n"
	}
	switch n := f.ties(); {
	case n == 1:
		line += "Another one is equally fast, within half a percent.\n"
	case n > 1:
		line += fmt.Sprintf("%d others are equally fast, within half a percent.\n", n)
	}
	if f.hosted() {
		line += "Nothing fits without offloading to host memory.\n"
	}
	return tried + line + f.why()
}

// hosted reports whether everything that fits is offloaded at least in part.
func (f *Settings) hosted() bool {
	return !slices.ContainsFunc(f.Fits, func(c *Choice) bool { return !c.Config.Zero.Offload.Any() })
}

// withHost returns a line on the host memory that would make something fit. It is empty if host
// memory was given or would not help.
func (f *Settings) withHost() string {
	l, c := f.Limits, f.Job.Config
	l.Host = math.MaxInt64 / 2
	if f.Limits.Host > 0 || l.Hardware != nil && l.Hardware.Serves(setup.Planned(c), true, false) != nil {
		return ""
	}
	s := newSearch(c, l).quick
	x, err := s.measure(s.job)
	if err == nil {
		x = s.descend(x)
	}
	if err == nil && x.Fits() {
		x, err = s.measure(withRatio(x.Config, s.leastPart(x.Config)))
	}
	if err != nil || !x.Fits() {
		return ""
	}
	need := x.Needs.Host.Total()
	ranks := int64(min(8, l.Ranks)) // per machine, as an example
	return fmt.Sprintf("It fits with %s of host memory for each rank, for example with --host-memory %dGiB for a machine of %d.\n",
		show.ByteSize(need), (ranks*need+1<<30-1)>>30, ranks)
}

// ties returns the number of other choices that are as fast as the first.
func (f *Settings) ties() (n int) {
	for _, x := range f.Fits[1:] {
		if x.Seconds() < f.Fits[0].Seconds()*tie {
			n++
		}
	}
	return n
}

// MarshalJSON encodes the choice with derived values.
func (c *Choice) MarshalJSON() ([]byte, error) {
	low, high := c.Free()
	binding, _ := c.binding(device.Use.String)
	by, x, mesh := map[string]int64{}, c.Config, spec.Mesh(c.Config)
	for use, n := range c.Needs.Device {
		by[device.Use(use).String()] = n
	}
	p := pipelineOf(x)
	return json.Marshal(struct {
		Fits       bool             `json:"fits"`
		Pipeline   int              `json:"pipeline"`
		Schedule   string           `json:"schedule,omitempty"`
		Virtual    int              `json:"virtual,omitempty"`
		Context    int              `json:"context"`
		Tensor     int              `json:"tensor"`
		Stage      int              `json:"stage"`
		Shard      int              `json:"shard"`
		Replicate  int              `json:"replicate"`
		MicroBatch int              `json:"micro_batch"`
		Accumulate int              `json:"accumulate"`
		Recompute  string           `json:"recompute"`
		Prefetch   int              `json:"prefetch"`
		LossChunk  int              `json:"loss_chunk"`
		MLPChunk   int              `json:"mlp_chunk"`
		Optimizer  string           `json:"offload_optimizer"`
		Params     string           `json:"offload_parameters"`
		Away       string           `json:"offload_activations"`
		Ratio      float64          `json:"offload_ratio"`
		Set        []string         `json:"set"`
		Allocated  int64            `json:"allocated"`
		Categories map[string]int64 `json:"categories"`
		Host       int64            `json:"host"`
		Disk       int64            `json:"disk"`
		FreeLow    int64            `json:"free_low"`
		FreeHigh   int64            `json:"free_high"`
		Binding    string           `json:"binding"`
		Simulated  *Step            `json:"simulated,omitempty"`
	}{
		c.Fits(), x.Parallel.Pipeline, p.Schedule, p.Virtual, x.Parallel.Context, x.Parallel.Tensor, x.Zero.Stage, mesh.Shard, mesh.Replicate, x.Train.MicroBatch, x.Train.Accumulate, x.Zero.Recompute, x.Zero.Prefetch,
		x.Train.LossChunk, x.Train.MLPChunk, x.Zero.Offload.Optimizer, x.Zero.Offload.Parameters, x.Zero.Offload.Activations, x.Zero.Offload.Ratio, c.Sets, c.Needs.Device.Total(), by,
		c.Needs.Host.Total(), c.Needs.Disk, low, high, binding, c.Simulated,
	})
}

// MarshalJSON encodes the result.
func (f *Settings) MarshalJSON() ([]byte, error) {
	command := ""
	if len(f.Fits) > 0 && f.Command != nil {
		command = f.Command(f.Fits[0].Sets)
	}
	return json.Marshal(struct {
		Limits Limits    `json:"limits"`
		Model  string    `json:"model"`
		Tried  int       `json:"tried"`
		Job    *Choice   `json:"job"`
		Fits   []*Choice `json:"fits"`
		Others []*Choice `json:"misfits"`

		Command string `json:"command,omitempty"` // of the fastest
	}{f.Limits, title(f.Job.Config), f.Tried, f.Job, f.Fits, f.Others, command})
}
