package config

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"zeroth/data"
	"zeroth/device"
	"zeroth/job/hf"
	"zeroth/job/show"
	"zeroth/nn"
)

// idle says why the key has no meaning in this job ("" if it has one) and which
// key decided that. Such a key is refused when it is given, and not written.
func (c *Config) idle(f field) (why, because string) {
	switch rule := c.Optimizer.Type; {
	case f.key == "optimizer.betas" && rule == "muon":
		return "muon has none; those of its AdamW are optimizer.adamw.betas", "optimizer.type"
	case f.types != nil && !slices.Contains(f.types, rule):
		return rule + " has no " + strings.TrimPrefix(f.key, "optimizer."), "optimizer.type"
	case f.also.idle != nil:
		return f.also.idle()
	}
	return "", ""
}

func (c *Config) idleShape(name string) func() (why, because string) {
	return func() (why, because string) {
		switch {
		case c.Model.From != "":
			return "model.from brings its own config.json", "model.from"
		case c.Model.Family != "llama" && slices.Contains(hf.LlamaKeys, name):
			return c.Model.Family + " has no " + name, "model.family"
		}
		return "", ""
	}
}

func (c *Config) idleVocab() (why, because string) {
	if t := c.Data.Tokenizer; t != "gpt2" && t != "folder" {
		return "tokenizer " + t + " has no vocabulary of its own", "data.tokenizer"
	}
	return "", ""
}

func (c *Config) idleIDs() (why, because string) {
	if len(c.Data.Tokens) == 0 {
		return "text has no ids yet", "data.text"
	}
	return "", ""
}

func (c *Config) idleRecords() (why, because string) {
	if len(c.Data.Documents) == 0 {
		return "there are no data.documents", "data.documents"
	}
	return "", ""
}

// idleRecordKey is that of a key of records in a format.
func (c *Config) idleRecordKey(name, format string) func() (why, because string) {
	return func() (why, because string) {
		if why, because = c.idleRecords(); why == "" && c.Data.Format != format {
			return "records of the format " + c.Data.Format + " have no " + name, "data.format"
		}
		return why, because
	}
}

func (c *Config) idleFraction() (why, because string) {
	if len(c.Data.Held) > 0 {
		return "data.validation_documents names what to validate on", "data.validation_documents"
	}
	return "", ""
}

func (c *Config) idleGPUs() (why, because string) {
	if c.on == "cpu" {
		return "ranks compute on the CPU", "device"
	}
	return "", ""
}

func (c *Config) idlePatience() (why, because string) {
	if c.Train.EarlyStop.Patience == 0 {
		return "train.early_stop.patience is 0: the run never ends early", "train.early_stop.patience"
	}
	return "", ""
}

func (c *Config) idleAdapters() (why, because string) {
	if c.Train.LoRA.Rank == 0 {
		return "train.lora.rank is 0: there are no adapters", "train.lora.rank"
	}
	return "", ""
}

func (c *Config) idleMinLR() (why, because string) {
	switch c.Schedule.Type {
	case "constant":
		return "a constant schedule does not fall", "schedule.type"
	case "inverse_sqrt":
		return "an inverse_sqrt schedule falls as its formula says", "schedule.type"
	}
	return "", ""
}

func (c *Config) idleDecay() (why, because string) {
	if c.Schedule.Type != "wsd" {
		return "a " + c.Schedule.Type + " schedule has no decay of its own", "schedule.type"
	}
	return "", ""
}

// resolve fills in what follows from other keys and refuses combinations that
// cannot work.
func (r *reader) resolve() {
	r.resolveData()
	r.resolveModel()
	r.resolveDevice()
	r.resolveParallel()
	r.resolveOffload()
	r.resolveBatch()
	r.resolveTraining()
	r.resolveOptimizer()
	r.resolveGroups()
	r.resolveCheckpoint()
	r.resolveSample()
	if wrong, keys := Countable(r.Config); wrong != "" {
		r.refuse(wrong, "want less", keys...)
	}
	for _, f := range r.fields {
		if why, because := r.Config.idle(f); why != "" && r.has(f.key) && (r.has(because) || !r.bad[because]) {
			r.wrong(r.given[f.key].at, f.key, "not used: "+why, fmt.Sprintf("remove it (--set %s=null removes it)", f.key))
		}
	}
}

func (r *reader) resolveData() {
	d := &r.Config.Data
	switch text, tokens := len(d.Text) > 0, len(d.Tokens) > 0; {
	case len(d.Documents) > 0 && (text || tokens):
		r.refuse("documents and text or tokens are given", "want one of the three", "data.documents", "data.text", "data.tokens")
	case len(d.Documents) > 0:
	case text && tokens:
		r.refuse("text and tokens are both given", "want one of the two", "data.tokens", "data.text")
	case !text && !tokens:
		r.noData()
	}
	if !r.has("data.tokenizer") {
		d.Tokenizer = "bytes"
		if len(d.Tokens) > 0 {
			d.Tokenizer = "gpt2"
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
			return // it may well be the data, misspelt
		}
	}
	for _, key := range []string{"data.text", "data.tokens", "data.documents"} {
		if n := r.given[key]; n != nil {
			r.wrong(n.at, key, "the list is empty: there is nothing to train on", advice)
			return
		}
	}
	at := place{file: r.file}
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
	if r.was == nil && m.From == "" {
		r.resolveShape(makes)
	}
	r.checkVocab(makes)
	if p := r.Config.Dropout; p != nil {
		m.Dropout = nn.Dropout{Embed: *p, Residual: *p}
	}
	m.Dropout.Attention = r.Config.AttentionDropout
	if s := m.Scaling; r.Config.Data.Pack && s.Kind == device.RopeLong && m.Context > s.Context {
		r.refuse(fmt.Sprintf("longrope turns positions of a sequence of more than %d tokens otherwise, whose documents would not have the losses they have apart", s.Context),
			fmt.Sprintf("want a model.context of at most %d, or no packing", s.Context), "data.pack")
	}
	r.resolveTuning()
}

// vocab is the number of different tokens the tokenizer makes; 0 if there is
// none, or its files cannot be read, which is then reported.
func (r *reader) vocab() int {
	if Tokenizer(r.Config) == "" {
		return 0
	}
	t, err := data.NewTokenizer(Tokenizer(r.Config))
	if err != nil {
		r.wrong(r.Config.Place("data.vocab"), "data.vocab", err.Error(), "want a folder with tokenizer.json, or vocab.json and merges.txt")
		return 0
	}
	r.tokenizer = t
	return t.Vocab()
}

// checkVocab compares the model's vocabulary with what the tokenizer makes.
// Token files may use fewer than their tokenizer has.
func (r *reader) checkVocab(makes int) {
	c := r.Config
	written := len(c.Data.Text)+len(c.Data.Documents) > 0
	if written && c.Model.Vocab < makes && r.tokenizer != nil && data.Least(r.tokenizer) <= c.Model.Vocab {
		c.note("the tokenizer has %d tokens, of which the model knows the first %d; text with one of the others is refused", makes, c.Model.Vocab)
		return
	}
	if written && c.Model.Vocab < makes {
		r.refuse(fmt.Sprintf("the model knows %d tokens, but tokenizer %s makes %d", c.Model.Vocab, c.Data.Tokenizer, makes),
			fmt.Sprintf("want a vocabulary of at least %d", makes), "model.from", "model.vocab", "data.tokenizer", "data.vocab")
	}
}

// resolveDevice says what ranks compute on: where that is left open, GPUs that are
// of use here.
func (r *reader) resolveDevice() {
	c := r.Config
	if c.on = c.Device; c.on == "auto" {
		c.on = "cpu"
		if c.here.GPUs > 0 {
			c.on = "cuda"
		}
	}
	if c.on == "cuda" && c.Model.CapScores > 0 {
		c.note("attention whose scores have a cap is computed on a GPU's ordinary cores, a tenth to a fifth as fast as on tensor cores")
	}
}

func (r *reader) resolveParallel() {
	p, here := &r.Config.Parallel, r.Config.here
	if !r.has("parallel.ranks") {
		p.Ranks = 4
		if n := cmp.Or(len(p.GPUs), here.GPUs); r.Config.on == "cuda" && n > 0 {
			p.Ranks = n
		}
		if p.Shard > 0 && p.Shard*p.Replicate <= MostRanks {
			p.Ranks = p.Shard * p.Replicate
		}
		if here.Processes > 1 && p.Shard <= 0 || here.Ranks > 0 {
			p.Ranks = min(MostRanks, max(1, here.Processes)*max(1, here.Ranks))
		}
	}
	r.resolveProcesses()
	if r.Config.Zero.Stage == 0 && p.Replicate > 1 {
		r.refuse(fmt.Sprintf("hybrid sharding at stage 0: it shards nothing, so there are no shard groups to replicate %d times; every rank is a whole replica already", p.Replicate),
			"want replicate: 1, or stage 1, 2 or 3", "parallel.replicate", "zero.stage")
	}
	keys := []string{"parallel.shard", "parallel.replicate", "parallel.ranks"}
	switch {
	case p.Shard > 0 && p.Shard*p.Replicate != p.Ranks:
		r.refuse(fmt.Sprintf("shard %d × replicate %d = %d, but there are %d ranks", p.Shard, p.Replicate, p.Shard*p.Replicate, p.Ranks),
			fmt.Sprintf("want ranks: %d, or shard: -1 for ranks / replicate", p.Shard*p.Replicate), keys...)
	case p.Shard < 0 && p.Ranks%p.Replicate != 0:
		r.refuse(fmt.Sprintf("%d ranks cannot be parted into %d equal replicas", p.Ranks, p.Replicate),
			fmt.Sprintf("want replicate %s", eitherCount(neighbours(p.Replicate, func(n int) bool { return p.Ranks%n == 0 }))), keys[1:]...)
	case p.Shard < 0:
		p.Shard = p.Ranks / p.Replicate
	}
}

// resolveProcesses refuses ranks that cannot be split over the processes, and
// what carries nothing between them.
func (r *reader) resolveProcesses() {
	p, processes := &r.Config.Parallel, r.Config.here.Processes
	if processes > 1 && p.Ranks%processes != 0 {
		r.refuse(fmt.Sprintf("%d ranks cannot be split evenly over %d processes", p.Ranks, processes),
			fmt.Sprintf("want ranks %s, or leave it out: then each process has one", eitherCount(neighbours(p.Ranks, func(n int) bool { return n%processes == 0 }))), "parallel.ranks")
	}
	if processes > 1 && p.Transport == "local" {
		r.refuse("local carries nothing between processes", "want auto, unix or tcp", "parallel.transport")
	}
	if all := []string{p.TLS.Cert, p.TLS.Key, p.TLS.CA}; p.TLS != (TLS{}) && slices.Contains(all, "") {
		r.refuse("a certificate, its key and the authority go together", "want all three, or none", "parallel.tls.cert", "parallel.tls.key", "parallel.tls.ca")
	}
	if p.Collective == "nccl" && r.Config.On() != "cuda" {
		r.refuse("NCCL adds up on GPUs, and ranks compute on the CPU", "want auto, or device: cuda", "parallel.collective", "device")
	}
	if p.DeadAfter < 2*p.Heartbeat {
		r.refuse(fmt.Sprintf("a process would be called lost after %v, and gives a sign of life every %v", p.DeadAfter, p.Heartbeat),
			"want dead_after of at least twice heartbeat", "parallel.dead_after", "parallel.heartbeat")
	}
}

// resolveBatch makes batch = micro_batch × accumulate × ranks hold.
func (r *reader) resolveBatch() {
	t, ranks := &r.Config.Train, r.Config.Parallel.Ranks
	batch, micro, accumulate := r.has("train.batch"), r.has("train.micro_batch"), r.has("train.accumulate")
	if !micro {
		t.MicroBatch = 4
	}
	if !accumulate {
		t.Accumulate = 1
	}
	switch product := t.MicroBatch * t.Accumulate * ranks; {
	case !batch:
		t.Batch = product
	case micro && accumulate:
		if product != t.Batch {
			r.refuse(fmt.Sprintf("micro_batch %d × accumulate %d × ranks %d = %d, but batch is %d", t.MicroBatch, t.Accumulate, ranks, product, t.Batch),
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

var batchKeys = []string{"train.batch", "train.micro_batch", "train.accumulate", "parallel.ranks"}

// share is batch / (known × ranks), for the key that is unknown.
func (r *reader) share(name string, known int, unknown string) int {
	t, ranks := &r.Config.Train, r.Config.Parallel.Ranks
	unit, equation := known*ranks, fmt.Sprintf("%s ? × ranks %d", unknown, ranks)
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

func (r *reader) resolveTraining() {
	t := &r.Config.Train
	switch none := r.Config.Data.Validation == 0; {
	case !r.has("train.eval_every") && none:
		t.EvalEvery = 0
	case !r.has("train.eval_every"):
		t.EvalEvery = 50
	case none && t.EvalEvery > 0:
		r.refuse(fmt.Sprintf("eval_every is %d, but data.validation is 0: there is no text to evaluate on", t.EvalEvery),
			"want eval_every: 0, or a data.validation such as 0.01", "train.eval_every", "data.validation")
	}
	if t.EarlyStop.Patience > 0 && t.EvalEvery == 0 {
		r.refuse("the run is to end when evaluations do not improve, but nothing is evaluated", "want train.eval_every of at least 1 and data.validation above 0", "train.early_stop.patience", "train.eval_every")
	}
	if r.has("train.epochs") {
		if r.has("train.steps") {
			r.refuse("steps and epochs are both given", "want one of the two (--set train.steps=null removes it)", "train.epochs", "train.steps")
		}
		t.Steps = 0
		return // what follows from steps is for Settle
	}
	r.Config.resolveSteps()
}

// resolveSteps fills in what follows from the number of steps.
func (c *Config) resolveSteps() {
	t, s := &c.Train, &c.Schedule
	if !c.says("schedule.warmup") {
		s.Warmup = min(20, t.Steps)
	}
	if s.Type == "wsd" && !c.says("schedule.decay") {
		s.Decay = max(1, t.Steps/10)
	}
}

// Settled is the job with steps for its epochs, now that it is known how many sequences the data
// has; samples of them were read in so many steps before. The last step is filled up
// with sequences of the next epoch. A job that gives steps stays as it is.
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
		return nil, Problems{ProblemOf(c, "train.epochs", fmt.Sprintf("%s epochs of %d sequences are %.3g steps, of at most %d", formatReal(t.Epochs), sequences, steps, mostSteps), "want fewer")}
	}
	t.Steps = int(steps)
	x.resolveSteps()
	if wrong, _ := Countable(x); wrong != "" {
		return nil, Problems{ProblemOf(c, "train.epochs", wrong, "want fewer")}
	}
	return x, nil
}

func (r *reader) resolveOptimizer() {
	o, s := &r.Config.Optimizer, &r.Config.Schedule
	r.resolveConstants(o)
	if o.Type == "muon" {
		r.resolveMuon(o)
	}
	switch {
	case s.Type == "constant" || s.Type == "inverse_sqrt":
		if !r.has("schedule.min_lr") {
			s.MinLR = o.LR
		}
	case !r.has("schedule.min_lr"):
		s.MinLR = tenth(o.LR)
	case s.MinLR > o.LR:
		r.refuse(fmt.Sprintf("min_lr %s is above lr %s", formatReal(s.MinLR), formatReal(o.LR)),
			"want a min_lr of at most lr", "schedule.min_lr", "optimizer.lr")
	}
}

// resolveConstants fills in those of the rule.
func (r *reader) resolveConstants(o *Optimizer) {
	if !r.has("optimizer.lr") {
		o.LR = 6e-4
		if o.Type == "muon" {
			o.LR = 1e-3
		}
	}
	if !r.has("optimizer.betas") {
		switch o.Type {
		case "adamw", "adamw8bit", "adam":
			o.Betas = [2]float64{0.9, 0.95}
		case "lion":
			o.Betas = [2]float64{0.9, 0.99}
		}
	}
	if !r.has("optimizer.eps") {
		switch o.Type {
		case "adamw", "adamw8bit", "adam":
			o.Eps = 1e-8
		case "muon":
			o.Eps = 1e-7
		}
	}
	if !r.has("optimizer.momentum") {
		switch o.Type {
		case "sgd":
			o.Momentum = 0.9
		case "muon":
			o.Momentum = 0.95
		}
	}
}

// resolveMuon fills in what Muon alone has, and refuses what does not go with it.
func (r *reader) resolveMuon(o *Optimizer) {
	a := &o.AdamW
	if !r.has("optimizer.nesterov") {
		o.Nesterov = true
	}
	if !r.has("optimizer.ns_steps") {
		o.Steps = 5
	}
	if !r.has("optimizer.adjust_lr_fn") {
		o.Adjust = Adjusts[0]
	}
	if !r.has("optimizer.adamw.lr") {
		a.LR = 6e-4
		if o.Adjust == "match_rms_adamw" {
			a.LR = o.LR
		}
	}
	if !r.has("optimizer.adamw.betas") {
		a.Betas = [2]float64{0.9, 0.95}
	}
	if !r.has("optimizer.adamw.eps") {
		a.Eps = 1e-8
	}
	if !r.has("optimizer.adamw.weight_decay") {
		a.WeightDecay = o.WeightDecay
	}
}

// tenth is x/10 in decimal: a tenth of 6e-4 is 6e-5 to the last bit.
func tenth(x float64) float64 {
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', -1, 64), "e")
	e, _ := strconv.Atoi(exponent)
	y, _ := strconv.ParseFloat(fmt.Sprintf("%se%d", mantissa, e-1), 64)
	return y
}

func (r *reader) resolveCheckpoint() {
	k := &r.Config.Checkpoint
	if !r.has("checkpoint.save_on_exit") {
		k.SaveOnExit = k.Every > 0
	}
	if k.Keep.Best == "val_loss" && r.Config.Train.EvalEvery == 0 {
		r.refuse("the best val_loss is to be kept, but nothing is evaluated", "want train.eval_every of at least 1 and data.validation above 0, or best: loss", "checkpoint.keep")
	}
}

func (r *reader) resolveSample() {
	s := &r.Config.Sample
	if !r.has("sample.tokens") && s.Prompt != "" {
		s.Tokens = 200
	}
	if s.Prompt == "" {
		s.Prompt = "\n"
	}
	if !r.has("sample.seed") {
		s.Seed = r.Config.Train.Seed
	}
	if slices.Contains(s.Stop, "") {
		r.refuse("a stop text is empty", "want at least one character in each", "sample.stop")
	}
	r.checkTokenizer()
	r.checkPrompt()
}

// neighbours are the nearest numbers below and above n that ok accepts, as far
// as there are any.
func neighbours(n int, ok func(int) bool) []int {
	var near []int
	for i := n - 1; i >= 1; i-- {
		if ok(i) {
			near = append(near, i)
			break
		}
	}
	for i := n + 1; i <= MostRanks; i++ {
		if ok(i) {
			return append(near, i)
		}
	}
	return near
}

func eitherCount(ns []int) string {
	names := make([]string, len(ns))
	for i, n := range ns {
		names[i] = fmt.Sprint(n)
	}
	return show.Either(names)
}
