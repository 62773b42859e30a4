package data

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"zeroth/input"
)

// Encoding is a token file to be made of text files, or of records.
type Encoding struct {
	Text      []string          // patterns of text files, each a document, or of files of records
	Format    string            // of records, see Documents; empty: the files are text
	Keys      map[string]string // of records, by their usual names, where they have others
	Tokenizer string            // see NewTokenizer
	Out       string            // the file, which must not exist

	// Progress, if not nil, is told how much has been encoded, in bytes. Calls do
	// not overlap.
	Progress func(done, total int64)
}

// Encoded is what a token file has.
type Encoded struct {
	Documents int
	Bytes     int64 // of the files
	Tokens    int64
	Width     int // bytes of an id
	Vocab     int // ids are in [0, Vocab)
	Notes     []string
}

// Encode writes the ids of text files, or of records, into one file in llm.c's format,
// whose header says how wide they are. It holds one file's text at a time, of records
// some of them. What is wrong with the files, broken records among it, is an input error,
// and then, as after any other error, there is no file.
func (e Encoding) Encode(ctx context.Context) (Encoded, error) {
	tok, records, files, err := e.open(ctx)
	if err != nil {
		return Encoded{}, err
	}
	done := Encoded{Width: idWidth(tok.Vocab()), Vocab: tok.Vocab()}
	for _, f := range files {
		done.Bytes += f.size
	}
	out, err := input.Create(e.Out)
	if err != nil {
		return Encoded{}, err
	}
	progress := e.Progress
	if progress == nil {
		progress = func(int64, int64) {}
	}
	w := bufio.NewWriterSize(out, 1<<20)
	add := func(ids []byte) error {
		if done.Tokens += int64(len(ids) / done.Width); done.Tokens > math.MaxInt32 {
			return input.BadInput(fmt.Errorf("more than %d tokens, which is all that the header of such a file can say; make several files of the text", math.MaxInt32))
		}
		_, err := w.Write(ids)
		return err
	}
	_, err = w.Write(make([]byte, headerBytes))
	switch {
	case err != nil:
	case records != nil:
		err = done.encodeRecords(ctx, records, files, progress, add)
	default:
		done.Documents = len(files)
		var spelt int64
		spelt, err = encodeFiles(ctx, tok, files, progress, func(s segment) error { return add(s.data) })
		if spelt > 0 {
			done.Notes = append(done.Notes, tok.noteSpelt(spelt))
		}
	}
	if err == nil {
		err = w.Flush()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = writeHeader(out, done)
	}
	if err != nil {
		_ = out.Drop() // err is the one to report
		return Encoded{}, err
	}
	if err = out.KeepNew(); errors.Is(err, fs.ErrExist) { // another process was faster
		err = e.exists()
	}
	return done, err
}

func (e Encoding) exists() error {
	return input.BadInput(fmt.Errorf("%s exists; remove it, or name another file", e.Out))
}

// encodeRecords gives the ids of all records to add.
func (done *Encoded) encodeRecords(ctx context.Context, r *docReader, files []file, progress func(done, total int64), add func([]byte) error) error {
	m := &meter{total: done.Bytes, report: progress}
	var ids []uint32
	var failed error // of writing; all else is wrong with the files
	kept := 0
	err := r.each(ctx, files, m, func(x example) error {
		ids = ids[:0]
		for i, id := range x.ids {
			ids = append(ids, uint32(id))
			if !x.learn[i] {
				kept++
			}
		}
		done.Documents++
		failed = add(littleEndian(ids, done.Width))
		return failed
	})
	if kept > 0 {
		done.Notes = append(done.Notes, fmt.Sprintf("%d of the tokens are not to be learned, and a token file cannot say so: a job learns them all; data.documents leaves them out", kept))
	}
	if err != nil && failed == nil && ctx.Err() == nil {
		err = input.BadInput(err)
	}
	return err
}

// recordKeys are the usual keys of records, by their format.
var recordKeys = map[string][]string{"text": {"text"}, "prompt": {"prompt", "completion"}, "chat": {"messages"}}

// records reads those of the format, nil if the files are text.
func (e Encoding) records(tok Tokenizer) (*docReader, []error) {
	usual, ok := recordKeys[e.Format]
	switch {
	case e.Format == "" && len(e.Keys) > 0:
		return nil, []error{errors.New("--key is of records; with --format text, prompt or chat")}
	case e.Format == "":
		return nil, nil
	case !ok:
		return nil, []error{fmt.Errorf("--format %q; want text, prompt or chat", e.Format)}
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(e.Keys)) {
		if !slices.Contains(usual, key) {
			errs = append(errs, fmt.Errorf("--key %s: records of the format %s have no such key; want %s", key, e.Format, strings.Join(usual, " or ")))
		}
	}
	if tok == nil {
		return nil, errs
	}
	r, err := Source{Documents: Documents{Format: e.Format, Keys: e.Keys}}.newDocReader(tok)
	if err != nil {
		errs = append(errs, fmt.Errorf("--format %w", errors.Unwrap(err))) // without the key of a job
	}
	return r, errs
}

// open finds all that is wrong before a byte is encoded.
func (e Encoding) open(ctx context.Context) (fileTokenizer, *docReader, []file, error) {
	var errs []error
	tok, err := NewTokenizer(e.Tokenizer)
	if err != nil {
		errs = append(errs, fmt.Errorf("--tokenizer: %w", err))
	}
	if tok == (Bytes{}) {
		tok = byteFiles{}
	}
	records, wrong := e.records(tok)
	errs = append(errs, wrong...)
	key := "text"
	if e.Format != "" {
		key = "documents"
	}
	files, wrong := find(ctx, key, "", e.Text)
	if ctx.Err() != nil {
		return nil, nil, nil, context.Cause(ctx)
	}
	for _, w := range wrong {
		errs = append(errs, errors.Unwrap(w)) // without the key of a job
	}
	if _, err := os.Lstat(e.Out); err == nil {
		errs = append(errs, e.exists())
	}
	if len(errs) > 0 {
		return nil, nil, nil, input.BadInput(errors.Join(errs...))
	}
	return tok.(fileTokenizer), records, files, nil
}

// writeHeader writes the header of a file that is complete but for it.
func writeHeader(f io.WriterAt, e Encoded) error {
	for magic, format := range llmc {
		if format.width == e.Width {
			var head [12]byte
			binary.LittleEndian.PutUint32(head[:], magic)
			binary.LittleEndian.PutUint32(head[4:], format.version)
			binary.LittleEndian.PutUint32(head[8:], uint32(e.Tokens))
			if _, err := f.WriteAt(head[:], 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// byteFiles are files whose ids are their bytes.
type byteFiles struct{ Bytes }

func (byteFiles) parts() partEncoder         { return byteFiles{} }
func (byteFiles) cut(text []byte) int        { return min(len(text), chunkBytes) }
func (byteFiles) refuse([]byte) error        { return nil }
func (byteFiles) spelt(task, []uint32) int64 { return 0 }
func (byteFiles) noteSpelt(int64) string     { return "" }

func (byteFiles) part(ids []uint32, t task) []uint32 {
	for _, b := range t.text {
		ids = append(ids, uint32(b))
	}
	return ids
}
