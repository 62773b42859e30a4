package spec

import (
	"strconv"
	"sync"
	"time"

	"zeroth/config"
	"zeroth/config/tree"
	"zeroth/data"
	"zeroth/internal/input/hub"
	"zeroth/job/hf"
	"zeroth/shard"
	"zeroth/zero"
)

// Job is a configuration with what a run finds out about it: Load has derived the settings that
// depend on other keys, on the model and on the machine.
type Job struct {
	config.Config
	*config.Document

	Notes  []string   // what a user may not expect of the job
	Folder hf.Carried // files and keys of model.from other than its shape
	Own    Own        // of the program that runs the job

	on      string      // see On
	loaded  string      // YAML of the job when it was loaded
	awaits  bool        // the model is that of the checkpoint to resume from, which is not known yet
	resumes bool        // the run goes on from a checkpoint, which determines the length of sequences
	env     Environment // that the job was loaded for
	found   *data.Found // the files of Data
	built   *sync.Map   // of Part; see Building
}

// Mesh returns the arrangement of ranks for the job's ZeRO stage: at stage 0 each shard group is
// one rank. With a master there is a single group, and the master holds all of its shards.
func Mesh(c *Job) shard.Mesh {
	p := c.Parallel
	m := shard.Mesh{Pipeline: p.Pipeline, Shard: p.Shard, Replicate: p.Replicate, Expert: p.Expert, Context: p.Context, Tensor: p.Tensor}
	if p.Master {
		return m
	}
	return zero.Stage(c.Zero.Stage).Mesh(m)
}

// Share returns how the samples of a step are distributed to the job's ranks.
func Share(c *Job) data.Share {
	m := Mesh(c)
	replicas := m.Size(shard.Replicate)
	return data.Share{
		Batch: c.Train.Batch, MicroBatch: c.Train.MicroBatch, Replicas: replicas, Ranks: m.DataRanks() / replicas,
		Blocks: c.Train.Sums == "tree",
	}
}

// Most returns the maximum number of micro-batches of a rank in a step, also when replicas are lost.
func Most(c *Job) int {
	if !c.Faults.Survive {
		return c.Train.Accumulate
	}
	s := Share(c)
	s.Replicas = min(s.Replicas, c.Faults.MinReplicas)
	return s.Most()
}

// TokensPerStep returns the number of positions that all ranks train on in a step.
func TokensPerStep(c *Job) int { return c.Train.Batch * c.Model.Context }

// Unit returns the name of what a run counts: "" for tokens or, if a program provides the samples, these or their
// positions.
func Unit(c *Job) string {
	switch {
	case !c.Data.Program:
		return ""
	case c.Model.Context > 1:
		return "positions"
	}
	return "samples"
}

// YAML returns the complete configuration as a job file, which Load reads back as an equal job.
func (c *Job) YAML() []byte { return c.Write(c.on) }

// On returns the device that ranks compute on, "cpu" or "cuda", after resolving auto.
func (c *Job) On() string { return c.on }

// Copy returns a shallow copy for a caller that changes settings. A loaded job is never changed,
// nor are the elements of its slices and maps.
func (c *Job) Copy() *Job {
	x := *c
	return &x
}

// Building returns a copy of a job whose Part builds every part only once. Of what networks depend on, copies of it
// may change only the mesh and model.context.
func (c *Job) Building() *Job {
	x := c.Copy()
	x.built = &sync.Map{}
	return x
}

// Load reads a job file, applies the sets ("key=value", the value in YAML), fills in defaults and
// makes every check that needs no data. The error is a Problems with all problems found. Relative
// paths in the job file are relative to the current directory. Device auto resolves to the CPU;
// use Environment.Load on a machine with GPUs.
func Load(file string, sets []string) (*Job, error) { return Environment{}.Load(file, sets) }

// Environment describes where a job is to run. Some defaults depend on it.
type Environment struct {
	Processes int  // that share the ranks evenly; 0 is one
	Ranks     int  // per process, if the job does not set it; 0: the job's default
	GPUs      int  // available for ranks
	Resumes   bool // the run may continue from a checkpoint: without model keys, the model is the checkpoint's

	// Fetch is hub.Fetch for models on the Hub; nil: without messages, and not interruptible.
	Fetch func(name string, files hub.Files) (pinned string, err error)
}

// Load is like the function Load, for a job that runs on h.
func (h Environment) Load(file string, sets []string) (*Job, error) {
	return h.load(file, readFile(file), sets, (*resolver).checkFiles, (*resolver).checkOffload)
}

// load makes a job of a file's contents and the sets, and runs the checks on it.
func (h Environment) load(file string, in contents, sets []string, checks ...func(*resolver)) (*Job, error) {
	problems := in.problems
	for _, s := range sets {
		problems = append(problems, tree.Overlay(in.root, s)...)
	}
	r := newResolver(file, in.root)
	if in.from != nil {
		in.from.Finish(in.root)
		r.Job.Notes = in.from.Notes(in.root)
		if in.root.Find("model") == nil && !h.Resumes {
			problems = append(problems, tree.NewProblem(in.root.At, "model", "the configuration of "+in.from.Name()+" names no model",
				"write --set model.from=FOLDER or hf://org/name, or --set model.family=gpt2 for a fresh one"))
		}
	}
	r.Problems, r.Job.env, r.draft = problems, h, len(checks) == 0
	if !problems.Fatal() {
		r.Read()
		r.resolve()
		for _, check := range checks {
			check(r)
		}
	}
	if r.failed != nil {
		return nil, r.failed
	}
	return r.done()
}

// LoadTokenizer returns the name by which data.NewTokenizer knows the job's tokenizer, and whether
// the job reads token files. The files that the job names need not exist any more.
func LoadTokenizer(file string) (name string, tokens bool, err error) {
	in := readFile(file)
	r := newResolver(file, in.root)
	r.Problems = in.problems
	if !in.problems.Fatal() {
		r.Read()
		r.resolveData()
	}
	if len(r.Problems) > 0 {
		return "", false, r.Problems
	}
	return Tokenizer(r.Job), len(r.Job.Data.Tokens) > 0, nil
}

// Source returns the source of the job's data.
func Source(c *Job) data.Source {
	var below []int
	if c.Own.Data != nil {
		below = Network(c).Below(c.Own.Data.Fields())
	}
	return data.Source{
		Text: c.Data.Text, Tokens: c.Data.Tokens, Documents: documents(c), DType: c.Data.DType, Tokenizer: Tokenizer(c), Validation: c.Data.Validation,
		Context: c.Model.Context, Fit: fitting(c), Batch: c.Train.Batch, Vocab: c.Model.Vocab, Seed: c.Train.Seed, Found: c.found,
		Samples: c.Own.Data, Held: c.Own.Validation, Below: below,
	}
}

// fitting returns the number of which a sequence's length must be a multiple, because ranks divide
// sequences or matrices, if the length follows from the longest document. It returns 0 if the job or
// a checkpoint sets the length, and for models without a folder.
func fitting(c *Job) int {
	if len(c.Data.Documents) == 0 || c.Model.From == "" || c.Sets("model.context") || c.resumes {
		return 0
	}
	const usual = 64
	return usual * max(1, c.Parallel.Context) * max(1, c.Parallel.Tensor)
}

// FollowsData reports whether the length of sequences follows from the longest document.
func FollowsData(c *Job) bool { return fitting(c) > 0 }

// WithDate returns the job with a date of chat templates, unless it needs none or gives one itself.
func (c *Job) WithDate(date string) *Job {
	if c.Data.Date == "" || date == "" || c.Sets("data.date") {
		return c
	}
	c = c.Copy()
	c.Data.Date = date
	c.loaded = string(c.YAML())
	return c
}

// with returns the job with another value of a key.
func (c *Job) with(key, value, source string) (*Job, error) {
	root := c.Root.Clone()
	n, _ := tree.Parse([]byte(value), tree.Position{})
	n.MoveTo(tree.Position{File: source})
	tree.Put(root, key, n)
	return c.again(root, c.env).after(c)
}

// AtCommitsOf returns the job with the models on the Hub at the commits that another process of the
// run has found, given their names there. Other models stay as they are.
func (c *Job) AtCommitsOf(from, vocab string) (next *Job, err error) {
	next = c
	for _, x := range []struct{ key, ours, theirs string }{{"model.from", c.Model.From, from}, {"data.vocab", c.Data.Vocab, vocab}} {
		ours, was := hub.Split(x.ours)
		theirs, is := hub.Split(x.theirs)
		if err == nil && ours == theirs && was != is && c.Sets(x.key) {
			next, err = next.with(x.key, tree.Quote(x.theirs), "process 0")
		}
	}
	return next, err
}

// WithContext returns the job with sequences of the given number of tokens, which it had left open.
func (c *Job) WithContext(tokens int) (*Job, error) {
	next, err := c.with("model.context", strconv.Itoa(tokens), "the longest document")
	if err != nil {
		return nil, err
	}
	if most := c.Model.Context; tokens < most {
		next.note("model.context is %d, enough for the longest document; the model's maximum is %d", tokens, most)
	} else {
		next.note("model.context is %d, the model's maximum, because the longest document needs at least that", most)
	}
	return next, nil
}

// documents returns the records of the job's source.
func documents(c *Job) data.Documents {
	k := c.Data.Keys
	date, _ := time.Parse(time.DateOnly, c.Data.Date) // it was checked when it was read
	return data.Documents{
		Learn: c.Data.Learn, Date: date, Skip: c.Data.TooLong == "skip", Most: c.Data.MaxRecords,
		Files: c.Data.Documents, Validation: c.Data.Held, Format: c.Data.Format, Pack: c.Data.Pack, Weights: c.Data.Weights,
		Keys: map[string]string{"text": k.Text, "prompt": k.Prompt, "completion": k.Completion, "messages": k.Messages},
	}
}

// Tokenizer returns the name by which data.NewTokenizer knows the job's tokenizer, empty for none.
func Tokenizer(c *Job) string {
	switch {
	case (c.Data.Tokenizer == "gpt2" || c.Data.Tokenizer == "folder") && c.Data.Vocab != "":
		return hub.Folder(c.Data.Vocab)
	case c.Data.Tokenizer == "none" || c.Data.Tokenizer == "folder": // the folder is missing, which is reported
		return ""
	}
	return c.Data.Tokenizer
}

// ProblemOf returns a problem of a key, with advice, at the place where the job gives the key.
func ProblemOf(c *Job, key, wrong, right string) tree.Problem {
	return tree.NewProblem(c.Position(key), key, wrong, right)
}
