package checkpoint

import (
	"fmt"
	"runtime"
	"sort"
	"sync"
	"time"
)

// Compression says when tensors are stored in the codec "planes".
type Compression uint8

const (
	Never  Compression = iota
	Always             // blocks that do not shrink stay raw
	Auto               // where a Tuner finds that it pays
)

// ParseCompression reads "never", "always" or "auto".
func ParseCompression(s string) (Compression, error) {
	for c, name := range compressionNames {
		if s == name {
			return Compression(c), nil
		}
	}
	return 0, fmt.Errorf("compress: %q; never, always and auto are known", s)
}

var compressionNames = []string{"never", "always", "auto"}

func (c Compression) String() string { return compressionNames[c] }

// compresses is whether a tensor is encoded in this save.
func (o Options) compresses(t Tensor) bool {
	return o.Compress == Always || o.Compress == Auto && o.Tuner.pays(t)
}

const (
	sampleBlocks = 4    // encoded per kind of tensor and save, to measure
	sampleWorth  = 0.95 // of stored to raw bytes: above it, raw is kept
)

// Tuner measures, while a save runs, how fast the storage takes raw or encoded
// bytes and how fast and how well each kind of tensor encodes, and from that
// decides what the next save encodes: kinds that shrink by 5 % or more, if the
// codec is faster than the storage. So the first save is raw. One Tuner serves
// all writers of a process; the zero Tuner is ready, a nil one measures
// nothing.
type Tuner struct {
	mu      sync.Mutex
	kinds   map[kindOf]*tally
	nonce   string          // of the save being measured
	start   time.Time       // of its first writer
	bytes   int64           // that its writers have made durable
	took    time.Duration   // from start to when the last of them had
	workers int             // of its writers
	encoded bool            // it has encoded extents: its speed is not the storage's
	storage float64         // bytes a second of the last raw save before it, all writers
	threads int             // that could encode in that, at most one per processor
	chosen  map[kindOf]bool // what the save being measured encodes
}

// kindOf is what tensors are alike by.
type kindOf struct {
	kind  string
	dtype DType
}

type tally struct {
	raw, stored int64         // bytes
	spent       time.Duration // by one goroutine
	blocks      int           // in this save
}

// begin notes a writer of a save.
func (t *Tuner) begin(nonce string, workers int) saveClock {
	c := saveClock{nonce, time.Now()}
	if t == nil {
		return c
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if nonce != t.nonce {
		t.measure()
		t.chosen = map[kindOf]bool{}
		for id, k := range t.kinds {
			k.blocks = 0
			t.chosen[id] = t.verdict(k).Pays
		}
		t.nonce, t.start, t.bytes, t.workers, t.encoded = nonce, c.start, 0, 0, false
	}
	t.workers += workers
	return c
}

// end notes that a writer has made the files of a part durable.
func (t *Tuner) end(c saveClock, p *part) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.nonce != t.nonce {
		return
	}
	t.bytes += p.bytes()
	t.took = time.Since(t.start)
	t.encoded = t.encoded || p.encoded()
}

// measure learns the storage's speed from a save whose writers have all ended,
// if it was raw. Under mu.
func (t *Tuner) measure() {
	if t.encoded || t.bytes == 0 {
		return
	}
	t.storage = float64(t.bytes) / t.took.Seconds()
	t.threads = min(t.workers, runtime.GOMAXPROCS(0))
}

// sample encodes the first block of a chunk to learn about its kind, a few
// times per save.
func (t *Tuner) sample(c *coder, x Tensor, data []byte) {
	if t == nil || len(data) < blockBytes/4 || !t.wants(x) {
		return
	}
	raw := data[:min(len(data), blockBytes)]
	start := time.Now()
	n := len(c.encode(make([]byte, 0, len(raw)+1), raw, x.DType))
	t.add(x, len(raw), n, time.Since(start))
}

func (t *Tuner) wants(x Tensor) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kinds == nil {
		t.kinds = map[kindOf]*tally{}
	}
	k := t.kinds[kindOf{x.Kind, x.DType}]
	if k == nil {
		k = &tally{}
		t.kinds[kindOf{x.Kind, x.DType}] = k
	}
	k.blocks++
	return k.blocks <= sampleBlocks
}

func (t *Tuner) add(x Tensor, raw, stored int, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.kinds[kindOf{x.Kind, x.DType}]
	k.raw, k.stored, k.spent = k.raw+int64(raw), k.stored+int64(stored), k.spent+d
}

func (t *Tuner) pays(x Tensor) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.chosen[kindOf{x.Kind, x.DType}]
}

// Verdict is what a Tuner has found out about a kind of tensor.
type Verdict struct {
	Kind    string
	DType   DType
	Ratio   float64 // stored/raw bytes
	Codec   float64 // bytes of raw data a second, all threads
	Storage float64 // bytes a second
	Pays    bool
}

// verdict of a tally, under mu.
func (t *Tuner) verdict(k *tally) Verdict {
	if k == nil || k.raw == 0 || t.storage == 0 {
		return Verdict{}
	}
	v := Verdict{Ratio: float64(k.stored) / float64(k.raw), Storage: t.storage}
	v.Codec = float64(k.raw) / max(k.spent.Seconds(), 1e-9) * float64(max(1, t.threads))
	v.Pays = v.Ratio <= sampleWorth && v.Codec > v.Storage
	return v
}

// Verdicts is what was found for each kind, for people to read after a save.
func (t *Tuner) Verdicts() []Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.measure()
	var out []Verdict
	for id, k := range t.kinds {
		v := t.verdict(k)
		v.Kind, v.DType = id.kind, id.dtype
		out = append(out, v)
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].Kind+string(out[i].DType) < out[j].Kind+string(out[j].DType)
	})
	return out
}
