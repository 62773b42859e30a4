package generate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zeroth/data"
	"zeroth/device"
	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/hf"
	"zeroth/job/setup"
	"zeroth/job/show"
)

// Options selects the model and what to generate.
type Options struct {
	Run         string // a run folder, a checkpoint, or a Hugging Face folder
	Tokenizer   string // "bytes", "gpt2" or a folder; empty: the one of the model's folder
	Prompt      string
	Chat        bool     // the prompt is a user message, and only the answer is written
	System      string   // with Chat: the system message; empty: none
	Tokens      int      // maximum number to generate
	Temperature float64  // 0 always chooses the most likely token
	TopK        int      // choose among the k most likely tokens; 0 is all
	TopP        float64  // choose among the most likely tokens with this total probability; 0 and 1 are all
	Stop        []string // the text ends before the first of these strings
	Seed        uint64
	Device      string // "auto", "cpu" or "cuda", like the job's key device; empty: auto
	Precision   string // "fp32" or "bf16", of parameters and activations; empty: fp32
	Batch       int    // maximum number of prompts continued concurrently; 0 is 1

	Note func(string) // receives remarks on unexpected behaviour; may be nil
}

// Answer is the continuation of a prompt.
type Answer struct {
	Prompt string `json:"prompt"`
	Text   string `json:"text"`          // the text after the prompt
	Tokens int    `json:"tokens"`        // number of tokens generated, without one that ended the text
	Reason string `json:"finish_reason"` // "length": all requested tokens; "eos": an end-of-text token; "stop": a stop string
}

// Sample writes the prompt and the model's continuation to w, token by token, until it has the
// requested number of tokens or a token ends the text.
func Sample(ctx context.Context, o Options, w io.Writer) error {
	return Many(ctx, o, []string{o.Prompt}, w, func(Answer) error { return nil })
}

// Many continues prompts, Batch of them concurrently, each with the result of Sample alone with
// the same seed. Its output and the order of its calls of told are as if prompts were continued
// one after the other.
func Many(ctx context.Context, o Options, prompts []string, w io.Writer, told func(Answer) error) error {
	if o.Note == nil {
		o.Note = func(string) {}
	}
	src, err := openSource(o)
	if err != nil {
		return err
	}
	defer src.close()
	m := src.model
	tok, err := tokenizerOf(o, src.folder, m.Vocab)
	if err != nil {
		return err
	}
	ids, longest, err := o.encodeAll(prompts, tok, m)
	if err != nil {
		return err
	}
	ends, err := endsOfText(src.folder, tok)
	if err != nil {
		return err
	}
	if o.Tokens < m.Context { // allocate no more memory than needed
		m.Context, m.Longest = min(m.Context, longest+o.Tokens), max(m.Context, m.Longest)
	}
	b, err := setup.For(o.Device, m)
	if err != nil {
		return err
	}
	g, err := newGenerator(src, m, b, precisions[o.Precision], min(max(1, o.Batch), len(prompts)))
	if err != nil {
		return err
	}
	defer g.Close()
	s := sampler{o, g, tok, ends}
	return s.all(ctx, prompts, ids, w, told)
}

// precisions maps names to the types of parameters and activations.
var precisions = map[string]device.DType{"": device.F32, "fp32": device.F32, "bf16": device.BF16}

// encodeAll returns the token ids of each prompt and the length of the longest.
func (o Options) encodeAll(prompts []string, tok data.Tokenizer, m hf.Model) (ids [][]int32, longest int, err error) {
	var errs []error
	for i, prompt := range prompts {
		o.Prompt = prompt
		these, err := o.encode(tok, m.Vocab)
		which := "the prompt"
		if len(prompts) > 1 {
			which = fmt.Sprintf("prompt %d", i+1)
		}
		if err != nil && len(prompts) > 1 {
			err = fmt.Errorf("%s: %w", which, err)
		}
		if len(these) > m.Context {
			o.Note(fmt.Sprintf("%s has %d tokens, but the model reads at most %d; only the last %d are used", which, len(these), m.Context, m.Context))
		}
		ids, longest, errs = append(ids, these), max(longest, len(these)), append(errs, err)
	}
	return ids, longest, errors.Join(errs...)
}

// encode returns the token ids of the prompt, or of the conversation that the chat template makes
// of it. It fails if the model lacks one of them.
func (o Options) encode(tok data.Tokenizer, vocab int) ([]int32, error) {
	if !o.Chat {
		return config.Encode(tok, o.Prompt, vocab)
	}
	c, err := data.NewChat(tok, time.Now())
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--chat: %w", err))
	}
	said := []string{"user", o.Prompt}
	if o.System != "" {
		said = append([]string{"system", o.System}, said...)
	}
	ids, err := c.Prompt(data.Said(said...))
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--chat: %w", err))
	}
	return ids, config.Known(tok, ids, vocab)
}

// sampler continues texts.
type sampler struct {
	Options
	*Generator
	tok  data.Tokenizer
	ends []int32 // tokens that end a text
}

// all continues the prompts. When a text ends, the next prompt takes its slot. The first
// unreported text is written as it grows, later ones in their turn.
func (o sampler) all(ctx context.Context, prompts []string, ids [][]int32, w io.Writer, told func(Answer) error) error {
	at, writings := make([]*writing, len(o.texts)), []*writing{} // the first by the generator's slot, the second by prompt, from the first unreported one on
	for next := 0; ; {
		for i := range at {
			if (at[i] == nil || at[i].ended) && next < len(prompts) {
				at[i] = o.begin(prompts[next], ids[next])
				writings = append(writings, at[i])
				next++
			}
		}
		for len(writings) > 0 {
			first := writings[0]
			if err := first.out.show(w); err != nil {
				return err
			}
			if !first.ended {
				break
			}
			first.Text = first.out.text.String()
			if err := told(first.Answer); err != nil {
				return err
			}
			writings = writings[1:]
		}
		if len(writings) == 0 {
			return nil
		}
		if err := o.step(ctx, at); err != nil {
			return err
		}
	}
}

// step adds a token to each unfinished text.
func (o sampler) step(ctx context.Context, at []*writing) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	texts := make([][]int32, len(at))
	for i, x := range at {
		if x != nil && !x.ended {
			texts[i] = x.ids
		}
	}
	logits, err := o.Next(texts)
	if err != nil {
		return err
	}
	for i, x := range at {
		if texts[i] == nil {
			continue
		}
		if err := o.add(x, logits[i]); err != nil {
			return err
		}
	}
	return nil
}

// writing is a text in progress.
type writing struct {
	Answer
	ids    []int32
	pick   chooser
	stream *data.Stream
	out    *output
	cut    *cutter // to out
	ended  bool
}

// output buffers a text, and writes it through once it is the text's turn.
type output struct {
	prompt string
	text   strings.Builder
	w      io.Writer // nil until its turn
}

func (o *output) Write(p []byte) (int, error) {
	o.text.Write(p)
	if o.w == nil {
		return len(p), nil
	}
	return o.w.Write(p)
}

// show writes the buffered text, and makes Write pass on the rest.
func (o *output) show(w io.Writer) error {
	if o.w != nil {
		return nil
	}
	o.w = w
	_, err := io.WriteString(w, o.prompt+o.text.String())
	return err
}

// begin returns a text without generated tokens.
func (o sampler) begin(prompt string, ids []int32) *writing {
	x := &writing{Answer: Answer{Prompt: prompt, Reason: "length"}, ids: ids, out: &output{prompt: prompt}, stream: data.NewStream(o.tok, ids)}
	if o.Chat {
		x.out.prompt = ""
	}
	x.pick = chooser{temperature: o.Temperature, topK: o.TopK, topP: o.TopP, rng: rand.New(rand.NewPCG(o.Seed, 0))}
	x.cut = &cutter{w: x.out, stops: o.Stop}
	return x
}

// add draws the next token of a text.
func (o sampler) add(x *writing, logits []float32) error {
	logits = logits[:min(len(logits), o.tok.Vocab())]
	if i := slices.IndexFunc(logits, notFinite); i >= 0 {
		return fmt.Errorf("the model's output for token %d is %v: its parameters are no longer numbers one can compute with", i, logits[i])
	}
	id := x.pick.choose(logits)
	if slices.Contains(o.ends, id) {
		o.Note(fmt.Sprintf("the text ends after %d of %d tokens, by token %d %q", x.Tokens, o.Tokens, id, o.tok.Decode([]int32{id})))
		x.Reason = "eos"
		return x.end()
	}
	x.ids = append(x.ids, id)
	x.Tokens++
	if _, err := x.cut.Write(x.stream.Next(id)); err != nil {
		return err
	}
	if x.Tokens == o.Tokens || x.cut.done {
		return x.end()
	}
	return nil
}

// end writes the rest of a text.
func (x *writing) end() error {
	x.ended = true
	_, err := x.cut.Write(x.stream.Rest())
	if err == nil {
		err = x.cut.Close()
	}
	if x.cut.done {
		x.Reason = "stop"
	}
	return err
}

// endsOfText returns the tokens that end a text: eos_token_id, a number or a list, from
// config.json and generation_config.json in the model's folder, and the tokenizer's separator of
// documents.
func endsOfText(folder string, tok data.Tokenizer) (ends []int32, err error) {
	for _, name := range []string{"config.json", "generation_config.json"} {
		path := filepath.Join(folder, name)
		these, err := endsIn(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, input.BadInput(fmt.Errorf("%s: %w", path, err))
		}
		ends = append(ends, these...)
	}
	if s := tok.Separator(); s >= 0 {
		ends = append(ends, s)
	}
	return ends, nil
}

// endsIn reads eos_token_id from a file of at most 2 MiB.
func endsIn(path string) (ends []int32, err error) {
	raw, err := input.Read(path, 2<<20)
	if err != nil {
		return nil, err
	}
	var c struct {
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	if len(c.EOS) == 0 || string(c.EOS) == "null" {
		return nil, nil
	}
	var one int32
	if json.Unmarshal(c.EOS, &one) == nil {
		return []int32{one}, nil
	}
	if json.Unmarshal(c.EOS, &ends) != nil {
		return nil, fmt.Errorf("eos_token_id is %s; want a token's number, or a list of them", show.Printable(fmt.Sprintf("%.60s", c.EOS)))
	}
	return ends, nil
}
