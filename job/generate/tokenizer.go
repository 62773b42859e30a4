package generate

import (
	"fmt"
	"path/filepath"

	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/job/spec"
)

// tokenizerOf returns the tokenizer of the model in a folder: the one requested, or the one in the
// folder. Otherwise it uses the job of the run, because older runs did not save their tokenizer,
// or a built-in tokenizer of the vocabulary's size, which it notes.
func tokenizerOf(o Options, folder string, vocab int) (data.Tokenizer, error) {
	const advice = "name it with --tokenizer bytes, gpt2 or a folder"
	if o.Tokenizer != "" {
		t, err := data.NewTokenizer(o.Tokenizer)
		if err != nil {
			return nil, input.BadInput(fmt.Errorf("--tokenizer: %w", err))
		}
		return t, nil
	}
	if len(data.TokenizerFiles(folder)) > 0 {
		t, err := data.NewTokenizer(folder)
		if err != nil {
			return nil, input.BadInput(fmt.Errorf("%w; or %s", err, advice))
		}
		return t, nil
	}
	if job := filepath.Join(o.Run, "job.yaml"); input.Exists(job) {
		return tokenizerOfJob(job, vocab, advice, o.Note)
	}
	for _, name := range []string{"bytes", "gpt2"} {
		if t, err := data.NewTokenizer(name); err == nil && t.Vocab() == vocab {
			o.Note(fmt.Sprintf("no tokenizer in %s; using %s, which matches the model's %d tokens. If the model uses another, %s", folder, name, vocab, advice))
			return t, nil
		}
	}
	return nil, input.BadInput(fmt.Errorf("no tokenizer in %s, and no built-in one has the model's %d tokens; %s", folder, vocab, advice))
}

// tokenizerOfJob returns the tokenizer of a run that did not save it. The default for token files
// is gpt2, so this is only accepted for a vocabulary of that size.
func tokenizerOfJob(job string, vocab int, advice string, note func(string)) (data.Tokenizer, error) {
	name, tokens, err := spec.LoadTokenizer(job)
	switch {
	case err != nil:
		return nil, err
	case name == "":
		return nil, input.BadInput(fmt.Errorf("%s: the tokenizer of its token files is unknown; %s", job, advice))
	case tokens && name == "gpt2" && !spec.Gpt2Sized(vocab):
		return nil, input.BadInput(fmt.Errorf("%s: its token files do not use GPT-2's vocabulary: the model has %d tokens; %s", job, vocab, advice))
	}
	t, err := data.NewTokenizer(name)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("%s: %w; the run has no copy of its tokenizer: %s", job, err, advice))
	}
	note(fmt.Sprintf("the run did not record its tokenizer; using %.100q, as in %s", name, job))
	return t, nil
}
