package generate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"zeroth/data"
	"zeroth/data/chat"
	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec"
)

// Options selects the model and what to generate.
type Options struct {
	Run       string // a run folder, a checkpoint, or a Hugging Face folder
	Step      string // of a run's checkpoint: a number, "latest" or "best"; empty: the run's model, see Open
	Tokenizer string // "bytes", "gpt2" or a folder; empty: the one of the model's folder
	Prompt    string
	Chat      bool     // the prompt is a user message, and only the answer is written
	System    string   // with Chat: the system message; empty: none
	Variables []string // with Chat: the template's variables, as key=value
	Tokens    int      // maximum number to generate
	Context   int      // maximum number of tokens the model reads; 0 is the model's limit
	Rules
	Chosen    map[string]bool // the keys of generation_config.json that Rules override; nil means all of them
	Stop      []string        // the text ends before the first of these strings
	Seed      uint64
	Device    string // "auto", "cpu" or "cuda", like the job's key device; empty: auto
	Attention string // like the job's key parallel.attention; empty: auto
	Precision string // "fp32" or "bf16", of parameters and activations; empty: fp32
	Batch     int    // maximum number of prompts continued concurrently; 0 is 1

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
// the same seed. Its output and the order of its calls of onAnswer are as if prompts were continued
// one after the other.
func Many(ctx context.Context, o Options, prompts []string, w io.Writer, onAnswer func(Answer) error) error {
	s, err := load(o)
	if err != nil {
		return err
	}
	defer s.close()
	ids, longest, err := s.encodeAll(prompts)
	if err != nil {
		return err
	}
	if err := s.start(min(max(1, o.Batch), len(prompts)), longest+min(o.Tokens, s.model.Context)); err != nil {
		return err
	}
	return s.all(ctx, prompts, ids, w, onAnswer)
}

// precisions maps names to the types of parameters and activations.
var precisions = map[string]device.DType{"": device.F32, "fp32": device.F32, "bf16": device.BF16}

// sampler continues texts.
type sampler struct {
	Options
	*Generator // from start on
	src        *Source
	model      hf.Model
	tok        data.Tokenizer
	chat       *data.Chat // nil without Chat
	vars       *chat.Dict // of the template
	ends       []int32    // tokens that end a text
	turn       uint64     // of a conversation, from 0
}

// load reads what is needed to encode prompts. The caller must close the sampler.
func load(o Options) (*sampler, error) {
	if o.Note == nil {
		o.Note = func(string) {}
	}
	src, err := Open(o.Run, o.Step, o.Note)
	if err != nil {
		return nil, err
	}
	s := &sampler{Options: o, src: src, model: src.Model}
	if o.Context > 0 {
		s.limit(o.Context)
	}
	if err := s.read(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// read reads the tokenizer, its template and the settings of the model.
func (s *sampler) read() (err error) {
	if s.tok, err = tokenizerOf(s.Options, s.src.Folder, s.model.Vocab); err != nil {
		return err
	}
	if s.Chat {
		s.chat, err = data.NewChat(s.tok, time.Now())
		if err == nil {
			s.vars, err = s.chat.Variables(s.Variables)
		}
		if err != nil {
			return input.BadInput(fmt.Errorf("--chat: %w", err))
		}
	}
	if err := s.adopt(s.src.Folder); err != nil {
		return err
	}
	s.ends, err = endsOfText(s.src.Folder, s.tok)
	return err
}

// limit reduces the number of tokens that the model reads, without a change to its positions.
func (s *sampler) limit(context int) {
	m := &s.model
	m.Context, m.Longest = min(m.Context, context), max(m.Context, m.Longest)
}

// start loads the parameters. It takes memory for a number of texts of a length.
func (s *sampler) start(texts, longest int) error {
	s.limit(longest)
	b, err := setup.For(s.Device, s.Attention, s.model)
	if err != nil {
		return err
	}
	s.Generator, err = newGenerator(s.src, s.model, b, precisions[s.Precision], texts)
	return err
}

func (s *sampler) close() {
	if s.Generator != nil {
		s.Generator.Close()
	}
	s.src.Close()
}

// encodeAll returns the token ids of each prompt and the length of the longest.
func (s *sampler) encodeAll(prompts []string) (ids [][]int32, longest int, err error) {
	var errs []error
	for i, prompt := range prompts {
		which := "the prompt"
		if len(prompts) > 1 {
			which = fmt.Sprintf("prompt %d", i+1)
		}
		these, err := s.encode("user", prompt)
		if err != nil && len(prompts) > 1 {
			err = fmt.Errorf("%s: %w", which, err)
		}
		s.noteCut(which, len(these))
		ids, longest, errs = append(ids, these), max(longest, len(these)), append(errs, err)
	}
	return ids, longest, errors.Join(errs...)
}

// noteCut reports a text that is longer than the model can read.
func (s *sampler) noteCut(which string, tokens int) {
	if most := s.model.Context; tokens > most {
		s.Note(fmt.Sprintf("%s has %d tokens, but the model reads at most %d; only the last %d are used", which, tokens, most, most))
	}
}

// encode returns the token ids of a prompt or, with Chat, of the conversation that the chat template
// makes of messages, given as roles and contents. It fails if the model lacks one of them.
func (s *sampler) encode(messages ...string) ([]int32, error) {
	if !s.Chat {
		return spec.Encode(s.tok, messages[1], s.model.Vocab)
	}
	if s.System != "" {
		messages = append([]string{"system", s.System}, messages...)
	}
	talk := data.NewTalk(messages...)
	talk.More = s.vars
	ids, err := s.chat.Prompt(talk)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--chat: %w", err))
	}
	return ids, spec.Known(s.tok, ids, s.model.Vocab)
}

// all continues the prompts. When a text ends, the next prompt takes its slot. The first
// unreported text is written as it grows, later ones in their turn.
func (o *sampler) all(ctx context.Context, prompts []string, ids [][]int32, w io.Writer, onAnswer func(Answer) error) error {
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
			if err := onAnswer(first.Answer); err != nil {
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
func (o *sampler) step(ctx context.Context, at []*writing) error {
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
func (o *sampler) begin(prompt string, ids []int32) *writing {
	x := &writing{Answer: Answer{Prompt: prompt, Reason: "length"}, ids: ids, out: &output{prompt: prompt}, stream: data.NewStream(o.tok, ids)}
	if o.Chat {
		x.out.prompt = ""
	}
	x.pick = chooser{Rules: o.Rules, rng: rand.New(rand.NewPCG(o.Seed, o.turn))}
	x.pick.read(ids...)
	x.cut = &cutter{w: x.out, stops: o.Stop}
	return x
}

// add draws the next token of a text.
func (o *sampler) add(x *writing, logits []float32) error {
	logits = logits[:min(len(logits), o.tok.Vocab())]
	if i := slices.IndexFunc(logits, notFinite); i >= 0 {
		return fmt.Errorf("the model's output for token %d is %v: its parameters are unusable", i, logits[i])
	}
	id := x.pick.choose(logits)
	if slices.Contains(o.ends, id) {
		if !o.Chat { // an answer is expected to end
			o.Note(fmt.Sprintf("the text ends after %d of %d tokens, by token %d %q", x.Tokens, o.Tokens, id, o.tok.Decode([]int32{id})))
		}
		x.Reason = "eos"
		return x.end()
	}
	x.ids = append(x.ids, id)
	x.pick.read(id)
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
