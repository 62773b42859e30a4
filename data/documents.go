package data

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"zeroth/data/chat"
	"zeroth/data/parquet"
	"zeroth/input"
	"zeroth/input/jsonread"
)

// Ignored is the target of a position that has no loss.
const Ignored = -1

// Documents are records: of JSON, one a line, plain or compressed with gzip or zstd, or
// rows of Parquet.
// Of a document the first Context+1 tokens count. A sample is one document, or several
// that are packed (see pack), and behind them padding without a loss. Documents are held
// in memory, five bytes a token.
//
// The formats, and the keys of a record by their usual names:
//
//	text    text                 all tokens are learned
//	prompt  prompt, completion   those of the completion, and the token that ends it
//	chat    messages             those of the assistant, see Chat.Example
type Documents struct {
	Files      []string          // patterns; empty: the source has text or tokens
	Validation []string          // patterns of those to validate on; empty: a fraction of Files
	Format     string            // "text", "prompt" or "chat"
	Keys       map[string]string // of records, by their usual names, where they have others
	Pack       bool              // several documents are a sample
	Weights    []float64         // of Files, one each: how much of the samples are theirs, see mixture; empty: each document counts alike
}

// maxLine is the bytes of a record, and shownLines how many broken ones are named.
const (
	maxLine    = 64 << 20
	shownLines = 20
)

// documents are the tokens of documents, one behind the other, those of a group (of a
// pattern that has a weight) together.
type documents struct {
	ids     []int32
	learn   []bool  // by token: it is to be predicted
	starts  []int64 // (documents+1) tokens before each, and in all
	learned []int32 // by document: its targets with a loss
	groups  []int32 // documents before the end of each group
}

func (d *documents) len() int { return len(d.learned) }

// positions is how many of a sample document i takes: its last token is a target alone.
func (d *documents) positions(i int32) int { return int(d.starts[i+1]-d.starts[i]) - 1 }

// fill writes document i to the beginning of a sample, and how many positions it takes.
func (d *documents) fill(input, target []int32, i int32) int {
	n := d.positions(i)
	ids, learn := d.ids[d.starts[i]:d.starts[i+1]], d.learn[d.starts[i]:d.starts[i+1]]
	copy(input, ids[:n])
	for k := range n {
		target[k] = Ignored
		if learn[k+1] {
			target[k] = ids[k+1]
		}
	}
	return n
}

// example is a document that was read, or why it was not.
type example struct {
	ids   []int32
	learn []bool
	err   error
}

// counts are what happened to documents on the way.
type counts struct{ cut, dropped, barren int64 }

// docReader makes examples of lines.
type docReader struct {
	Documents
	tok     fileTokenizer
	chat    *Chat // of the format chat
	context int
	vocab   int // ids are below it
}

// newDocReader finds what is wrong before a file is read.
func (s Source) newDocReader(tok Tokenizer) (*docReader, error) {
	d := &docReader{Documents: s.Documents, context: s.Context, vocab: s.limit(tok)}
	switch t := tok.(type) {
	case Bytes:
		d.tok = byteFiles{}
	case fileTokenizer:
		d.tok = t
	}
	if d.Format != "chat" {
		return d, nil
	}
	var err error
	if d.chat, err = NewChat(tok); err != nil {
		return nil, problem("format", "chat: %w", err)
	}
	return d, nil
}

// key is the name of a record's value.
func (d *docReader) key(usual string) string { return cmp.Or(d.Keys[usual], usual) }

// columns are the keys of a record that are read.
func (d *docReader) columns() []string {
	switch d.Format {
	case "chat":
		return []string{d.key("messages")}
	case "prompt":
		return []string{d.key("prompt"), d.key("completion")}
	}
	return []string{d.key("text")}
}

// example makes one of a record.
func (d *docReader) example(e partEncoder, l line) (x example) {
	record, err := l.record, l.wrong
	if l.text != nil {
		record, err = jsonread.Parse(l.text)
	}
	if err != nil {
		return example{err: err}
	}
	if record.Kind != jsonread.Object {
		return example{err: fmt.Errorf("%v, not an object", record.Kind)}
	}
	switch d.Format {
	case "chat":
		x = d.conversation(record)
	case "prompt":
		x = d.completion(e, record)
	default:
		text, err := d.text(record, "text")
		x = example{ids: d.encode(e, text), err: err}
		for range x.ids {
			x.learn = append(x.learn, true)
		}
	}
	for _, id := range x.ids {
		if int(id) >= d.vocab && x.err == nil {
			x.err = fmt.Errorf("it has the token %q, number %d, but the model knows only the first %d", d.tok.Decode([]int32{id}), id, d.vocab)
		}
	}
	return x
}

func (d *docReader) text(record jsonread.Value, usual string) (string, error) {
	key := d.key(usual)
	v := record.Get(key)
	switch v.Kind {
	case jsonread.String:
		return v.Text, nil
	case jsonread.None:
		return "", fmt.Errorf("it has no %q", key)
	}
	return "", fmt.Errorf("%q is %v, not a string", key, v.Kind)
}

// encode is a document's ids with what begins and ends it.
func (d *docReader) encode(e partEncoder, text string) []int32 {
	return signed(e.part(nil, task{text: []byte(text), first: true, last: true}))
}

func (d *docReader) completion(e partEncoder, record jsonread.Value) example {
	prompt, err := d.text(record, "prompt")
	answer, err2 := d.text(record, "completion")
	if err := cmp.Or(err, err2); err != nil {
		return example{err: err}
	}
	ids := d.encode(e, prompt+answer)
	head := signed(e.part(nil, task{text: []byte(prompt), first: true}))
	learn, n := make([]bool, len(ids)), 0
	for n < min(len(head), len(ids)) && head[n] == ids[n] {
		n++
	}
	for i := n; i < len(ids); i++ {
		learn[i] = true
	}
	return example{ids: ids, learn: learn}
}

func (d *docReader) conversation(record jsonread.Value) (x example) {
	key := d.key("messages")
	v, err := chat.FromJSON(record.Get(key))
	messages, ok := v.(*chat.List)
	if err == nil && !ok {
		err = fmt.Errorf("%q is not a list of messages", key)
	}
	if err != nil {
		return example{err: err}
	}
	x.ids, x.learn, x.err = d.chat.Example(messages)
	return x
}

// add keeps an example, as far as a sample has room for it.
func (d *documents) add(x example, context int, n *counts) {
	if len(x.ids) > context+1 {
		n.cut++
		n.dropped += int64(len(x.ids) - context - 1)
		x.ids, x.learn = x.ids[:context+1], x.learn[:context+1]
	}
	learned := int32(0)
	for i := 1; i < len(x.learn); i++ {
		if x.learn[i] {
			learned++
		}
	}
	if learned == 0 {
		n.barren++
		return
	}
	d.ids, d.learn = append(d.ids, x.ids...), append(d.learn, x.learn...)
	d.starts, d.learned = append(d.starts, int64(len(d.ids))), append(d.learned, learned)
}

// line is a record and where it is.
type line struct {
	file   string
	number int
	text   []byte         // of JSON; nil: there is
	record jsonread.Value // instead, of a row,
	wrong  error          // or why not
}

// size is about the bytes of it.
func (l line) size() int { return len(l.text) + sizeOf(l.record) }

func sizeOf(v jsonread.Value) int {
	n := 8 + len(v.Text)
	for _, x := range v.Items {
		n += sizeOf(x)
	}
	for _, p := range v.Pairs {
		n += sizeOf(p.Value)
	}
	return n
}

// batch is lines that are encoded at once.
type batch struct {
	lines    []line
	examples []example
	done     chan struct{}
}

// read adds the documents of files, in order, as the next group of all.
func (d *docReader) read(ctx context.Context, all *documents, files []file, memory int64, n *counts, m *meter) error {
	err := d.each(ctx, files, m, func(x example) error {
		all.add(x, d.context, n)
		if memory > 0 && int64(5*len(all.ids)) > memory {
			return fmt.Errorf("the documents take more than the %d bytes of memory that are free; give fewer", memory)
		}
		return nil
	})
	all.groups = append(all.groups, int32(all.len()))
	return err
}

// each encodes the documents of files on all cores and gives them to take in order,
// until that has an error, which then is this one's. All broken lines are counted, and
// the first named.
func (d *docReader) each(ctx context.Context, files []file, m *meter, take func(example) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work, order := make(chan *batch), make(chan *batch, 4*runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			e := d.tok.parts()
			for b := range work {
				for _, l := range b.lines {
					b.examples = append(b.examples, d.example(e, l))
				}
				close(b.done)
			}
		})
	}
	var reading error
	wg.Go(func() {
		reading = d.readLines(ctx, files, m, func(b *batch) { order <- b; work <- b })
		close(work)
		close(order)
	})
	var broken []error
	var taken error
	wrong := 0
	for b := range order {
		<-b.done
		for i, x := range b.examples {
			switch {
			case taken != nil:
			case x.err != nil:
				if wrong++; wrong <= shownLines {
					broken = append(broken, fmt.Errorf("%s:%d: %w", b.lines[i].file, b.lines[i].number, bare(x.err)))
				}
			default:
				if taken = take(x); taken != nil {
					cancel()
				}
			}
		}
	}
	wg.Wait()
	if taken != nil {
		return taken
	}
	if wrong > shownLines {
		broken = append(broken, fmt.Errorf("and %d lines more are broken", wrong-shownLines))
	}
	return errors.Join(append(broken, reading)...)
}

// bare is a JSON error without its line, which is always the first.
func bare(err error) error {
	if e := (*jsonread.Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// batchBytes is about how much is encoded at once.
const batchBytes = 1 << 18

// readLines hands out the lines of files that are not blank, and their rows.
func (d *docReader) readLines(ctx context.Context, files []file, m *meter, emit func(*batch)) error {
	b, size := &batch{done: make(chan struct{})}, 0
	flush := func() {
		if len(b.lines) > 0 {
			emit(b)
		}
		b, size = &batch{done: make(chan struct{})}, 0
	}
	for _, f := range files {
		read, err := d.eachLine(ctx, f, m, func(l line) {
			l.file = f.path
			b.lines = append(b.lines, l)
			if size += l.size(); size >= batchBytes {
				flush()
			}
		})
		if err != nil {
			return fmt.Errorf("%s: %w", f.path, input.Cause(err))
		}
		m.add(f.size - read)
	}
	flush()
	return ctx.Err()
}

// metered is a file whose meter hears what is read of it.
type metered struct {
	io.Reader
	m    *meter
	read int64 // bytes
}

func (r *metered) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.read += int64(n)
	r.m.add(int64(n))
	return n, err
}

// eachLine reads a file, of rows or of lines whatever they are compressed with, and
// returns how many bytes of it the meter has heard of.
func (d *docReader) eachLine(ctx context.Context, f file, m *meter, tell func(line)) (read int64, err error) {
	h, err := input.Open(f.path, math.MaxInt64)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	counted := &metered{h, m, 0}
	defer func() { read = counted.read }()
	head := bufio.NewReaderSize(counted, 1<<20)
	var r io.Reader = head
	switch magic, _ := head.Peek(4); {
	case string(magic) == "PAR1":
		return 0, parquet.Rows(ctx, h, f.size, d.columns(), func(row int, record jsonread.Value, wrong error) {
			tell(line{number: row, record: record, wrong: wrong})
		})
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		z, err := gzip.NewReader(head)
		if err != nil {
			return 0, err
		}
		r = z
	case string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(head, zstd.WithDecoderMaxMemory(1<<30), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return 0, err
		}
		defer z.Close()
		r = z
	}
	in := newLines(ctx, r)
	for in.Scan() {
		text := in.Bytes()
		if in.n == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff")) // the mark of UTF-8
		}
		if len(bytes.TrimSpace(text)) > 0 {
			tell(line{number: in.n, text: bytes.Clone(text)})
		}
	}
	return 0, in.wrong()
}

// sum is a fingerprint of what documents make of a run.
func (d *documents) sum(weights []float64) string {
	h := sha256.New()
	var b []byte
	for i, w := range weights {
		b = binary.LittleEndian.AppendUint32(b, uint32(d.groups[i]))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(w))
	}
	h.Write(b)
	for i := range d.len() {
		ids, learn := d.ids[d.starts[i]:d.starts[i+1]], d.learn[d.starts[i]:d.starts[i+1]]
		b = binary.LittleEndian.AppendUint32(b[:0], uint32(len(ids)))
		for k, id := range ids {
			x := uint32(id) << 1
			if learn[k] {
				x |= 1
			}
			b = binary.LittleEndian.AppendUint32(b, x)
		}
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}
