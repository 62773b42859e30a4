package generate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"zeroth/collective"
	"zeroth/data"
	"zeroth/device"
	"zeroth/device/dry"
	"zeroth/fsdp"
	"zeroth/input"
	"zeroth/job/build"
	"zeroth/job/config"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
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

// Many continues one prompt after the other, each as Sample does it alone, with the
// same seed, and calls told behind each.
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
	ends := endsOfText(src.folder, tok)
	if o.Tokens < m.Context { // memory for no more than is read
		m.Context, m.Longest = min(m.Context, longest+o.Tokens), m.Context
	}
	b, err := build.For(o.Device, m)
	if err != nil {
		return err
	}
	g, err := newGenerator(src, m, b)
	if err != nil {
		return err
	}
	defer g.Close()
	s := sampler{o, g, tok, ends}
	for i, prompt := range prompts {
		a, err := s.answer(ctx, prompt, ids[i], w)
		if err == nil {
			err = told(a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

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
			o.Note(fmt.Sprintf("%s has %d tokens, and the model reads at most %d: it goes on from the last %d", which, len(these), m.Context, m.Context))
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
	c, err := data.NewChat(tok)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--chat: %w", err))
	}
	messages := []data.Message{{Role: "user", Content: o.Prompt}}
	if o.System != "" {
		messages = slices.Insert(messages, 0, data.Message{Role: "system", Content: o.System})
	}
	ids, err := c.Prompt(messages, time.Now())
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--chat: %w", err))
	}
	return ids, config.Known(tok, ids, vocab)
}

// sampler is what continues a text.
type sampler struct {
	Options
	*Generator
	tok  data.Tokenizer
	ends []int32 // tokens that end it
}

// answer writes a prompt, unless it is what a user says, and what follows it.
func (o sampler) answer(ctx context.Context, prompt string, ids []int32, w io.Writer) (Answer, error) {
	if !o.Chat {
		if _, err := io.WriteString(w, prompt); err != nil {
			return Answer{}, err
		}
	}
	var text strings.Builder
	a, err := o.goOn(ctx, ids, &cutter{w: io.MultiWriter(w, &text), stops: o.Stop})
	a.Prompt, a.Text = prompt, text.String()
	return a, err
}

// goOn writes the text of the tokens that follow ids, and counts them.
func (o sampler) goOn(ctx context.Context, ids []int32, w *cutter) (a Answer, err error) {
	pick := chooser{temperature: o.Temperature, topK: o.TopK, topP: o.TopP, rng: rand.New(rand.NewPCG(o.Seed, 0))}
	text := data.NewStream(o.tok, ids)
	for a.Reason = "length"; a.Tokens < o.Tokens && !w.done; a.Tokens++ {
		if err := ctx.Err(); err != nil {
			return a, context.Cause(ctx)
		}
		ids = append(ids[:0], ids[max(0, len(ids)-o.ids.Host.N):]...)
		logits, err := o.Next(ids)
		if err != nil {
			return a, err
		}
		logits = logits[:min(len(logits), o.tok.Vocab())]
		if i := slices.IndexFunc(logits, func(x float32) bool { return x != x || math.IsInf(float64(x), 0) }); i >= 0 {
			return a, fmt.Errorf("the model's output for token %d is %v: its parameters are no longer numbers one can compute with", i, logits[i])
		}
		id := pick.choose(logits)
		if slices.Contains(o.ends, id) {
			o.Note(fmt.Sprintf("the text ends after %d of %d tokens, by token %d %q", a.Tokens, o.Tokens, id, o.tok.Decode([]int32{id})))
			a.Reason = "eos"
			break
		}
		ids = append(ids, id)
		if _, err := w.Write(text.Next(id)); err != nil {
			return a, err
		}
	}
	if _, err = w.Write(text.Rest()); err == nil {
		err = w.Close()
	}
	if w.done {
		a.Reason = "stop"
	}
	return a, err
}

// endsOfText are the tokens that end a text: eos_token_id of config.json and of
// generation_config.json in a model's folder, a number or a list, and what the
// tokenizer puts between documents.
func endsOfText(folder string, tok data.Tokenizer) (ends []int32) {
	for _, name := range []string{"config.json", "generation_config.json"} {
		var c struct {
			EOS json.RawMessage `json:"eos_token_id"`
		}
		raw, err := input.Read(filepath.Join(folder, name), 1<<20)
		if err != nil || json.Unmarshal(raw, &c) != nil {
			continue // there is none, or it says nothing of this
		}
		var one int32
		var list []int32
		if json.Unmarshal(c.EOS, &one) == nil && string(c.EOS) != "null" {
			ends = append(ends, one)
		} else if json.Unmarshal(c.EOS, &list) == nil {
			ends = append(ends, list...)
		}
	}
	if s := tok.Separator(); s >= 0 {
		ends = append(ends, s)
	}
	return ends
}

// Generator runs a model forward on this machine, on one rank, in float32. It
// computes a token's queries, keys and values once, as long as those before it
// stay where they are.
type Generator struct {
	dev    build.Device
	host   build.Device  // dev, where the host may address its memory
	queues []build.Queue // compute, comm
	runner *fsdp.Runner
	Batch  nn.Batch
	held   []func()      // give back what is allocated
	ids    device.Window // (Context) int32: those that batch.Cache is of
	known  int           // of ids, from the first
	logits device.Window // (Vocab) float32
}

// newGenerator builds a model with the parameters of a source on a backend. It is the caller's
// to close.
func newGenerator(from *source, m hf.Model, b build.Backend) (*Generator, error) {
	fill, end, err := from.parameters(m)
	if err != nil {
		return nil, err
	}
	defer end()
	g, err := openOn(b, m)
	if err == nil {
		err = g.allocate(m)
	}
	if err == nil {
		err = g.open(m, fill)
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// openOn opens the devices and queues of a generator.
func openOn(b build.Backend, m hf.Model) (g *Generator, err error) {
	g = &Generator{}
	s := device.Sizes{Rows: m.Context, Width: max(m.Width, m.Heads*m.Head()), Vocab: m.Vocab, Attn: device.Attn{T: m.Context, D: m.Head()}, Rope: m.Family == "llama"}
	for _, p := range hf.Parameters(m.Network()) {
		s.Widest = max(s.Widest, slices.Max(p.Shape))
	}
	if g.dev, err = b.Open(0, runtime.GOMAXPROCS(0), s, 0); err != nil {
		return g, err
	}
	if g.host = g.dev; b.HostApart() {
		if g.host, err = b.OpenHost(0, 1); err != nil {
			return g, err
		}
	}
	g.queues = []build.Queue{g.dev.NewQueue("compute"), g.dev.NewQueue("comm")}
	return g, nil
}

// allocate takes memory for token ids, logits and the cache.
func (g *Generator) allocate(m hf.Model) error {
	var errs []error
	window := func(t device.DType, n int, use device.Use) device.Window {
		w, err := device.OpenWindow(g.dev, g.host, t, n, use)
		errs = append(errs, err)
		if err == nil {
			g.held = append(g.held, func() { device.FreeWindow(g.dev, g.host, w) })
		}
		return w
	}
	g.ids, g.logits = window(device.I32, m.Context, device.Inputs), window(device.F32, m.Vocab, device.Stats)
	g.Batch = nn.Batch{B: 1, T: m.Context, Compute: device.F32, Input: g.ids.Device, Logits: g.logits.Device}
	net := m.Network()
	for range net.Blocks {
		b, err := g.dev.Alloc(device.F32, m.Context*net.QKV, device.Activations)
		errs = append(errs, err)
		if err == nil {
			g.held = append(g.held, func() { g.dev.Free(b) })
		}
		g.Batch.Cache = append(g.Batch.Cache, b)
	}
	return errors.Join(errs...)
}

// open builds the forward-only runner, with an arena of the size a dry one
// has used, and sets its parameters.
func (g *Generator) open(m hf.Model, fill func(zero.Part, []float32) error) error {
	cfg := fsdp.Config{
		Device: &dry.Device{}, Compute: dry.Queue{}, Comm: dry.Queue{},
		Model: m.Network(), Policy: zero.Stage(0).Policy(0, false), ArenaSize: math.MaxInt / 2,
	}
	alone := func(string) fsdp.Groups { // nobody to exchange with
		return fsdp.Groups{Shard: collective.Dry{Of: 1}, Replica: collective.Dry{Of: 1}}
	}
	cfg.Units = fsdp.LayOut(cfg.Model, cfg.Policy, alone)
	dry, err := fsdp.New(cfg)
	if err != nil {
		return err
	}
	dry.Forward(&g.Batch, false)
	cfg.ArenaSize = dry.ArenaPeak()
	cfg.Units = fsdp.LayOut(cfg.Model, cfg.Policy, alone)
	cfg.Device, cfg.Compute, cfg.Comm = g.dev, g.queues[0], g.queues[1]
	if g.runner, err = fsdp.New(cfg); err != nil {
		return err
	}
	for _, u := range g.runner.Units {
		for _, p := range u.Layout.Params {
			part := zero.Part{Param: p, Kind: zero.Master, At: shard.Range{Hi: p.Numel()}}
			w := device.Onto(u.Param.Slice(p.At.Lo, p.At.Hi), func(n int) device.Buffer { return device.OfF32(make([]float32, n)) })
			if err := fill(part, w.Host.F32()); err != nil {
				return err
			}
			w.Send(g.queues[0])
			if err := g.queues[0].Wait(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Next is the logits of the token after ids, or after the last Context of
// them. It is overwritten by the next call.
func (g *Generator) Next(ids []int32) ([]float32, error) {
	ids = ids[max(0, len(ids)-g.ids.Host.N):]
	seen, b, q := g.ids.Host.I32(), &g.Batch, g.queues[0]
	known := 0 // positions at which nothing changes; the last is computed in any case
	for known < min(g.known, len(ids)-1) && ids[known] == seen[known] {
		known++
	}
	g.known = copy(seen, ids)
	g.ids.Send(q)
	b.Past, b.T, b.Input = known, len(ids)-known, g.ids.Device.Slice(known, len(ids))
	b.At = b.T - 1
	g.runner.Forward(b, false)
	g.logits.Fetch(q)
	return g.logits.Host.F32(), q.Wait()
}

// Close ends the queues and gives back all memory.
func (g *Generator) Close() {
	for _, q := range g.queues {
		q.Close()
	}
	if g.runner != nil {
		g.runner.Free()
	}
	for _, free := range g.held {
		free()
	}
	if g.host != nil && g.host != g.dev {
		g.host.Close()
	}
	if g.dev != nil {
		g.dev.Close()
	}
}
