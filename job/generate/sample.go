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

// Options say what to write and from which model.
type Options struct {
	Run         string // a run folder, a checkpoint, or a Hugging Face folder
	Tokenizer   string // "bytes", "gpt2" or a folder; empty: the one of the model's folder
	Prompt      string
	Chat        bool     // the prompt is what a user says, and only the answer is written
	System      string   // with Chat: what the model is told before; empty: nothing
	Tokens      int      // to write, at most
	Temperature float64  // 0 always takes the likeliest token
	TopK        int      // choose among the k likeliest; 0 is all
	TopP        float64  // choose among the likeliest that together have this probability; 0 and 1 are all
	Stop        []string // the text ends before the first of these
	Seed        uint64
	Device      string // "auto", "cpu" or "cuda", as the job's key device; empty: auto
	Precision   string // "fp32" or "bf16": what parameters and activations are; empty: fp32
	Batch       int    // prompts that are continued at once, at most; 0 is 1

	Note func(string) // told what a user may not expect; nil: nobody is
}

// Answer is how a prompt was continued.
type Answer struct {
	Prompt string `json:"prompt"`
	Text   string `json:"text"`          // what follows the prompt
	Tokens int    `json:"tokens"`        // that were drawn, without the one that ended the text
	Reason string `json:"finish_reason"` // "length": all tokens asked for; "eos": a token ended the text; "stop": a stop string did
}

// Sample writes the prompt and what the model makes of it to w, token by token,
// until there are as many as asked for or one of them ends the text.
func Sample(ctx context.Context, o Options, w io.Writer) error {
	return Many(ctx, o, []string{o.Prompt}, w, func(Answer) error { return nil })
}

// Many continues prompts, Batch of them at once, each as Sample does it alone, with the
// same seed. What it writes, and the order in which it calls told behind each, is that of
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
	if o.Tokens < m.Context { // memory for no more than is read
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

// precisions are the types that parameters and activations have, by name.
var precisions = map[string]device.DType{"": device.F32, "fp32": device.F32, "bf16": device.BF16}

// encodeAll is the ids of each prompt, and how many the longest has.
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

// encode is the prompt's ids, all of which the model knows: of the text, or of the
// conversation that the tokenizer's chat template makes of it.
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

// sampler is what continues texts.
type sampler struct {
	Options
	*Generator
	tok  data.Tokenizer
	ends []int32 // tokens that end a text
}

// all continues the prompts: as soon as one text ends, the next prompt takes its place.
// The first that is not told of yet is written as it comes, those behind it later.
func (o sampler) all(ctx context.Context, prompts []string, ids [][]int32, w io.Writer, told func(Answer) error) error {
	at, writings := make([]*writing, len(o.texts)), []*writing{} // by the generator's place; of the prompts, from the first that is not told of
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

// step adds a token to each text that has not ended.
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

// writing is a text that is being written.
type writing struct {
	Answer
	ids    []int32
	pick   chooser
	stream *data.Stream
	out    *output
	cut    *cutter // to out
	ended  bool
}

// output is where a text goes: it is kept, and shown from when it is its turn.
type output struct {
	prompt string
	text   strings.Builder
	w      io.Writer // nil until then
}

func (o *output) Write(p []byte) (int, error) {
	o.text.Write(p)
	if o.w == nil {
		return len(p), nil
	}
	return o.w.Write(p)
}

// show writes what there is, and from now on what comes.
func (o *output) show(w io.Writer) error {
	if o.w != nil {
		return nil
	}
	o.w = w
	_, err := io.WriteString(w, o.prompt+o.text.String())
	return err
}

// begin is a text before its first token.
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

// end writes what is left of a text.
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

// endsOfText are the tokens that end a text: eos_token_id of config.json and of
// generation_config.json in a model's folder, a number or a list, and what the
// tokenizer puts between documents.
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

// endsIn is the eos_token_id of a file, of at most 2 MiB.
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
