package generate

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/internal/input"
	"zeroth/internal/machine"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Generator runs a model forward on this machine, on one rank, over several texts. It caches the
// queries, keys and values of each token as long as the tokens before it do not change.
type Generator struct {
	dev      setup.Device
	host     setup.Device  // dev if the host can address its memory
	queues   []setup.Queue // compute, comm
	runner   *fsdp.Runner
	held     []func() // free the allocated memory
	dtype    device.DType
	ids      device.Window // (Rows) int32: the new tokens of a pass
	logits   device.Window // (texts, Vocab) float32
	texts    []known
	context  int
	longFrom int // see nn.Model
	computed int // positions, over all passes
}

// known is the cached state of a text: its tokens, and the queries, keys and values at their
// positions; see nn.Sequence.
type known struct {
	ids   []int32
	long  bool // computed for a text longer than nn.Model.LongFrom
	cache []device.Buffer
}

// newGenerator builds a model with the parameters of a source on a backend, for the given number
// of concurrent texts. The caller must close it.
func newGenerator(from *Source, m hf.Model, b setup.Backend, dtype device.DType, texts int) (*Generator, error) {
	weights, err := from.Weights(m)
	if err != nil {
		return nil, err
	}
	defer weights.Close()
	dry, err := open(m, setup.Counting(b), dtype, texts, nil)
	if err != nil {
		return nil, err
	}
	dry.tryPasses()
	if _, here := b.(setup.CPU); here { // other backends have their own memory and report when it is full
		err = dry.fits(machine.Machine().Free)
	}
	if err != nil {
		return nil, err
	}
	g, err := open(m, b, dtype, texts, dry.runner.Peaks())
	if err == nil {
		err = g.load(weights.Fill)
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// open opens devices and queues, allocates memory and builds the runner. The caller must close the
// partial generator returned with an error, too. arenas has the bytes of the runner's arenas; nil: on
// devices that only count.
func open(m hf.Model, b setup.Backend, dtype device.DType, texts int, arenas []int) (*Generator, error) {
	g := &Generator{dtype: dtype, context: m.Context, texts: make([]known, texts)}
	err := g.openOn(b, m)
	if err == nil {
		err = g.allocate(m)
	}
	if err != nil {
		return g, err
	}
	cfg := fsdp.Config{Device: g.dev, Compute: g.queues[0], Comm: g.queues[1], DType: dtype,
		Model: m.Network(nn.LoRA{}), Policy: zero.Stage(0).Policy(0, nn.RecomputeNone), Arenas: arenas}
	cfg.Units = fsdp.LayOut(cfg.Model, cfg.Policy, 1, func(nn.Unit) fsdp.Groups { // no peers
		return fsdp.Groups{Shard: collective.Dry{Of: 1}, Replica: collective.Dry{Of: 1}}
	})
	g.runner, err = fsdp.New(cfg)
	return g, err
}

// rows returns the maximum number of positions in a pass: all of one text, or one of each.
func (g *Generator) rows() int { return max(g.context, len(g.texts)) }

// tryPasses issues the two largest passes: a whole text, and a position of each text.
func (g *Generator) tryPasses() {
	each := make([]nn.Sequence, len(g.texts))
	for i := range each {
		each[i].T = 1
	}
	for _, p := range [][]nn.Sequence{{{T: g.context}}, each} {
		rows := 0
		for _, s := range p {
			rows += s.T
		}
		logits := g.logits.Device.Slice(0, len(p)*(g.logits.Device.N/len(g.texts)))
		forward(g.runner, &nn.Batch{B: 1, T: rows, Compute: g.dtype, Input: g.ids.Device.Slice(0, rows), Logits: logits, Sequences: p})
	}
}

// fits returns an error if the generator needs more than the given bytes, or if that is 0, which is
// unknown, nil.
func (g *Generator) fits(free int64) error {
	var params, cache int64
	for _, u := range g.runner.Units {
		params += int64(u.Param.Bytes())
	}
	for _, t := range g.texts {
		for _, b := range t.cache {
			cache += int64(b.Bytes())
		}
	}
	arena := int64(g.runner.Peaks()[0]) // work space; no activations are saved
	if free > 0 && params+cache+arena > free {
		return input.BadInput(fmt.Errorf("the model needs %s, %d texts of up to %d tokens another %s, but only %s are free; want fewer tokens, or fewer texts at once (--batch)",
			show.ByteSize(params+arena), len(g.texts), g.context, show.ByteSize(cache), show.ByteSize(free)))
	}
	return nil
}

// forward runs a batch forward without saving activations.
func forward(r *fsdp.Runner, bt *nn.Batch) { r.Forward(r.Flight(0, 0), bt, 0, device.Buffer{}, false) }

// openOn opens the devices and queues.
func (g *Generator) openOn(b setup.Backend, m hf.Model) (err error) {
	s := setup.Sizes(m, m.Network(nn.LoRA{}), g.rows())
	s.Type = g.dtype
	if g.dev, err = b.Open(0, runtime.GOMAXPROCS(0), s, 0); err != nil {
		return err
	}
	if g.host = g.dev; b.HostApart() {
		if g.host, err = b.OpenHost(0, 1); err != nil {
			return err
		}
	}
	g.queues = []setup.Queue{g.dev.NewQueue(setup.Compute), g.dev.NewQueue(setup.Comm)}
	return nil
}

// allocate allocates memory for token ids, logits and the cache.
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
	g.ids, g.logits = window(device.I32, g.rows(), device.Inputs), window(device.F32, len(g.texts)*m.Vocab, device.Stats)
	net := m.Network(nn.LoRA{})
	g.longFrom = net.LongFrom
	for i := range g.texts {
		for range net.Blocks {
			b, err := g.dev.Alloc(g.dtype, g.context*net.QKV, device.Activations)
			errs = append(errs, err)
			if err == nil {
				g.held = append(g.held, func() { g.dev.Free(b) })
			}
			g.texts[i].cache = append(g.texts[i].cache, b)
		}
	}
	return errors.Join(errs...)
}

// load loads the parameters.
func (g *Generator) load(fill func(zero.Part, []float32) error) error {
	for _, u := range g.runner.Units {
		for _, p := range u.Layout.Params {
			if err := g.set(p, u.Param.Slice(p.At.Lo, p.At.Hi), fill); err != nil {
				return err
			}
		}
	}
	return nil
}

// set loads a parameter in pieces.
func (g *Generator) set(p shard.Param, to device.Buffer, fill func(zero.Part, []float32) error) error {
	const most = 1 << 20 // elements
	src, err := device.OpenWindow(g.dev, g.host, device.F32, min(most, p.Numel()), device.Snapshot)
	if err != nil {
		return err
	}
	defer device.FreeWindow(g.dev, g.host, src)
	for lo := 0; lo < p.Numel(); lo += most {
		hi := min(p.Numel(), lo+most)
		x := src.Host.Slice(0, hi-lo).F32()
		if err := fill(zero.Part{Param: p, Kind: zero.Master, At: shard.Range{Lo: lo, Hi: hi}}, x); err != nil {
			return err
		}
		if i := slices.IndexFunc(x, notFinite); i >= 0 {
			return input.BadInput(fmt.Errorf("element %d of %s is %v: a model with such a parameter gives no usable output", lo+i, p.Name, x[i]))
		}
		q := g.queues[0]
		src.Send(q)
		q.Cast(to.Slice(lo, hi), src.Device.Slice(0, hi-lo))
		if err := q.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func notFinite(x float32) bool { return x-x != 0 }

// Next returns the logits of the token after each text, or after its last Context tokens; nil for
// an empty text. The next call overwrites them. A text is identified by its index, under which the
// next call finds its cache. A text with several new tokens is computed in a pass of its own, and
// texts with one new token share a pass. The bits do not depend on the other texts.
func (g *Generator) Next(texts [][]int32) (logits [][]float32, err error) {
	logits = make([][]float32, len(texts))
	var one []int
	done := 0
	pass := func(which ...int) error {
		if err := g.pass(texts, which, done); err != nil {
			return err
		}
		vocab := g.logits.Host.N / len(g.texts)
		for _, i := range which {
			logits[i] = g.logits.Host.Slice(done*vocab, (done+1)*vocab).F32()
			done++
		}
		return nil
	}
	for i, ids := range texts {
		if len(ids) == 0 {
			continue
		}
		if g.recall(i, g.window(ids)); len(g.window(ids)) == len(g.texts[i].ids)+1 {
			one = append(one, i)
		} else if err := pass(i); err != nil {
			return nil, err
		}
	}
	if len(one) > 0 {
		if err := pass(one...); err != nil {
			return nil, err
		}
	}
	return logits, nil
}

// window returns the end of a text that the model reads.
func (g *Generator) window(ids []int32) []int32 { return ids[max(0, len(ids)-g.context):] }

// long reports whether a text uses the rotary positions of long texts.
func (g *Generator) long(ids []int32) bool { return g.longFrom > 0 && len(ids) > g.longFrom }

// common returns the number of a text's tokens that are cached in t. Its last token does not
// count, because it is always computed.
func (g *Generator) common(t *known, ids []int32) (n int) {
	if t.long != g.long(ids) {
		return 0
	}
	for n < min(len(t.ids), len(ids)-1) && t.ids[n] == ids[n] {
		n++
	}
	return n
}

// recall cuts the cache of text i to its common prefix with ids. If another text shares a longer
// prefix, its cache is copied.
func (g *Generator) recall(i int, ids []int32) {
	t := &g.texts[i]
	n, from := g.common(t, ids), i
	if n < len(ids)-1 {
		for j := range g.texts {
			if m := g.common(&g.texts[j], ids); m > n {
				n, from = m, j
			}
		}
	}
	if from != i {
		for l, to := range t.cache {
			part := g.texts[from].cache[l].Slice(0, n*(to.N/g.context))
			g.queues[0].Cast(to.Slice(0, part.N), part)
		}
	}
	t.ids, t.long = append(t.ids[:0], ids[:n]...), g.long(ids)
}

// pass computes the new tokens of some texts, and stores the logits after them from index at on.
func (g *Generator) pass(texts [][]int32, which []int, at int) error {
	q, vocab := g.queues[0], g.logits.Host.N/len(g.texts)
	bt := nn.Batch{B: 1, Compute: g.dtype, Logits: g.logits.Device.Slice(at*vocab, (at+len(which))*vocab)}
	for _, i := range which {
		t, ids := &g.texts[i], g.window(texts[i])
		s := nn.Sequence{Past: len(t.ids), T: len(ids) - len(t.ids), Cache: t.cache}
		copy(g.ids.Host.I32()[bt.T:], ids[s.Past:])
		bt.T, bt.Sequences = bt.T+s.T, append(bt.Sequences, s)
		t.ids = append(t.ids, ids[s.Past:]...)
	}
	g.computed += bt.T
	g.ids.Send(q)
	bt.Input = g.ids.Device.Slice(0, bt.T)
	forward(g.runner, &bt)
	g.logits.Fetch(q)
	return q.Wait()
}

// Close closes the queues and frees all memory.
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
