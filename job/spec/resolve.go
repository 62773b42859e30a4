package spec

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"zeroth/config"
	"zeroth/config/tree"
	"zeroth/data"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/nn"
)

// resolver derives the settings of a job that its file leaves open.
type resolver struct {
	*config.Reader
	Job       *Job
	draft     bool           // the job is planned, not run
	failed    error          // why a model could not be downloaded, if that is no mistake in the job
	was       *Before        // the checkpoint that the job resumes from; nil if none
	differs   []string       // differences between the job's model and the checkpoint's
	tokenizer data.Tokenizer // nil until resolved
}

// newResolver returns a resolver of a job file's nodes.
func newResolver(file string, root *tree.Node) *resolver {
	job := &Job{}
	r := config.NewReader(&job.Config, file, root)
	job.Document = r.Document
	return &resolver{Reader: r, Job: job}
}

// done returns the job, or all problems found.
func (r *resolver) done() (*Job, error) {
	if len(r.Problems) > 0 {
		r.Problems.Sort()
		return nil, r.Problems
	}
	r.Job.loaded = string(r.Job.YAML())
	return r.Job, nil
}

// resolve derives missing settings from other keys and rejects combinations that cannot work.
func (r *resolver) resolve() {
	r.fetchModels()
	r.resolveData()
	r.resolveModel()
	r.resolveDevice()
	r.resolveParallel()
	r.Unfit("zero")
	r.resolveBatch()
	r.resolvePipeline()
	r.resolveContext()
	r.resolveTensor()
	r.resolveMaster()
	r.resolveFaults()
	r.resolveSums()
	r.resolveTraining()
	r.resolveWeights()
	r.Unfit("schedule")
	r.resolveGroups()
	r.resolveExperts()
	r.Unfit("checkpoint")
	r.Unfit("report")
	r.resolveSample()
	r.checkCounts()
	r.Unused()
}

func (r *resolver) resolveData() {
	d := &r.Job.Data
	r.Unfit("data")
	if len(d.Text)+len(d.Tokens)+len(d.Documents) == 0 && !d.Program {
		r.noData()
	}
	if !r.Has("data.tokenizer") {
		d.Tokenizer = "bytes"
		if len(d.Tokens) > 0 {
			d.Tokenizer = "gpt2"
		}
		if d.Program {
			d.Tokenizer = "none"
		}
		if r.Has("data.vocab") {
			d.Tokenizer = "folder"
		}
	}
}

func (r *resolver) noData() {
	const advice = `want for example data: {text: ["docs/**/*.md"]} or data: {tokens: ["train.bin"]}`
	for key := range r.Bad {
		if section, _, _ := strings.Cut(key, "."); section == "data" {
			return // probably the data, misspelt
		}
	}
	if slices.ContainsFunc(r.Problems, func(p tree.Problem) bool { return strings.HasPrefix(p.Key, "data.") }) {
		return // it cannot be parsed
	}
	for _, key := range []string{"data.text", "data.tokens", "data.documents"} {
		if n := r.Given[key]; n != nil {
			r.Wrong(n.At, key, "the list is empty: there is nothing to train on", advice)
			return
		}
	}
	at := tree.Position{File: r.File}
	if p := r.Root.Find("data"); p != nil {
		at = p.At
	}
	r.Wrong(at, "data", "there is nothing to train on", advice)
}

func (r *resolver) resolveModel() {
	m := &r.Job.Model
	switch {
	case r.was != nil:
		r.resumeModel()
	case m.From != "":
		r.modelFrom()
	}
	r.resolveTokenizer()
	r.resolveNetwork()
}

// resolveNetwork derives the shape of a network that has no folder.
func (r *resolver) resolveNetwork() {
	m, makes := &r.Job.Model, r.vocab()
	switch {
	case m.Family == config.Program:
		r.resolveOwn()
	case r.was == nil && m.From == "":
		r.resolveShape(makes)
		r.Job.awaits = r.Job.env.Resumes && !slices.ContainsFunc(config.Shape(), r.Has)
	}
	if r.Job.unknown() {
		return
	}
	r.checkVocab(makes)
	if p := r.Job.Dropout; p != nil {
		m.Dropout = nn.Dropout{Embed: *p, Residual: *p}
	}
	m.Dropout.Attention = r.Job.AttentionDropout
	r.resolveTuning()
}

// vocab returns the number of tokens in the tokenizer, 0 if there is none or its files cannot be
// read. The latter is reported.
func (r *resolver) vocab() int {
	if Tokenizer(r.Job) == "" || r.Bad["data.vocab"] {
		return 0
	}
	t, err := data.NewTokenizer(Tokenizer(r.Job))
	if err != nil {
		r.Wrong(r.Job.Position("data.vocab"), "data.vocab", err.Error(), "want a folder with tokenizer.json, or vocab.json and merges.txt")
		return 0
	}
	r.tokenizer = t
	return t.Vocab()
}

// checkVocab compares the model's vocabulary with the tokenizer's. Token files may use fewer
// tokens than their tokenizer has.
func (r *resolver) checkVocab(makes int) {
	c := r.Job
	written := len(c.Data.Text)+len(c.Data.Documents) > 0
	if written && c.Model.Vocab < makes && r.tokenizer != nil && data.MinVocab(r.tokenizer) <= c.Model.Vocab {
		c.note("the tokenizer has %d tokens, but the model only the first %d; text with one of the others is refused", makes, c.Model.Vocab)
		return
	}
	if written && c.Model.Vocab < makes {
		r.Refuse(fmt.Sprintf("the model's vocabulary has %d tokens, but that of tokenizer %s has %d", c.Model.Vocab, c.Data.Tokenizer, makes),
			fmt.Sprintf("want a vocabulary of at least %d", makes), "model.from", "model.vocab", "data.tokenizer", "data.vocab")
	}
}

// resolveDevice resolves device auto: GPUs if available, else the CPU.
func (r *resolver) resolveDevice() {
	c := r.Job
	switch c.on = c.Device; {
	case c.on == "auto" && c.env.GPUs > 0:
		c.on = "cuda"
	case c.on == "auto":
		c.on = "cpu"
	}
	r.On = c.on
	if slow := c.Model.CapScores > 0 || c.Model.Head() > 128; c.on == "cuda" && slow && config.AttentionLevel(c.Parallel.Attention) == 0 {
		c.note("attention with soft-capped scores or heads wider than 128 runs on a GPU's ordinary cores, at a tenth to a fifth of the tensor cores' speed; " +
			"parallel.attention: mma runs it on tensor cores, in bf16 and fp16, by kernels that have not run on hardware yet")
	}
}

func (r *resolver) resolveParallel() {
	p, env := &r.Job.Parallel, r.Job.env
	r.boundMesh()
	copies := p.Models() * p.Replicate * p.Expert // ranks per shard of a shard group
	if !r.Has("parallel.ranks") {
		p.Ranks = 4
		if n := cmp.Or(len(p.GPUs), env.GPUs); r.Job.on == "cuda" && n > 0 {
			p.Ranks = n
		}
		if p.Shard > 0 && p.Shard*copies <= config.MostRanks {
			p.Ranks = p.Shard * copies
		}
		if env.Processes > 1 && p.Shard <= 0 || env.Ranks > 0 {
			p.Ranks = min(config.MostRanks, max(1, env.Processes)*max(1, env.Ranks))
		} else if copies > p.Replicate && p.Shard <= 0 && p.Ranks%copies != 0 && copies <= config.MostRanks {
			p.Ranks = copies
		}
	}
	if n := env.Processes; n > 1 && p.Ranks%n != 0 {
		r.Refuse(fmt.Sprintf("%d ranks cannot be split evenly over %d processes", p.Ranks, n),
			wantNear("ranks", p.Ranks, func(ranks int) bool { return ranks%n == 0 })+", or leave it out: then each process has one", "parallel.ranks")
	}
	if env.Processes > 1 && p.Transport == "local" {
		r.Refuse("local works only within one process", "want auto, unix or tcp", "parallel.transport")
	}
	r.resolveStage()
	r.Unfit("parallel")
	keys := []string{"parallel.shard", "parallel.replicate", "parallel.ranks"}
	product, by, left := fmt.Sprintf("shard %d × replicate %d", p.Shard, p.Replicate), "replicate", p.Ranks/p.Models()/p.Expert
	var models []string
	for _, d := range []struct {
		name string
		n    int
	}{{"pipeline", p.Pipeline}, {"expert", p.Expert}, {"context", p.Context}, {"tensor", p.Tensor}} {
		if d.n > 1 {
			models, keys = append(models, fmt.Sprintf("%s %d", d.name, d.n)), append(keys, "parallel."+d.name)
			by += " / " + d.name
		}
	}
	divided := fmt.Sprintf("%d ranks", left)
	if len(models) > 0 {
		product += " × " + strings.Join(models, " × ")
		divided = fmt.Sprintf("%d ranks / (%s)", p.Ranks, strings.Join(models, " × "))
	}
	switch {
	case r.unevenExperts():
	case p.Shard > 0 && p.Shard*copies != p.Ranks:
		r.Refuse(fmt.Sprintf("%s = %d, but there are %d ranks", product, p.Shard*copies, p.Ranks),
			fmt.Sprintf("want ranks: %d, or shard: -1 for ranks / %s", p.Shard*copies, by), keys...)
	case p.Shard < 0 && p.Ranks%(p.Models()*p.Expert) != 0:
		r.Refuse(fmt.Sprintf("%d ranks cannot be divided by %s", p.Ranks, strings.Join(models, " × ")),
			wantNear("ranks", p.Ranks, func(n int) bool { return n%(p.Models()*p.Expert) == 0 }), keys[2:]...)
	case p.Shard < 0 && left%p.Replicate != 0:
		r.Refuse(fmt.Sprintf("%s cannot be divided into %d equal replicas", divided, p.Replicate),
			wantNear("replicate", p.Replicate, func(n int) bool { return left%n == 0 }), keys[1:]...)
	case p.Shard < 0:
		p.Shard = p.Ranks / copies
	}
	p.Shard = max(1, p.Shard) // later checks use it, even after a refusal
}

// resolveStage sets the stage that needs least memory for adapters on one rank: it shards nothing, so slots for
// whole units would only be copies of frozen parameters.
func (r *resolver) resolveStage() {
	c := r.Job
	if t := c.Train.LoRA; !r.Has("zero.stage") && c.Parallel.Ranks == 1 && (t.Rank > 0 || t.From != "") && c.Zero.Offload.Parameters == "none" {
		c.Zero.Stage = 0
	}
}

// boundMesh refuses a mesh with more ranks than a job can have, and sets its dimensions to 1 for later checks.
func (r *resolver) boundMesh() {
	p := &r.Job.Parallel
	if float64(p.Models())*float64(p.Expert)*float64(p.Replicate)*float64(max(1, p.Shard)) <= config.MostRanks {
		return
	}
	keys := []string{"parallel.context", "parallel.tensor", "parallel.expert", "parallel.pipeline", "parallel.replicate", "parallel.shard"}
	r.Refuse(fmt.Sprintf("pipeline %d × shard %d × replicate %d × expert %d × context %d × tensor %d is more than %d ranks",
		p.Pipeline, max(1, p.Shard), p.Replicate, p.Expert, p.Context, p.Tensor, config.MostRanks), "want smaller ones", keys...)
	for _, k := range keys {
		r.Bad[k] = true
	}
	p.Pipeline, p.Shard, p.Replicate, p.Expert, p.Context, p.Tensor = 1, 1, 1, 1, 1, 1
}

// resolveMaster rejects settings that do not work with a master.
func (r *resolver) resolveMaster() {
	c := r.Job
	p := &c.Parallel
	if !p.Master {
		return
	}
	for _, x := range []struct {
		key           string
		size          int // more than 1 is refused
		wrong, better string
	}{
		{"zero.stage", 1 + c.Zero.Stage, fmt.Sprintf("stage %d shards the state, but only the master stores it", c.Zero.Stage), "stage: 0"},
		{"parallel.replicate", min(c.Zero.Stage, 1) * p.Replicate, "replicas store and update state, but only the master does", "replicate: 1"},
		{"parallel.pipeline", p.Pipeline, "pipeline stages have only some layers, but the master has the whole model", "pipeline: 1"},
		{"parallel.tensor", p.Tensor, "ranks have parts of matrices, but the master has the whole model", "tensor: 1"},
		{"parallel.context", p.Context, "ranks have parts of sequences, over which the master does not sum", "context: 1"},
	} {
		if x.size > 1 {
			r.Refuse(x.wrong, fmt.Sprintf("want %s, or parallel.master: false", x.better), x.key)
		}
	}
	if p.Collective == "nccl" {
		r.Refuse("a master sums by itself, not with NCCL", "want auto, or parallel.master: false", "parallel.collective")
	}
}

// resolveBatch derives batch, micro_batch and accumulate so that batch = micro_batch × accumulate
// × data ranks, where some replicas may have a micro-batch per rank less.
func (r *resolver) resolveBatch() {
	t, ranks, called := &r.Job.Train, max(1, r.Job.Parallel.DataRanks()), r.Job.Parallel.DataName()
	batch, micro, accumulate := r.Has("train.batch"), r.Has("train.micro_batch"), r.Has("train.accumulate")
	switch product := t.MicroBatch * t.Accumulate * ranks; {
	case !batch:
		t.Batch = product
	case micro && accumulate:
		if s := Share(r.Job); product != t.Batch && !(s.Valid() && s.Most() == t.Accumulate) {
			r.Refuse(fmt.Sprintf("micro_batch %d × accumulate %d × %s %d = %d, but batch is %d", t.MicroBatch, t.Accumulate, called, ranks, product, t.Batch),
				fmt.Sprintf("want batch: %d, or leave one of the three out (--set train.accumulate=null)", product), batchKeys...)
		}
	case micro:
		t.Accumulate = r.share("micro_batch", t.MicroBatch, "accumulate")
	case accumulate:
		t.MicroBatch = r.share("accumulate", t.Accumulate, "micro_batch")
	default:
		r.divideBatch()
	}
}

// divideBatch chooses the micro-batch for which the rank with most samples has the fewest.
func (r *resolver) divideBatch() {
	t, s, least := &r.Job.Train, Share(r.Job), 0
	for ; s.MicroBatch > 0; s.MicroBatch-- {
		if s.Valid() && (least == 0 || s.Most()*s.MicroBatch < least) {
			t.MicroBatch, t.Accumulate, least = s.MicroBatch, s.Most(), s.Most()*s.MicroBatch
		}
	}
	if least == 0 {
		r.share("", 1, "micro_batch")
	}
}

var batchKeys = []string{"train.batch", "train.micro_batch", "train.accumulate", "parallel.ranks", "parallel.pipeline", "parallel.context", "parallel.tensor"}

// share returns batch / (known × ranks), the value of the unknown key.
func (r *resolver) share(name string, known int, unknown string) int {
	t, ranks := &r.Job.Train, max(1, r.Job.Parallel.DataRanks())
	unit, equation := known*ranks, fmt.Sprintf("%s ? × %s %d", unknown, r.Job.Parallel.DataName(), ranks)
	if name != "" {
		equation = fmt.Sprintf("%s %d × %s", name, known, equation)
	}
	if t.Batch%unit == 0 {
		return t.Batch / unit
	}
	if s := Share(r.Job); unknown == "accumulate" && s.Valid() {
		return s.Most()
	}
	below := t.Batch / unit * unit
	want := fmt.Sprintf("want batch %d", below+unit)
	if below > 0 {
		want = fmt.Sprintf("want batch %d or %d", below, below+unit)
	}
	r.Refuse(fmt.Sprintf("batch %d = %s has no whole solution: %d is not a multiple of %d", t.Batch, equation, t.Batch, unit), want, batchKeys...)
	return 1
}

// leastChunk is the default of train.loss_chunk on CPUs. GPUs use longer chunks, because each
// chunk reads and writes the output layer's float32 gradient. If a chunk has as many tokens as the
// model is wide, this costs as much as the passes over the logits.
const leastChunk = 1024

func (r *resolver) resolveTraining() {
	c, t := r.Job, &r.Job.Train
	if r.Has("train.epochs") && r.Has("train.steps") {
		r.Refuse("steps and epochs are both given", "want one of the two (--set train.steps=null removes it)", "train.epochs", "train.steps")
	}
	r.resolveEvaluation()
	r.Unfit("train")
	if !r.Has("train.loss_chunk") {
		t.LossChunk = leastChunk
		if c.on == "cuda" {
			t.LossChunk = min(4*leastChunk, max(leastChunk, 4*c.Model.Width))
		}
	}
	if r.Has("train.epochs") {
		t.Steps = 0
		return // Settled derives what depends on steps
	}
	c.resolveSteps()
}

// resolveEvaluation rejects evaluations without data and metrics that they do not have.
func (r *resolver) resolveEvaluation() {
	c, t := r.Job, &r.Job.Train
	if !r.Has("train.eval_every") {
		t.EvalEvery = 0
		if c.validates() {
			t.EvalEvery = 50
		}
	}
	if !c.validates() && t.EvalEvery > 0 {
		lacks, want := "data.validation is 0", "a data.validation such as 0.01"
		if c.Data.Program {
			lacks, want = "job.Options.Validation is nil", "samples in job.Options.Validation"
		}
		r.Refuse(fmt.Sprintf("eval_every is %s, but %s: there is nothing to evaluate", c.Text("train.eval_every"), lacks), "want eval_every: 0, or "+want, "train.eval_every", "data.validation")
	}
	if !c.measures(t.EarlyStop.Metric) {
		r.Refuse(t.EarlyStop.Metric+" is not a metric of the job's evaluations", "want "+show.Either(c.measured()), "train.early_stop.metric")
	}
}

// resolveSteps derives the settings that depend on the number of steps.
func (c *Job) resolveSteps() {
	t, s := &c.Train, &c.Schedule
	for steps, part := range map[*int]float64{&s.Warmup: s.Part, &t.EvalEvery: t.EvalPart, &c.Checkpoint.Every: c.Checkpoint.Part} {
		if part > 0 {
			*steps = int(math.Ceil(float64(t.Steps) * part)) // as transformers does
		}
	}
	if !c.Sets("schedule.warmup") {
		s.Warmup = min(20, t.Steps)
	}
	if s.Type == "wsd" && !c.Sets("schedule.decay") {
		s.Decay = max(1, t.Steps/10)
	}
}

// Settled returns the job with its epochs converted to steps, once the number of sequences in the
// data is known. It counts the samples that earlier steps have read. Sequences of the next epoch
// complete the last step. A job that sets steps is returned unchanged.
func (c *Job) Settled(sequences int64, step int, samples int64) (*Job, error) {
	if c.Train.Epochs == 0 {
		return c, nil
	}
	x := c.Copy()
	t := &x.Train
	const rounding = 1 - 1e-12 // 0.1 epochs of 30 sequences are 3, not the next larger float64
	left := math.Ceil(t.Epochs*float64(sequences)*rounding) - float64(samples)
	steps := float64(step) + max(0, math.Ceil(left/float64(t.Batch)))
	if steps > config.MostSteps {
		return nil, tree.Problems{ProblemOf(c, "train.epochs", fmt.Sprintf("%s epochs of %d sequences are %.3g steps, more than %d", config.FormatReal(t.Epochs), sequences, steps, config.MostSteps), "want fewer")}
	}
	t.Steps = int(steps)
	x.resolveSteps()
	if wrong, _ := Countable(x); wrong != "" {
		return nil, tree.Problems{ProblemOf(c, "train.epochs", wrong, "want fewer")}
	}
	return x, nil
}

func (r *resolver) resolveSample() {
	s := &r.Job.Sample
	if s.Prompt == "" {
		s.Prompt = "\n"
	}
	r.Unfit("sample")
	r.checkTokenizer()
	r.checkPrompt()
}

// wantNear returns advice on a number: the nearest below and above n that ok accepts, as far as they exist.
func wantNear(what string, n int, ok func(int) bool) string {
	var near []string
	for i := n - 1; i >= 1; i-- {
		if ok(i) {
			near = append(near, strconv.Itoa(i))
			break
		}
	}
	for i := n + 1; i <= hf.Most; i++ {
		if ok(i) {
			near = append(near, strconv.Itoa(i))
			break
		}
	}
	if len(near) == 0 {
		return "want another " + what
	}
	return "want " + what + " " + show.Either(near)
}
