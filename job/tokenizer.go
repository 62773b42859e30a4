package job

import (
	"fmt"
	"path/filepath"
	"slices"

	"zeroth/checkpoint"
	"zeroth/data"
)

// A model's tokenizer is recorded in its folder: vocab.json, merges.txt and
// tokenizer_config.json, whose key zeroth has the tokenizer's name in the job
// and a SHA-256 of what it does. So a model can be sampled and trained on
// wherever its folder goes.

// GPT-2's vocabulary, and how far others have padded it.
const (
	gpt2Vocab  = 50257
	gpt2Padded = 51200
)

// resolveTokenizer chooses the tokenizer that is not given: that of the model
// the job begins with, if it runs here. Without one text has none, and token
// files have GPT-2's if the model's vocabulary is of its size.
func (r *reader) resolveTokenizer() {
	d, from := &r.config.Data, r.config.Model.From
	if from != "" && r.spoilt("model.from") {
		return
	}
	if r.has("data.tokenizer") || r.spoilt("data.tokenizer") || r.has("data.vocab") {
		r.compareTokenizer()
		return
	}
	if from == "" {
		if len(d.Tokens) > 0 && r.has("model.vocab") && !gpt2Sized(r.config.Model.Vocab) {
			d.Tokenizer = "none"
		}
		return
	}
	own, err := data.NewTokenizer(from)
	switch found := data.TokenizerFiles(from); {
	case err == nil:
		d.Tokenizer, d.Vocab = named(own, from)
	case len(d.Tokens) > 0 && (len(found) > 0 || !gpt2Sized(r.config.Model.Vocab)):
		d.Tokenizer = "none"
	case len(d.Text) > 0 && len(found) > 0:
		r.refuse(fmt.Sprintf("text is encoded with the tokenizer of the model, and that of model.from %v", err),
			"or name a tokenizer with data.tokenizer, if the model is to learn other tokens", "model.from", "data.text")
	case len(d.Text) > 0:
		r.refuse(fmt.Sprintf("text needs the tokenizer that the model of %s was trained with, and there is none in that folder", from),
			"want data.tokenizer: bytes or gpt2, or data.vocab, whichever it is; or data.tokens, encoded with it elsewhere", "model.from", "data.text")
	}
}

func gpt2Sized(vocab int) bool { return vocab >= gpt2Vocab && vocab <= gpt2Padded }

// named is how a job names a folder's tokenizer.
func named(t data.Tokenizer, folder string) (tokenizer, vocab string) {
	for _, name := range []string{"bytes", "gpt2"} {
		if is, err := data.NewTokenizer(name); err == nil && data.SameTokenizer(is, t) {
			return name, ""
		}
	}
	return "gpt2", folder
}

// compareTokenizer notes a tokenizer that is not the one of the model the job
// begins with.
func (r *reader) compareTokenizer() {
	from := r.config.Model.From
	if from == "" || len(data.TokenizerFiles(from)) == 0 || r.config.Data.Tokenizer == "none" {
		return
	}
	own, err := data.NewTokenizer(from)
	asked, wrong := data.NewTokenizer(r.config.tokenizer())
	switch {
	case wrong != nil: // reported by vocab
	case err != nil:
		r.config.note("the job's tokenizer may not be that of its model: %v", err)
	case !data.SameTokenizer(own, asked):
		r.config.note("the job's tokenizer is not that of its model: the embeddings in %s are those of other tokens", from)
	}
}

// note keeps what a user may not expect of the job, to be told when it runs.
func (c *Config) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// checkTokenizer refuses what cannot be done with the tokenizer there is.
func (r *reader) checkTokenizer() {
	c := r.config
	if c.Data.Tokenizer != "none" {
		return
	}
	if len(c.Data.Text) > 0 {
		r.refuse("text needs a tokenizer, and data.tokenizer is none", "want bytes or gpt2", "data.tokenizer", "data.text")
	}
	if c.Model.From == "" && !r.has("model.vocab") {
		r.refuse("the number of tokens is not known where data.tokenizer is none", "want model.vocab", "data.tokenizer")
	}
	if c.Sample.Tokens > 0 {
		r.refuse("text cannot be sampled without a tokenizer, and none is known of the token files", "want data.tokenizer (bytes or gpt2), or data.vocab, or no sample", "sample.prompt", "sample.tokens", "data.tokenizer")
	}
}

// checkPrompt finds tokens of the prompt that the model does not know before
// it is trained, not after.
func (r *reader) checkPrompt() {
	c := r.config
	if c.Sample.Tokens == 0 || r.tokenizer == nil || r.spoilt("model.vocab") || r.spoilt("model.from") {
		return
	}
	if _, err := encode(r.tokenizer, c.Sample.Prompt, c.Model.Vocab); err != nil {
		r.refuse(err.Error(), "want another prompt, or a vocabulary that has it", "sample.prompt", "sample.tokens")
	}
}

// carryTokenizer makes the data's tokenizer, if it is known, the one that is
// carried with the model. A run that goes on carries it already.
func (c *Config) carryTokenizer(set *data.Set, b *beginning) error {
	if set.Tokenizer == nil || b.from != nil && b.trained() && len(c.carried.files) > 0 {
		return nil
	}
	own, some, err := c.carried.tokenizer()
	if err != nil || own != nil && data.SameTokenizer(own, set.Tokenizer) {
		return err
	}
	files := slices.Clone(c.carried.files)
	if some {
		files = nil
		c.carried.notes = slices.Concat(c.carried.notes, []string{"the files that came with the model are not carried over: this trains on the tokens of another tokenizer"})
	}
	kind := c.Data.Tokenizer
	if c.Data.Vocab != "" {
		kind = "vocab"
	}
	for _, f := range data.RecordTokenizer(kind, set.Tokenizer) {
		files = append(files, checkpoint.Attachment{Path: f.Name, Data: f.Text})
	}
	c.carried.files = files
	return nil
}

// tokenizerOf is the tokenizer of a model in a folder: the one that is asked
// for, or the one recorded there. Without either it is what the job of the run
// says, which runs did not record before, or the one whose size the vocabulary
// has, which is then said.
func tokenizerOf(o SampleOptions, folder string, vocab int) (data.Tokenizer, error) {
	const advice = "name it with --tokenizer bytes, gpt2 or a folder"
	if o.Tokenizer != "" {
		t, err := data.NewTokenizer(o.Tokenizer)
		if err != nil {
			return nil, BadInput(fmt.Errorf("--tokenizer: %w", err))
		}
		return t, nil
	}
	if len(data.TokenizerFiles(folder)) > 0 {
		t, err := data.NewTokenizer(folder)
		if err != nil {
			return nil, BadInput(fmt.Errorf("the tokenizer of %w; or %s", err, advice))
		}
		return t, nil
	}
	if job := filepath.Join(o.Run, "job.yaml"); exists(job) {
		return tokenizerOfJob(job, vocab, advice, o.Note)
	}
	for _, name := range []string{"bytes", "gpt2"} {
		if t, err := data.NewTokenizer(name); err == nil && t.Vocab() == vocab {
			o.Note(fmt.Sprintf("%s has no tokenizer; %s is taken, whose %d tokens the model has. If it is another, %s", folder, name, vocab, advice))
			return t, nil
		}
	}
	return nil, BadInput(fmt.Errorf("%s has no tokenizer, and none here has the %d tokens of its model; %s", folder, vocab, advice))
}

// tokenizerOfJob is the tokenizer of a run that did not record it. Its job says
// gpt2 of all token files, which is only believed of a vocabulary of that size.
func tokenizerOfJob(job string, vocab int, advice string, note func(string)) (data.Tokenizer, error) {
	name, tokens, err := loadTokenizer(job)
	switch {
	case err != nil:
		return nil, err
	case name == "":
		return nil, BadInput(fmt.Errorf("%s: the tokenizer of its token files is not known; %s", job, advice))
	case tokens && name == "gpt2" && !gpt2Sized(vocab):
		return nil, BadInput(fmt.Errorf("%s: its token files are not of GPT-2's vocabulary: the model has %d tokens; %s", job, vocab, advice))
	}
	t, err := data.NewTokenizer(name)
	if err != nil {
		return nil, BadInput(fmt.Errorf("%s: %w; the run has no copy of its tokenizer: %s", job, err, advice))
	}
	note(fmt.Sprintf("the run did not record its tokenizer; %.100q is taken, as %s has it", name, job))
	return t, nil
}
