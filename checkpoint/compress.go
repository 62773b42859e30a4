package checkpoint

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Compression selects whether tensors are encoded with the codec "planes".
type Compression uint8

const (
	Never  Compression = iota
	Always             // except blocks that do not shrink
	Auto               // if a Tuner finds that it pays off
)

// ParseCompression parses "never", "always" or "auto".
func ParseCompression(s string) (Compression, error) {
	for c, name := range compressionNames {
		if s == name {
			return Compression(c), nil
		}
	}
	return 0, fmt.Errorf("compress: %q; want never, always or auto", s)
}

var compressionNames = []string{"never", "always", "auto"}

func (c Compression) String() string { return compressionNames[c] }

// compresses reports whether a tensor is encoded in this save.
func (o Options) compresses(t Tensor) bool {
	return o.Compress == Always || o.Compress == Auto && o.Tuner.pays(t)
}

const (
	sampleBlocks = 4    // blocks encoded for measuring, per kind of tensor and save
	sampleWorth  = 0.95 // ratio of stored to raw bytes above which tensors stay raw
)

// Tuner decides which kinds of tensors to compress. During a save it measures the speed of the
// storage, and the speed and ratio of encoding each kind of tensor; the next save encodes the
// kinds that shrink by 5 % or more, if the codec is faster than the storage. So the first save
// is raw. One Tuner serves all writers of a process. The zero Tuner is ready to use; a nil one
// measures nothing.
type Tuner struct {
	mu      sync.Mutex
	kinds   map[tensorClass]*tally
	nonce   string               // identifies the save being measured
	start   time.Time            // when its first writer began
	bytes   int64                // made durable by its writers
	took    time.Duration        // until the last of them were durable
	workers int                  // of all writers
	encoded bool                 // some extents were encoded, so its speed is not the storage's
	storage float64              // bytes per second of all writers in the last raw save
	threads int                  // that could encode in that save: at most one per processor
	chosen  map[tensorClass]bool // kinds that the save being measured encodes
}

// tensorClass identifies a kind of tensors measured together.
type tensorClass struct {
	kind  string
	dtype DType
}

type tally struct {
	raw, stored int64         // bytes
	spent       time.Duration // encoding time in one goroutine
	blocks      int           // encoded in this save
}

// begin registers a writer of a save.
func (t *Tuner) begin(nonce string, workers int) saveClock {
	c := saveClock{nonce, time.Now()}
	if t == nil {
		return c
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if nonce != t.nonce {
		t.measure()
		t.chosen = map[tensorClass]bool{}
		for id, k := range t.kinds {
			k.blocks = 0
			t.chosen[id] = t.verdict(k).Pays
		}
		t.nonce, t.start, t.bytes, t.workers, t.encoded = nonce, c.start, 0, 0, false
	}
	t.workers += workers
	return c
}

// end records that a writer has made the files of a part durable.
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

// measure computes the storage's speed from the last save if that was raw and all its writers have
// finished. The caller holds mu.
func (t *Tuner) measure() {
	if t.encoded || t.bytes == 0 {
		return
	}
	t.storage = float64(t.bytes) / t.took.Seconds()
	t.threads = min(t.workers, runtime.GOMAXPROCS(0))
}

// sample measures encoding the first block of a chunk, a few times per kind and save.
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
		t.kinds = map[tensorClass]*tally{}
	}
	k := t.kinds[tensorClass{x.Kind, x.DType}]
	if k == nil {
		k = &tally{}
		t.kinds[tensorClass{x.Kind, x.DType}] = k
	}
	k.blocks++
	return k.blocks <= sampleBlocks
}

func (t *Tuner) add(x Tensor, raw, stored int, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.kinds[tensorClass{x.Kind, x.DType}]
	k.raw, k.stored, k.spent = k.raw+int64(raw), k.stored+int64(stored), k.spent+d
}

func (t *Tuner) pays(x Tensor) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.chosen[tensorClass{x.Kind, x.DType}]
}

// Verdict is the decision of a Tuner on a kind of tensor, with its measurements.
type Verdict struct {
	Kind    string
	DType   DType
	Ratio   float64 // stored/raw bytes
	Codec   float64 // bytes of raw data per second, all threads
	Storage float64 // bytes per second
	Pays    bool
}

// verdict returns the decision for a tally. The caller holds mu.
func (t *Tuner) verdict(k *tally) Verdict {
	if k == nil || k.raw == 0 || t.storage == 0 {
		return Verdict{}
	}
	v := Verdict{Ratio: float64(k.stored) / float64(k.raw), Storage: t.storage}
	v.Codec = float64(k.raw) / max(k.spent.Seconds(), 1e-9) * float64(max(1, t.threads))
	v.Pays = v.Ratio <= sampleWorth && v.Codec > v.Storage
	return v
}
