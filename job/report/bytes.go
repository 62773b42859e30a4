package report

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"zeroth/internal/show"
)

// Bytes shows the progress of work over many bytes: a bar on a terminal, otherwise a line
// every few seconds.
type Bytes struct {
	w     io.Writer
	verb  string
	total int64
	begin time.Time
	p     *mpb.Progress // nil without a bar
	bar   *mpb.Bar

	mu   sync.Mutex // guards the fields below
	done int64
	next time.Time // time of the next line
}

// linePace is the time before the first line and between lines.
const linePace = 2 * time.Second

// NewBytes starts the progress of work over total bytes, named by a verb such as "verify".
func NewBytes(out io.Writer, verb string, total int64) *Bytes {
	if terminal(out) {
		return newBytesBar(out, verb, total)
	}
	return newBytes(out, verb, total)
}

// terminal reports whether out can show a bar.
func terminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

func newBytes(out io.Writer, verb string, total int64) *Bytes {
	now := time.Now()
	return &Bytes{w: out, verb: verb, total: total, begin: now, next: now.Add(linePace)}
}

func newBytesBar(out io.Writer, verb string, total int64) *Bytes {
	b := newBytes(out, verb, total)
	b.p = mpb.New(mpb.WithOutput(out), mpb.WithAutoRefresh())
	b.bar = b.p.New(total, mpb.BarStyle(), mpb.BarWidth(barWidth(out)),
		mpb.PrependDecorators(decor.Any(func(s decor.Statistics) string { return b.verb + " " + b.far(s.Current) })),
		mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string { return b.speed(s.Current) })))
	return b
}

// far describes how much is done.
func (b *Bytes) far(done int64) string {
	return fmt.Sprintf("%s / %s", show.BriefSize(done), show.BriefSize(b.total))
}

func (b *Bytes) speed(done int64) string {
	return fmt.Sprintf("%.2f GB/s", float64(done)/1e9/max(time.Since(b.begin).Seconds(), 1e-6))
}

// Add counts bytes that are done. Any goroutine may call it.
func (b *Bytes) Add(n int64) {
	if b.bar != nil {
		b.bar.IncrInt64(n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done += n
	if now := time.Now(); b.bar == nil && now.After(b.next) {
		b.next = now.Add(linePace)
		fmt.Fprintf(b.w, "%s: %s, %s\n", b.verb, b.far(b.done), b.speed(b.done))
	}
}

// Close removes the bar and returns the amount and the time: "1.5 GB in 2.0s, 0.75 GB/s".
func (b *Bytes) Close() string {
	if b.bar != nil {
		b.bar.Abort(true)
		b.p.Wait()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	took := time.Since(b.begin)
	words := show.Span(took.Seconds())
	if took < time.Second {
		words = took.Round(time.Millisecond).String()
	}
	return fmt.Sprintf("%s in %s, %s", show.BriefSize(b.done), words, b.speed(b.done))
}

// Age returns the time since t in words.
func Age(t time.Time) string {
	return show.Span(max(0, time.Since(t).Seconds()))
}
