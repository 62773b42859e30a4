package spec

import (
	"errors"
	"fmt"
	"slices"

	"zeroth/config"
	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
)

// A model's tokenizer is stored in its folder: tokenizer.json and related files unchanged, or
// vocab.json, merges.txt and tokenizer_config.json. The key zeroth of the latter holds the
// tokenizer's name in the job and a SHA-256 of its behaviour. So a model can be sampled and
// trained wherever its folder is moved.

// GPT-2's vocabulary, and its largest common padding.
const (
	gpt2Vocab  = 50257
	gpt2Padded = 51200
)

// resolveTokenizer chooses the tokenizer if the job does not: that of model.from, if supported.
// Otherwise text has none, and token files use GPT-2's if the model's vocabulary has its size.
func (r *resolver) resolveTokenizer() {
	d, from := &r.Job.Data, r.Job.Model.From
	if from != "" && r.Spoilt("model.from") {
		return
	}
	if r.Has("data.tokenizer") || r.Spoilt("data.tokenizer") || r.Has("data.vocab") {
		if d.Tokenizer == "folder" && !r.Has("data.vocab") {
			d.Vocab = from
		}
		r.compareTokenizer()
		return
	}
	if from == "" {
		if len(d.Tokens) > 0 && r.Has("model.vocab") && !Gpt2Sized(r.Job.Model.Vocab) {
			d.Tokenizer = "none"
		}
		return
	}
	if r.shapeOnly() || r.draft && hub.Is(from) {
		return
	}
	own, err := data.NewTokenizer(hub.Folder(from))
	switch found := data.TokenizerFiles(hub.Folder(from)); {
	case err == nil:
		d.Tokenizer, d.Vocab = named(own, from)
	case len(d.Tokens) > 0 && (len(found) > 0 || !Gpt2Sized(r.Job.Model.Vocab)):
		d.Tokenizer = "none"
	case len(d.Text)+len(d.Documents) > 0 && len(found) > 0:
		r.Refuse(fmt.Sprintf("text is encoded with the model's tokenizer, but %v", err),
			"or name a tokenizer with data.tokenizer if the model should learn other tokens", "model.from", "data.text", "data.documents")
	case len(d.Text)+len(d.Documents) > 0:
		r.Refuse(fmt.Sprintf("text needs the tokenizer that the model of %s was trained with, but that folder has none", from),
			"name it with data.tokenizer (bytes or gpt2) or data.vocab, or use data.tokens, encoded with it elsewhere", "model.from", "data.text", "data.documents")
	}
}

// Gpt2Sized reports whether a vocabulary has the size of GPT-2's, possibly padded.
func Gpt2Sized(vocab int) bool { return vocab >= gpt2Vocab && vocab <= gpt2Padded }

// named returns the job settings that select a folder's tokenizer.
func named(t data.Tokenizer, folder string) (tokenizer, vocab string) {
	for _, name := range []string{"bytes", "gpt2"} {
		if is, err := data.NewTokenizer(name); err == nil && data.SameTokenizer(is, t) {
			return name, ""
		}
	}
	if _, own := t.(*data.Folder); own {
		return "folder", folder
	}
	return "gpt2", folder
}

// compareTokenizer adds a note if the tokenizer differs from the one of model.from.
func (r *resolver) compareTokenizer() {
	from := r.Job.Model.From
	if from == "" || len(data.TokenizerFiles(hub.Folder(from))) == 0 || r.Job.Data.Tokenizer == "none" {
		return
	}
	own, err := data.NewTokenizer(hub.Folder(from))
	asked, wrong := data.NewTokenizer(Tokenizer(r.Job))
	switch {
	case wrong != nil: // reported by vocab
	case err != nil:
		r.Job.note("the job's tokenizer may not be its model's: %v", err)
	case !data.SameTokenizer(own, asked):
		r.Job.note("the job's tokenizer is not its model's: the embeddings in %s are for other tokens", from)
	}
}

// note records something unexpected about the job, to be shown when it runs.
func (c *Job) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(c.Notes, s) {
		c.Notes = append(c.Notes[:len(c.Notes):len(c.Notes)], s)
	}
}

// checkTokenizer rejects settings that the tokenizer does not support.
func (r *resolver) checkTokenizer() {
	c := r.Job
	if c.Data.Tokenizer == "folder" && c.Data.Vocab == "" {
		r.Refuse("data.tokenizer is folder, but no folder is given", "want data.vocab: a folder with tokenizer.json", "data.tokenizer")
	}
	if c.Data.Tokenizer != "none" {
		return
	}
	if len(c.Data.Text)+len(c.Data.Documents) > 0 {
		r.Refuse("text needs a tokenizer, but data.tokenizer is none", "want bytes or gpt2", "data.tokenizer", "data.text", "data.documents")
	}
	if c.Model.From == "" && c.Model.Family != config.Program && !r.Has("model.vocab") {
		r.Refuse("the number of tokens is unknown if data.tokenizer is none", "want model.vocab", "data.tokenizer", "data.program")
	}
	if c.Sample.Tokens > 0 {
		r.Refuse("sampling text needs a tokenizer, but that of the token files is unknown", "want data.tokenizer (bytes or gpt2), or data.vocab, or no sample", "sample.prompt", "sample.tokens", "data.tokenizer")
	}
}

// checkPrompt reports prompt tokens that the model lacks before training rather than after.
func (r *resolver) checkPrompt() {
	c := r.Job
	if c.Sample.Tokens == 0 || r.tokenizer == nil || r.Spoilt("model.vocab") || r.Spoilt("model.from") {
		return
	}
	if _, err := Encode(r.tokenizer, c.Sample.Prompt, c.Model.Vocab); err != nil {
		r.Refuse(err.Error(), "want another prompt, or a vocabulary that contains it", "sample.prompt", "sample.tokens")
	}
}

// Encode returns the tokens of a prompt. It fails if the model lacks one of them.
func Encode(tok data.Tokenizer, prompt string, vocab int) ([]int32, error) {
	ids := tok.Encode([]byte(prompt))
	return ids, Known(tok, ids, vocab)
}

// Known rejects a prompt that is empty or has a token that the model lacks.
func Known(tok data.Tokenizer, ids []int32, vocab int) error {
	if len(ids) == 0 {
		return input.BadInput(errors.New("an empty prompt; want at least one token to continue"))
	}
	if most := slices.Max(ids); int(most) >= vocab {
		return input.BadInput(fmt.Errorf("the prompt has the token %q, number %d, but the model knows only the first %d", tok.Decode([]int32{most}), most, vocab))
	}
	return nil
}
