package config

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"zeroth/data"
	"zeroth/job/hf"
	"zeroth/job/show"
	"zeroth/nn"
)

// idle returns why the job does not use the key, "" if it does, and the key that decides it. An
// unused key is rejected if given, and not written.
func (c *Config) idle(f field) (why, because string) {
	if f.shape && c.Model.From != "" {
		return "model.from brings its own config.json", "model.from"
	}
	if f.shape && c.Model.Family == program && f.key != "model.family" {
		return "the program's network has its own shape", "model.family"
	}
	for _, o := range f.only {
		if !o.met {
			return o.why, o.because
		}
	}
	if rule := c.Optimizer.Type; f.types != nil && !slices.Contains(f.types, rule) {
		return rule + " has no " + strings.TrimPrefix(f.key, "optimizer."), "optimizer.type"
	}
	return "", ""
}

// unfit rejects the conflicts of a section's keys.
func (r *reader) unfit(section string) {
	for _, f := range r.Config.fields() {
		if f.not.is && strings.HasPrefix(f.key, section+".") {
			r.refuse(f.not.wrong, f.not.right, append([]string{f.key}, f.not.with...)...)
		}
	}
}

// resolve derives missing settings from other keys and rejects combinations that cannot work.
func (r *reader) resolve() {
	r.fetchModels()
	r.resolveData()
	r.resolveModel()
	r.resolveDevice()
	r.resolveParallel()
	r.unfit("zero")
	r.resolveBatch()
	r.resolvePipeline()
	r.resolveContext()
	r.resolveTensor()
	r.resolveMaster()
	r.resolveTraining()
	r.resolveWeights()
	r.unfit("schedule")
	r.resolveGroups()
	r.unfit("checkpoint")
	r.unfit("report")
	r.resolveSample()
	if wrong, keys := Countable(r.Config); wrong != "" {
		r.refuse(wrong, "want less", keys...)
	}
	for _, f := range r.Config.fields() {
		if why, because := r.Config.idle(f); why != "" && r.has(f.key) && (r.has(because) || !r.bad[because]) {
			r.wrong(r.given[f.key].at, f.key, "not used: "+why, fmt.Sprintf("remove it (--set %s=null removes it)", f.key))
		}
	}
}

// wrongServer describes why a text is not the address of an MLflow server; "" if it is.
func wrongServer(text string) string {
	switch u, err := url.Parse(text); {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return "it is not the address of a server"
	case u.User != nil:
		return "it contains a password, which would be written to job.yaml"
	}
	return ""
}

func (r *reader) resolveData() {
	d := &r.Config.Data
	r.unfit("data")
	if len(d.Text)+len(d.Tokens)+len(d.Documents) == 0 && !d.Program {
		r.noData()
	}
	if !r.has("data.tokenizer") {
		d.Tokenizer = "bytes"
		if len(d.Tokens) > 0 {
			d.Tokenizer = "gpt2"
		}
		if d.Program {
			d.Tokenizer = "none"
		}
		if r.has("data.vocab") {
			d.Tokenizer = "folder"
		}
	}
}

func (r *reader) noData() {
	const advice = `want for example data: {text: ["docs/**/*.md"]} or data: {tokens: ["train.bin"]}`
	for key := range r.bad {
		if section, _, _ := strings.Cut(key, "."); section == "data" {
			return // probably the data, misspelt
		}
	}
	for _, key := range []string{"data.text", "data.tokens", "data.documents"} {
		if n := r.given[key]; n != nil {
			r.wrong(n.at, key, "the list is empty: there is nothing to train on", advice)
			return
		}
	}
	at := position{file: r.file}
	if p := r.root.find("data"); p != nil {
		at = p.at
	}
	r.wrong(at, "data", "there is nothing to train on", advice)
}

func (r *reader) resolveModel() {
	m := &r.Config.Model
	switch {
	case r.was != nil:
		r.resumeModel()
	case m.From != "":
		r.modelFrom()
	}
	r.resolveTokenizer()
	makes := r.vocab()
	switch {
	case m.Family == program:
		r.resolveOwn()
	case r.was == nil && m.From == "":
		r.resolveShape(makes)
		r.Config.awaits = r.Config.env.Resumes && !slices.ContainsFunc(Shape(), r.has)
	}
	if r.Config.unknown() {
		return
	}
	r.checkVocab(makes)
	if p := r.Config.Dropout; p != nil {
		m.Dropout = nn.Dropout{Embed: *p, Residual: *p}
	}
	m.Dropout.Attention = r.Config.AttentionDropout
	r.resolveTuning()
}

// vocab returns the number of tokens in the tokenizer, 0 if there is none or its files cannot be
// read. The latter is reported.
func (r *reader) vocab() int {
	if Tokenizer(r.Config) == "" || r.bad["data.vocab"] {
		return 0
	}
	t, err := data.NewTokenizer(Tokenizer(r.Config))
	if err != nil {
		r.wrong(r.Config.Position("data.vocab"), "data.vocab", err.Error(), "want a folder with tokenizer.json, or vocab.json and merges.txt")
		return 0
	}
	r.tokenizer = t
	return t.Vocab()
}

// checkVocab compares the model's vocabulary with the tokenizer's. Token files may use fewer
// tokens than their tokenizer has.
func (r *reader) checkVocab(makes int) {
	c := r.Config
	written := len(c.Data.Text)+len(c.Data.Documents) > 0
	if written && c.Model.Vocab < makes && r.tokenizer != nil && data.MinVocab(r.tokenizer) <= c.Model.Vocab {
		c.note("the tokenizer has %d tokens, but the model only the first %d; text with one of the others is refused", makes, c.Model.Vocab)
		return
	}
	if written && c.Model.Vocab < makes {
		r.refuse(fmt.Sprintf("the model's vocabulary has %d tokens, but that of tokenizer %s has %d", c.Model.Vocab, c.Data.Tokenizer, makes),
			fmt.Sprintf("want a vocabulary of at least %d", makes), "model.from", "model.vocab", "data.tokenizer", "data.vocab")
	}
}

// resolveDevice resolves device auto: GPUs if available, else the CPU.
func (r *reader) resolveDevice() {
	c := r.Config
	if c.on = c.Device; c.on == "auto" {
		c.on = "cpu"
		if c.env.GPUs > 0 {
			c.on = "cuda"
		}
	}
	if c.on == "cuda" && c.Model.CapScores > 0 {
		c.note("attention with soft-capped scores runs on a GPU's ordinary cores, at a tenth to a fifth of the tensor cores' speed")
	}
}

func (r *reader) resolveParallel() {
	p, env := &r.Config.Parallel, r.Config.env
	r.boundMesh()
	copies := p.models() * p.Replicate // ranks per shard of a shard group
	if !r.has("parallel.ranks") {
		p.Ranks = 4
		if n := cmp.Or(len(p.GPUs), env.GPUs); r.Config.on == "cuda" && n > 0 {
			p.Ranks = n
		}
		if p.Shard > 0 && p.Shard*copies <= MostRanks {
			p.Ranks = p.Shard * copies
		}
		if env.Processes > 1 && p.Shard <= 0 || env.Ranks > 0 {
			p.Ranks = min(MostRanks, max(1, env.Processes)*max(1, env.Ranks))
		} else if p.models() > 1 && p.Shard <= 0 && p.Ranks%copies != 0 && copies <= MostRanks {
			p.Ranks = copies
		}
	}
	if n := env.Processes; n > 1 && p.Ranks%n != 0 {
		r.refuse(fmt.Sprintf("%d ranks cannot be split evenly over %d processes", p.Ranks, n),
			wantNear("ranks", p.Ranks, func(ranks int) bool { return ranks%n == 0 })+", or leave it out: then each process has one", "parallel.ranks")
	}
	r.unfit("parallel")
	keys := []string{"parallel.shard", "parallel.replicate", "parallel.ranks"}
	product, by, left := fmt.Sprintf("shard %d × replicate %d", p.Shard, p.Replicate), "replicate", p.Ranks/p.models()
	var models []string
	for _, d := range []struct {
		name string
		n    int
	}{{"pipeline", p.Pipeline}, {"context", p.Context}, {"tensor", p.Tensor}} {
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
	case p.Shard > 0 && p.Shard*copies != p.Ranks:
		r.refuse(fmt.Sprintf("%s = %d, but there are %d ranks", product, p.Shard*copies, p.Ranks),
			fmt.Sprintf("want ranks: %d, or shard: -1 for ranks / %s", p.Shard*copies, by), keys...)
	case p.Shard < 0 && p.Ranks%p.models() != 0:
		r.refuse(fmt.Sprintf("%d ranks cannot be divided by %s", p.Ranks, strings.Join(models, " × ")),
			wantNear("ranks", p.Ranks, func(n int) bool { return n%p.models() == 0 }), keys[2:]...)
	case p.Shard < 0 && left%p.Replicate != 0:
		r.refuse(fmt.Sprintf("%s cannot be divided into %d equal replicas", divided, p.Replicate),
			wantNear("replicate", p.Replicate, func(n int) bool { return left%n == 0 }), keys[1:]...)
	case p.Shard < 0:
		p.Shard = p.Ranks / copies
	}
	p.Shard = max(1, p.Shard) // later checks use it, even after a refusal
}

// boundMesh refuses a mesh with more ranks than a job can have, and sets its dimensions to 1 for later checks.
func (r *reader) boundMesh() {
	p := &r.Config.Parallel
	if float64(p.models())*float64(p.Replicate)*float64(max(1, p.Shard)) <= MostRanks {
		return
	}
	keys := []string{"parallel.context", "parallel.tensor", "parallel.pipeline", "parallel.replicate", "parallel.shard"}
	r.refuse(fmt.Sprintf("pipeline %d × shard %d × replicate %d × context %d × tensor %d is more than %d ranks",
		p.Pipeline, max(1, p.Shard), p.Replicate, p.Context, p.Tensor, MostRanks), "want smaller ones", keys...)
	for _, k := range keys {
		r.bad[k] = true
	}
	p.Pipeline, p.Shard, p.Replicate, p.Context, p.Tensor = 1, 1, 1, 1, 1
}

// resolveMaster rejects settings that do not work with a master.
func (r *reader) resolveMaster() {
	c := r.Config
	p := &c.Parallel
	if !p.Master {
		return
	}
	for _, x := range []struct {
		key           string
		is            bool
		wrong, better string
	}{
		{"zero.stage", c.Zero.Stage > 0, fmt.Sprintf("stage %d shards the state, but only the master stores it", c.Zero.Stage), "stage: 0"},
		{"parallel.replicate", c.Zero.Stage > 0 && p.Replicate > 1, "replicas store and update state, but only the master does", "replicate: 1"},
		{"parallel.pipeline", p.Pipeline > 1, "pipeline stages have only some layers, but the master has the whole model", "pipeline: 1"},
		{"parallel.tensor", p.Tensor > 1, "ranks have parts of matrices, but the master has the whole model", "tensor: 1"},
		{"parallel.context", p.Context > 1, "ranks have parts of sequences, over which the master does not sum", "context: 1"},
		{"parallel.collective", p.Collective == "nccl", "a master sums by itself, not with NCCL", "auto"},
	} {
		if x.is {
			r.refuse(x.wrong, fmt.Sprintf("want %s, or parallel.master: false", x.better), x.key)
		}
	}
}

// dataRanks returns the name for the number of ranks with their own data.
func dataRanks(p *Parallel) string { return pick(p.models() > 1, "shard × replicate", "ranks") }

// resolveBatch derives batch, micro_batch and accumulate so that batch = micro_batch × accumulate
// × data ranks.
func (r *reader) resolveBatch() {
	t, ranks, called := &r.Config.Train, max(1, r.Config.Parallel.DataRanks()), dataRanks(&r.Config.Parallel)
	batch, micro, accumulate := r.has("train.batch"), r.has("train.micro_batch"), r.has("train.accumulate")
	switch product := t.MicroBatch * t.Accumulate * ranks; {
	case !batch:
		t.Batch = product
	case micro && accumulate:
		if product != t.Batch {
			r.refuse(fmt.Sprintf("micro_batch %d × accumulate %d × %s %d = %d, but batch is %d", t.MicroBatch, t.Accumulate, called, ranks, product, t.Batch),
				fmt.Sprintf("want batch: %d, or leave one of the three out (--set train.accumulate=null)", product), batchKeys...)
		}
	case micro:
		t.Accumulate = r.share("micro_batch", t.MicroBatch, "accumulate")
	case accumulate:
		t.MicroBatch = r.share("accumulate", t.Accumulate, "micro_batch")
	default:
		each := r.share("", 1, "micro_batch")
		for t.MicroBatch > each || each%t.MicroBatch != 0 {
			t.MicroBatch--
		}
		t.Accumulate = each / t.MicroBatch
	}
}

var batchKeys = []string{"train.batch", "train.micro_batch", "train.accumulate", "parallel.ranks", "parallel.pipeline", "parallel.context", "parallel.tensor"}

// share returns batch / (known × ranks), the value of the unknown key.
func (r *reader) share(name string, known int, unknown string) int {
	t, ranks := &r.Config.Train, max(1, r.Config.Parallel.DataRanks())
	unit, equation := known*ranks, fmt.Sprintf("%s ? × %s %d", unknown, dataRanks(&r.Config.Parallel), ranks)
	if name != "" {
		equation = fmt.Sprintf("%s %d × %s", name, known, equation)
	}
	if t.Batch%unit == 0 {
		return t.Batch / unit
	}
	below := t.Batch / unit * unit
	want := fmt.Sprintf("want batch %d", below+unit)
	if below > 0 {
		want = fmt.Sprintf("want batch %d or %d", below, below+unit)
	}
	r.refuse(fmt.Sprintf("batch %d = %s has no whole solution: %d is not a multiple of %d", t.Batch, equation, t.Batch, unit), want, batchKeys...)
	return 1
}

// leastChunk is the default of train.loss_chunk on CPUs. GPUs use longer chunks, because each
// chunk reads and writes the output layer's float32 gradient. If a chunk has as many tokens as the
// model is wide, this costs as much as the passes over the logits.
const leastChunk = 1024

func (r *reader) resolveTraining() {
	t := &r.Config.Train
	r.unfit("train")
	if !r.has("train.loss_chunk") {
		t.LossChunk = leastChunk
		if r.Config.on == "cuda" {
			t.LossChunk = min(4*leastChunk, max(leastChunk, 4*r.Config.Model.Width))
		}
	}
	if r.has("train.epochs") {
		t.Steps = 0
		return // Settled derives what depends on steps
	}
	r.Config.resolveSteps()
}

// resolveSteps derives the settings that depend on the number of steps.
func (c *Config) resolveSteps() {
	t, s := &c.Train, &c.Schedule
	if !c.setsKey("schedule.warmup") {
		s.Warmup = min(20, t.Steps)
	}
	if s.Type == "wsd" && !c.setsKey("schedule.decay") {
		s.Decay = max(1, t.Steps/10)
	}
}

// Settled returns the job with its epochs converted to steps, once the number of sequences in the
// data is known. It counts the samples that earlier steps have read. Sequences of the next epoch
// complete the last step. A job that sets steps is returned unchanged.
func (c *Config) Settled(sequences int64, step int, samples int64) (*Config, error) {
	if c.Train.Epochs == 0 {
		return c, nil
	}
	x := c.Copy()
	t := &x.Train
	const rounding = 1 - 1e-12 // 0.1 of 30 is 3
	left := math.Ceil(t.Epochs*float64(sequences)*rounding) - float64(samples)
	steps := float64(step) + max(0, math.Ceil(left/float64(t.Batch)))
	if steps > mostSteps {
		return nil, Problems{ProblemOf(c, "train.epochs", fmt.Sprintf("%s epochs of %d sequences are %.3g steps, more than %d", formatReal(t.Epochs), sequences, steps, mostSteps), "want fewer")}
	}
	t.Steps = int(steps)
	x.resolveSteps()
	if wrong, _ := Countable(x); wrong != "" {
		return nil, Problems{ProblemOf(c, "train.epochs", wrong, "want fewer")}
	}
	return x, nil
}

// tenth returns x/10 in decimal: a tenth of 6e-4 is exactly 6e-5.
func tenth(x float64) float64 {
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', -1, 64), "e")
	e, _ := strconv.Atoi(exponent)
	y, _ := strconv.ParseFloat(fmt.Sprintf("%se%d", mantissa, e-1), 64)
	return y
}

func (r *reader) resolveSample() {
	s := &r.Config.Sample
	if s.Prompt == "" {
		s.Prompt = "\n"
	}
	r.unfit("sample")
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
