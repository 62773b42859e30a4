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
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"zeroth/data/parquet"
	"zeroth/internal/input"
	"zeroth/internal/input/jsonread"
)

// The targets of positions without a loss: those of Padding belong to no document.
const (
	Ignored = -1
	Padding = -2
)

// Documents configures training on records: JSON, one per line, plain or compressed with
// gzip or zstd, or rows of Parquet. Only the first Context+1 tokens of a document are used.
// A sample is one document, or several packed ones (see pack), followed by padding without a
// loss. Documents are held in memory, with five bytes per token.
//
// The formats, and the default keys of their records:
//
//	text    text                 all tokens are learned
//	prompt  prompt, completion   the completion is learned, with the token that ends it
//	chat    messages             the assistant's messages are learned, see Chat.Examples
type Documents struct {
	Files      []string          // patterns; empty if the source is text or tokens
	Validation []string          // patterns of validation files; if empty, a fraction of Files is used
	Format     string            // "text", "prompt" or "chat"
	Keys       map[string]string // keys of the records by their default names, if they differ
	Learn      string            // of chats: "assistant", "last" or "all", see Chat.Examples; "" is assistant
	Date       time.Time         // that chat templates see
	Pack       bool              // a sample may contain several documents
	Most       int               // records of each file, the first ones; 0: all
	Skip       bool              // documents longer than a sample are left out instead of cut
	Weights    []float64         // relative frequency of samples from each of Files, see mixture; if empty, all documents count equally
}

// maxLine is the maximum size of a record in bytes, shownLines the number of broken lines
// that are listed, and shownAlike that of those with the same error.
const (
	maxLine    = 64 << 20
	shownLines = 20
	shownAlike = 3
)

// documents holds the tokens of documents one after the other; documents of one group (of a
// pattern with a weight) are contiguous.
type documents struct {
	ids     []int32
	learn   []bool  // by token: whether it is to be predicted
	starts  []int64 // (documents+1) tokens before each; the last is the total
	learned []int32 // by document: number of targets with a loss
	records []int32 // by document: the record it is from; a conversation may be several documents
	groups  []int32 // number of documents before the end of each group
	read    int32   // number of records with a document
	skip    bool    // documents longer than a sample are left out
}

func (d *documents) len() int { return len(d.learned) }

// positions returns the number of positions of document i in a sample: its last token is
// only a target.
func (d *documents) positions(i int32) int { return int(d.starts[i+1]-d.starts[i]) - 1 }

// fill writes document i to the beginning of a sample and returns its number of positions.
func (d *documents) fill(input, target []int32, i int32) int {
	n := d.positions(i)
	d.fillFrom(input[:n], target[:n], d.starts[i])
	return n
}

// fillFrom writes tokens of a document, beginning at one of all tokens.
func (d *documents) fillFrom(input, target []int32, at int64) {
	n := int64(copy(input, d.ids[at:]))
	for k, learn := range d.learn[at+1 : at+1+n] {
		target[k] = Ignored
		if learn {
			target[k] = d.ids[at+1+int64(k)]
		}
	}
}

// example is an encoded record, or the reason why it could not be read.
type example struct {
	documents []tokens
	line      line   // without its text
	form      string // of a conversation, unless it is the usual one
	unused    []spare
	empty     string // why no token is learned, if none is
	err       error
}

// counts are the numbers of documents cut, tokens dropped by cutting, documents without a
// token to learn by the reason, unused parts, records by their form, and conversations that are
// several documents, with the number of these.
type counts struct {
	cut, cutTokens int64
	empty          seen[string]
	unused         seen[spare]
	skipped        int64 // documents too long
	forms          map[string]int64
	divided, parts int64
}

// docReader turns records into examples.
type docReader struct {
	Documents
	tok     fileTokenizer
	chat    *Chat // for the format chat
	context int
	vocab   int // exclusive upper bound of ids
}

// newDocReader finds problems before a file is read.
func (s Source) newDocReader(tok Tokenizer) (*docReader, error) {
	d := &docReader{Documents: s.Documents, context: s.Context, vocab: s.limit(tok)}
	if s.Whole {
		d.context = math.MaxInt32
	}
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
	if d.chat, err = NewChat(tok, d.Date); err != nil {
		return nil, problem("format", "chat: %w", err)
	}
	return d, nil
}

// key returns the name of a record's value, given its default name.
func (d *docReader) key(usual string) string { return cmp.Or(d.Keys[usual], usual) }

// example encodes a record.
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
	must, also, _ := d.keys(hasKey(record))
	says, key, err := d.judge(record, must...)
	unused := slices.Concat(l.unread, spareKeys(record, slices.Concat(must, also)))
	if err != nil || says == notToLearn {
		return example{unused: unused, empty: fmt.Sprintf("%q says not to learn them", key), err: err}
	}
	switch d.Format {
	case "chat":
		x = d.chatExample(record, l.text == nil)
	case "prompt":
		x = d.completion(e, record)
	default:
		text, err := d.text(record, "text")
		ids := d.encode(e, text)
		x = example{documents: []tokens{{ids, slices.Repeat([]bool{true}, len(ids))}}, err: err}
	}
	x.unused = append(unused, x.unused...)
	for _, part := range x.documents {
		for _, id := range part.ids {
			if int(id) >= d.vocab && x.err == nil {
				x.err = fmt.Errorf("token %q has id %d, but the model's vocabulary is %d", d.tok.Decode([]int32{id}), id, d.vocab)
			}
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
		return "", d.lacks(key, hasKey(record))
	case jsonread.Array:
		if usual != "text" {
			return "", fmt.Errorf("%q is a list of messages; want data.format: chat", key)
		}
	}
	return "", fmt.Errorf("%q is %v, not a string", key, v.Kind)
}

// encode returns a document's ids with the tokens that begin and end it.
func (d *docReader) encode(e partEncoder, text string) []int32 {
	return signed(e.part(nil, task{text: []byte(text), first: true, last: true}))
}

func (d *docReader) completion(e partEncoder, record jsonread.Value) example {
	prompt, err := d.text(record, "prompt")
	answer, err2 := d.text(record, "completion")
	if err := cmp.Or(err, err2, unlabeled(record)); err != nil {
		return example{err: err}
	}
	ids := d.encode(e, prompt+answer)
	learn, n := make([]bool, len(ids)), d.answerAt(e, ids, prompt, answer)
	for i := n; i < len(ids); i++ {
		learn[i] = true
	}
	return example{documents: []tokens{{ids, learn}}}
}

// answerAt returns how many of the ids of a prompt and an answer come before the first one with a
// part of the answer.
func (d *docReader) answerAt(e partEncoder, ids []int32, prompt, answer string) int {
	if f, ok := d.tok.(*Folder); ok {
		before, _ := f.Around()
		if starts := f.Starts(ids[len(before):], prompt+answer); starts != nil {
			return len(before) + tokenAt(starts, len(prompt))
		}
	}
	return alike(signed(e.part(nil, task{text: []byte(prompt), first: true})), ids)
}

// chatExample encodes a conversation; dense is set for a row of Parquet.
func (d *docReader) chatExample(record jsonread.Value, dense bool) (x example) {
	c, err := d.conversation(record, dense)
	if err != nil {
		return example{err: err}
	}
	x.form, x.unused = c.form, slices.Concat(c.unused, d.chat.unused(c.talk))
	x.documents, x.err = d.chat.Examples(c.talk, d.Learn)
	learns := func(t tokens) bool { return slices.Contains(t.learn, true) }
	if d.Learn != "all" && !slices.ContainsFunc(x.documents, learns) {
		x.empty = c.unanswered()
	}
	if !d.chat.usual.Mentions("endgeneration") && d.Learn != "all" {
		x.unused = append(x.unused, c.unlearned()...)
	}
	return x
}

// unanswered returns why a conversation has no answer to learn, or "" if it has one.
func (c conversation) unanswered() string {
	var roles []string
	for i, m := range c.list {
		role := m.Get("role").Text
		switch {
		case i < c.first:
		case role == answers && !c.talk.Skip[i]:
			return ""
		case role != answers && len(roles) < 4 && !slices.Contains(roles, fmt.Sprintf("%.40q", role)):
			roles = append(roles, fmt.Sprintf("%.40q", role))
		}
	}
	if slices.Contains(c.talk.Skip[c.first:], true) {
		return "marks exclude all answers"
	}
	return fmt.Sprintf("only messages of the role %q are learned, and these have %s; rename roles, or set data.learn: all",
		answers, strings.Join(roles, ", "))
}

// unlearned returns the roles whose messages are not learned although one may expect it.
func (c conversation) unlearned() (roles []spare) {
	for _, m := range c.list {
		x := spare{ofRole, m.Get("role").Text}
		usual := x.name == answers || slices.Contains(otherRoles, x.name)
		if !usual && !slices.Contains(roles, x) && len(roles) < mostSpares {
			roles = append(roles, x)
		}
	}
	return roles
}

// see counts what a record has.
func (n *counts) see(x example) {
	for _, part := range x.unused {
		part.name = part.name[:min(len(part.name), mostName)]
		n.unused.add(part, x)
	}
	if x.empty != "" {
		n.empty.add(x.empty, x)
	}
	if x.form != "" {
		if n.forms == nil {
			n.forms = map[string]int64{}
		}
		n.forms[x.form]++
	}
	if parts := int64(len(x.documents)); parts > 1 {
		n.divided, n.parts = n.divided+1, n.parts+parts
	}
}

// add stores the documents of a record, cut to the length of a sample.
func (d *documents) add(x example, context int, n *counts) {
	n.see(x)
	if x.empty != "" {
		return
	}
	kept := false
	for _, part := range x.documents {
		kept = d.addDocument(x, part, context, n) || kept
	}
	if kept {
		d.read++
	}
}

// addDocument stores a document and reports whether it has a token to learn.
func (d *documents) addDocument(of example, x tokens, context int, n *counts) bool {
	empty := "a text or answer is empty or a single token"
	if d.skip && len(x.ids) > context+1 {
		n.skipped++
		return false
	}
	if len(x.ids) > context+1 {
		n.cut++
		n.cutTokens += int64(len(x.ids) - context - 1)
		if slices.Contains(x.learn, true) {
			empty = "none of the tokens to learn is within that length"
		}
		x.ids, x.learn = x.ids[:context+1], x.learn[:context+1]
	}
	learned := int32(0)
	for i := 1; i < len(x.learn); i++ {
		if x.learn[i] {
			learned++
		}
	}
	if learned == 0 {
		n.empty.add(empty, of)
		return false
	}
	d.ids, d.learn = append(d.ids, x.ids...), append(d.learn, x.learn...)
	d.starts, d.learned, d.records = append(d.starts, int64(len(d.ids))), append(d.learned, learned), append(d.records, d.read)
	return true
}

// line is a record with its position.
type line struct {
	file   string
	number int
	text   []byte         // JSON of the record; nil for a row of Parquet
	record jsonread.Value // of a row of Parquet
	wrong  error          // error in the row
	unread []spare        // columns that are not read, in the first row
}

// size returns the approximate number of bytes in a line.
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

// batch is a group of lines encoded at once.
type batch struct {
	lines    []line
	examples []example
}

// read appends the documents of files, in order, as the next group of all.
func (d *docReader) read(ctx context.Context, all *documents, files []file, memory int64, n *counts, m *meter) error {
	err := d.each(ctx, files, m, func(x example) error {
		all.add(x, d.context, n)
		if memory > 0 && int64(5*len(all.ids)) > memory {
			return fmt.Errorf("the documents need more than the %d bytes of free memory; use fewer", memory)
		}
		return nil
	})
	all.groups = append(all.groups, int32(all.len()))
	return err
}

// each encodes the documents of files on all cores and passes them to take in order, until
// take returns an error, which each then returns. It counts all broken lines and lists the
// first ones.
func (d *docReader) each(ctx context.Context, files []file, m *meter, take func(example) error) error {
	var broken []error
	var takeErr error
	wrong, same := 0, map[string]int{} // lines; those by error
	reading := inOrder(ctx, func(ctx context.Context, emit func(*batch)) error {
		return d.readLines(ctx, files, m, emit)
	}, d.tok.parts, func(e partEncoder, b *batch) {
		for _, l := range b.lines {
			b.examples = append(b.examples, d.example(e, l))
		}
	}, func(b *batch) error {
		for i, x := range b.examples {
			if x.err == nil {
				x.line.file, x.line.number = b.lines[i].file, b.lines[i].number
				if takeErr = take(x); takeErr != nil {
					return takeErr
				}
				continue
			}
			err := withoutPosition(x.err)
			wrong++
			if n := same[err.Error()]; n < shownAlike && len(broken) < shownLines {
				same[err.Error()] = n + 1
				broken = append(broken, fmt.Errorf("%s:%d: %w", b.lines[i].file, b.lines[i].number, err))
			}
		}
		return nil
	})
	if takeErr != nil {
		return takeErr
	}
	if more := wrong - len(broken); more > 0 {
		broken = append(broken, fmt.Errorf("and %d more broken lines", more))
	}
	return errors.Join(append(broken, reading)...)
}

// withoutPosition removes the line from a JSON error, which is always 1.
func withoutPosition(err error) error {
	if e := (*jsonread.Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// batchBytes is the approximate number of bytes encoded at once.
const batchBytes = 1 << 18

// readLines emits the lines of files that are not blank, or their rows.
func (d *docReader) readLines(ctx context.Context, files []file, m *meter, emit func(*batch)) error {
	b, size := &batch{}, 0
	flush := func() {
		if len(b.lines) > 0 {
			emit(b)
		}
		b, size = &batch{}, 0
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

// metered is a reader that reports to a meter.
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

// eachLine emits the lines or rows of a file, at most d.Most, decompressing it if needed, and returns the
// number of bytes of it that the meter has counted.
func (d *docReader) eachLine(ctx context.Context, f file, m *meter, each func(line)) (read int64, err error) {
	left := cmp.Or(d.Most, math.MaxInt)
	emit := func(l line) {
		if left > 0 {
			left--
			each(l)
		}
	}
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
		var unread []spare
		choose := func(have []string) (read []string, err error) {
			read, err = d.columns(have)
			for _, key := range have {
				if !slices.Contains(read, key) {
					unread = append(unread, spare{ofRecord, key})
				}
			}
			return read, err
		}
		return 0, parquet.Rows(ctx, h, f.size, choose, func(row int, record jsonread.Value, wrong error) {
			emit(line{number: row, record: record, wrong: wrong, unread: unread})
			unread = nil
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
	for left > 0 && in.Scan() {
		text := in.Bytes()
		if in.n == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff")) // byte order mark
		}
		if len(bytes.TrimSpace(text)) > 0 {
			emit(line{number: in.n, text: bytes.Clone(text)})
		}
	}
	return 0, in.wrong()
}

// sum returns a fingerprint of everything in the documents that affects a run.
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
