// Package data turns files into batches that are a pure function of (seed, sample): any
// rank can read any sample of any epoch at any time, so to resume, a run needs only the
// number of its next step.
//
// # From files to tokens
//
// Text files are found by patterns, sorted by path, used once each, and read as bytes. With
// the tokenizer "bytes" the corpus is their concatenation, as cat would print it; with a BPE
// vocabulary each file is followed by the vocabulary's <|endoftext|>, if it has one. Text is
// held in memory, with one, two or four bytes per token; editing a file during a run has no
// effect. Token files are mapped: they may be larger than memory and must not be truncated
// while a run uses them.
//
// # From tokens to windows
//
// With a context of T, a window is T+1 consecutive tokens: T inputs, and the same shifted
// by one as targets. Adjacent windows overlap in exactly one token, the last target of one
// and the first input of the next, so every token is predicted once per epoch.
//
// # Training and validation
//
// The corpus is cut into about a hundred periods: a training stretch, then a validation
// stretch, in the requested proportion. So validation text comes evenly from the whole
// corpus, not from the files that sort last. Stretches share no token: no training window
// overlaps a validation window. The cut depends on the number of tokens, the context and the
// fraction, not on the seed: runs with different seeds validate on the same text.
//
// # Order
//
// Sample s of the training set is window permute(seed, s/windows)(s%windows): each epoch is
// a permutation of all windows, computed by a Feistel network and never stored. The
// validation set is in corpus order. Share determines which samples a rank reads.
package data

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Source describes the data to read and how to split it.
type Source struct {
	Text       []string  // patterns of text files
	Tokens     []string  // or patterns of token files
	Documents  Documents // or files of records
	Samples    Samples   // or the samples of a program; Held are for validation, nil if there are none
	Held       Samples
	Below      []int   // exclusive limits of a program's numbers, by field; 0, or no item: none
	Dir        string  // base of relative paths; "" is the working directory
	Tokenizer  string  // "bytes", "gpt2" or a folder, see NewTokenizer; with Tokens it may be ""
	DType      string  // of ids in token files without a header: "uint16", "uint32", "int32", "int64"; "" means uint16, unless the file is ambiguous
	Validation float64 // fraction of the tokens used for validation, in [0, 0.5]
	Context    int     // T: tokens per sample, >= 1
	Fit        int     // if not 0, samples of documents are as long as the longest one, rounded up to a multiple of Fit, and at most Context
	Batch      int     // samples per step over all ranks; the training set must have at least as many
	Vocab      int     // the model's ids are [0, Vocab); 0 if the model adopts Set.Vocab
	Seed       uint64  // of the training order
	Memory     int64   // bytes that the text may occupy; 0 if unlimited
	Evaluate   bool    // the set is not trained on: either part may be empty, weights have no effect, and without enough data for validation there is none
	Whole      bool    // documents may be longer than a sample: they are read by Split.Slide
	Found      *Found  // result of a Check of the same files; if nil, Open searches for them

	// Progress, if not nil, receives the bytes of text encoded, or of token files checked, so
	// far. Calls do not overlap.
	Progress func(done, total int64)
}

// Set is an open source. It is safe for concurrent use.
type Set struct {
	Train      *Split
	Validation *Split // nil if there is none
	Context    int    // tokens per sample: Source.Context, or less if Source.Fit asks for it
	Tokenizer  Tokenizer
	Files      int
	Tokens     int64
	Vocab      int // ids are in [0, Vocab): the tokenizer's, or the largest id of the token files plus one

	Notes []string // facts about the data that may surprise the user

	// Fingerprint identifies the tokens and their order, wherever the files are; it does not
	// depend on the context, the fraction or the seed. A resumed run with another fingerprint
	// would train on other data.
	Fingerprint string

	release []func() error
}

// Problem is an error in one field of a source.
type Problem struct {
	Key string // the field in lower case: "validation", or "text[2]" for the third pattern
	Err error
}

func (p *Problem) Error() string { return "data." + p.Key + ": " + p.Err.Error() }
func (p *Problem) Unwrap() error { return p.Err }

func problem(key, format string, args ...any) *Problem {
	return &Problem{key, fmt.Errorf(format, args...)}
}

// Check finds the problems of a source that show without reading the files. Its error joins
// all problems, each a *Problem. If there are none, pass the result to Open to save a second
// search.
func (s Source) Check() (*Found, error) {
	_, files, errs := s.inspect(context.Background())
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return found(s, files), nil
}

// Open reads a source. Its error joins all problems found, each a *Problem, or is the cause
// of ctx if that ends first. The caller must close the set.
func Open(ctx context.Context, s Source) (*Set, error) {
	if s.Samples != nil {
		return s.program()
	}
	set, files, errs := s.inspect(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	err := set.fill(ctx, s, files)
	if err == nil {
		return set, nil
	}
	if closing := set.Close(); closing != nil {
		err = errors.Join(err, closing)
	}
	return nil, err
}

// fill reads the files and creates the splits.
func (set *Set) fill(ctx context.Context, s Source, files []file) (err error) {
	var corpus *Corpus
	err = fetch(ctx, s.key(), files, s.Progress)
	switch {
	case err != nil:
	case len(s.Documents.Files) > 0:
		err = set.openDocuments(ctx, s, files)
	default:
		corpus, err = set.load(ctx, s, files)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil && corpus != nil {
		err = set.cut(s, corpus)
	}
	return err
}

// Close releases mapped files. The splits must not be used afterwards.
func (s *Set) Close() error {
	var errs []error
	for _, release := range s.release {
		errs = append(errs, release())
	}
	s.release = nil
	return errors.Join(errs...)
}

// inspect finds everything that can be wrong before the content of a file is read.
func (s Source) inspect(ctx context.Context) (set *Set, files []file, errs []error) {
	switch {
	case len(s.Text) > 0 && len(s.Tokens) > 0:
		errs = append(errs, problem("tokens", "text and tokens are both given; keep one of them"))
	case len(s.Documents.Files) > 0 && len(s.Text)+len(s.Tokens) > 0:
		errs = append(errs, problem("documents", "documents and text or tokens are both given; keep one of them"))
	case len(s.Text)+len(s.Tokens)+len(s.Documents.Files) == 0:
		errs = append(errs, problem("text", `no data: give text: ["FOLDER/**/*.txt"] or tokens: [FILE.bin]`))
	}
	if _, ok := widths[s.DType]; s.DType != "" && (!ok || len(s.Tokens) == 0) {
		errs = append(errs, problem("dtype", "%q; token files without a header have a type, one of uint16, uint32, int32 and int64", s.DType))
	}
	if s.Context < 1 {
		errs = append(errs, problem("context", "a context of %d tokens; at least 1 is needed", s.Context))
	}
	if !(s.Validation >= 0 && s.Validation <= 0.5) {
		errs = append(errs, problem("validation", "%v is not a fraction from 0 to 0.5", s.Validation))
	}
	errs = append(errs, s.Documents.wrongWeights()...)
	set = &Set{Context: s.Context}
	if s.Tokenizer != "" || len(s.Text)+len(s.Documents.Files) > 0 {
		tok, err := openTokenizer(s.Dir, s.Tokenizer)
		if err != nil {
			errs = append(errs, &Problem{"tokenizer", err})
		} else if set.Tokenizer = tok; len(s.Text)+len(s.Documents.Files) > 0 && s.Vocab > 0 && MinVocab(tok) > s.Vocab {
			errs = append(errs, problem("tokenizer", "%s has %d tokens, but the model's vocabulary is %d; raise the model's vocabulary or choose another tokenizer",
				s.Tokenizer, MinVocab(tok), s.Vocab))
		}
	}
	if files := s.Found.take(s); files != nil {
		return set, files, errs
	}
	text, wrong := find(ctx, "text", s.Dir, s.Text)
	tokens, wrongTokens := find(ctx, "tokens", s.Dir, s.Tokens)
	records, wrongRecords := find(ctx, "documents", s.Dir, s.Documents.Files)
	_, wrongHeld := find(ctx, "validation_documents", s.Dir, s.Documents.Validation)
	return set, slices.Concat(text, tokens, records), slices.Concat(errs, wrong, wrongTokens, wrongRecords, wrongHeld)
}

// load reads the files into a corpus and checks its ids. It reports the progress of the
// slower step.
func (set *Set) load(ctx context.Context, s Source, files []file) (*Corpus, error) {
	reading, checking := s.Progress, (func(done, total int64))(nil)
	if len(s.Tokens) > 0 {
		reading, checking = checking, reading
	}
	segments, err := set.read(ctx, s, files, reading)
	if err != nil {
		return nil, &Problem{s.key(), err}
	}
	corpus := newCorpus(segments)
	sum, largest, err := corpus.scan(ctx, s.limit(set.Tokenizer), checking)
	if err != nil {
		return nil, &Problem{s.key(), err}
	}
	set.Files, set.Tokens, set.Fingerprint, set.Vocab = len(files), corpus.Len(), sum, largest+1
	if set.Tokenizer != nil {
		set.Vocab = set.Tokenizer.Vocab()
	}
	corpus.vocab = max(set.Vocab, largest+1)
	return corpus, nil
}

// checkMemory returns an error if the text exceeds the memory available for it. Encoded
// text needs additional memory.
func (s Source) checkMemory(files []file) error {
	sum := sizeOfFiles(files)
	if len(s.Tokens) > 0 || s.Memory == 0 || sum <= s.Memory {
		return nil
	}
	return fmt.Errorf("the text needs %d bytes of memory, but only %d are free; use less text, or encode it into token files (data.tokens), which may be larger than memory", sum, s.Memory)
}

// read maps token files, encodes text files, or reads their bytes.
func (set *Set) read(ctx context.Context, s Source, files []file, progress func(done, total int64)) (segments []segment, err error) {
	if err := s.checkMemory(files); err != nil {
		return nil, err
	}
	tok, encoded := set.Tokenizer.(fileTokenizer)
	switch {
	case len(s.Tokens) > 0:
		segments, set.release, err = mapTokens(files, idFormat{s.DType, s.limit(set.Tokenizer)})
	case encoded:
		var spelledOut int64
		keep := func(s segment) error { segments = append(segments, s); return nil }
		if spelledOut, err = encodeFiles(ctx, tok, files, progress, keep); spelledOut > 0 {
			set.Notes = append(set.Notes, tok.noteSpelledOut(spelledOut))
		}
	default:
		segments, err = readFiles(ctx, files, progress)
	}
	return segments, err
}

// limit returns the exclusive upper bound of ids, or 0 if unknown.
func (s Source) limit(tok Tokenizer) int {
	if s.Vocab == 0 && tok != nil {
		return tok.Vocab()
	}
	return s.Vocab
}

// key returns the job's key that names the files.
func (s Source) key() string {
	switch {
	case len(s.Tokens) > 0:
		return "tokens"
	case len(s.Documents.Files) > 0:
		return "documents"
	}
	return "text"
}

// cut creates the splits and refuses sets that are too small to train on.
func (set *Set) cut(s Source, c *Corpus) error {
	p := layOut(c.Len(), int64(s.Context), s.Validation)
	if s.Evaluate && p.held.windows == 0 {
		s.Validation = 0
		if p = layOut(c.Len(), int64(s.Context), 0); s.Whole && c.Len() > 1 {
			p.train.windows = max(1, p.train.windows) // it may be shorter than a sample
		}
	}
	set.Train = &Split{corpus: c, context: int64(s.Context), stretches: p.train, shuffle: true, seed: s.Seed}
	var errs []error
	switch batch := int64(max(s.Batch, 1)); {
	case s.Evaluate && p.train.windows+p.held.windows == 0:
		errs = append(errs, problem(s.key(), "%d tokens are fewer than a window of %d tokens; add data, or shorten the context", c.Len(), s.Context+1))
	case !s.Evaluate && p.train.windows < batch:
		errs = append(errs, problem(s.key(), "%d tokens give %d training windows of %d tokens, fewer than the %d of one global batch, which need about %d tokens; add data, shorten the context or make the batch smaller",
			c.Len(), set.Train.Windows(), s.Context+1, batch, tokensNeeded(batch, s.Context, 1-s.Validation)))
	}
	if s.Validation > 0 {
		set.Validation = &Split{corpus: c, context: int64(s.Context), stretches: p.held}
		if set.Validation.Windows() == 0 {
			errs = append(errs, problem("validation", "%v of %d tokens is not enough for a window of %d tokens, which needs about %d tokens in all; add data, shorten the context, raise the fraction, or set it to 0 to train without validation",
				s.Validation, c.Len(), s.Context+1, tokensNeeded(1, s.Context, s.Validation)))
		}
	}
	return errors.Join(errs...)
}

// tokensNeeded returns about how many tokens a corpus needs for its fraction f to contain n
// windows. A window costs its targets and, at worst, one token to be a stretch of its own.
func tokensNeeded(n int64, context int, f float64) int64 {
	return int64(math.Ceil(float64(n*int64(context+1)+1) / f))
}
