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
	"time"

	"zeroth/internal/input"
)

// Encoding describes a token file to be created from text files or records.
type Encoding struct {
	Text      []string          // patterns of text files, one document each, or of files of records
	Format    string            // of records, see Documents; empty for text files
	Keys      map[string]string // keys of the records by their default names, if they differ
	Tokenizer string            // see NewTokenizer
	Out       string            // output file; must not exist

	// Progress, if not nil, receives the bytes encoded so far. Calls do not overlap.
	Progress func(done, total int64)
}

// Encoded describes a token file that was created.
type Encoded struct {
	Documents int
	Bytes     int64 // of the input files
	Tokens    int64
	Width     int // bytes per id
	Vocab     int // ids are in [0, Vocab)
	Notes     []string
}

// Encode writes the ids of text files or records to one file in llm.c's format, whose header
// gives their width. It holds one text file, or some records, in memory at a time. Problems
// with the files, including broken records, are input errors. After any error there is no
// output file.
func (e Encoding) Encode(ctx context.Context) (Encoded, error) {
	tok, records, files, err := e.open(ctx)
	if err != nil {
		return Encoded{}, err
	}
	done := Encoded{Bytes: sizeOfFiles(files), Width: idWidth(tok.Vocab()), Vocab: tok.Vocab()}
	out, err := input.Create(e.Out)
	if err != nil {
		return Encoded{}, err
	}
	w := bufio.NewWriterSize(out, 1<<20)
	add := func(ids []byte) error {
		if done.Tokens += int64(len(ids) / done.Width); done.Tokens > math.MaxInt32 {
			return input.BadInput(fmt.Errorf("more than %d tokens, the limit of the file's header; split the text into several token files", math.MaxInt32))
		}
		_, err := w.Write(ids)
		return err
	}
	_, err = w.Write(make([]byte, headerBytes))
	switch {
	case err != nil:
	case records != nil:
		err = done.encodeRecords(ctx, records, files, e.Progress, add)
	default:
		done.Documents = len(files)
		var spelledOut int64
		spelledOut, err = encodeFiles(ctx, tok, files, e.Progress, func(s segment) error { return add(s.data) })
		if spelledOut > 0 {
			done.Notes = append(done.Notes, tok.noteSpelledOut(spelledOut))
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
	if err = out.KeepNew(); errors.Is(err, fs.ErrExist) { // another process created it
		err = e.exists()
	}
	return done, err
}

func (e Encoding) exists() error {
	return input.BadInput(fmt.Errorf("%s exists; remove it, or name another file", e.Out))
}

// encodeRecords encodes all records and passes their ids to add.
func (done *Encoded) encodeRecords(ctx context.Context, r *docReader, files []file, progress func(done, total int64), add func([]byte) error) error {
	m := &meter{total: done.Bytes, report: progress}
	var ids []uint32
	var failed error // of writing; any other error is about the input
	ignored := 0
	var n counts
	err := r.each(ctx, files, m, func(x example) error {
		if n.see(x); x.empty != "" {
			return nil
		}
		for _, part := range x.documents {
			ids = ids[:0]
			for i, id := range part.ids {
				ids = append(ids, uint32(id))
				if !part.learn[i] {
					ignored++
				}
			}
			done.Documents++
			if failed = add(littleEndian(ids, done.Width)); failed != nil {
				break
			}
		}
		return failed
	})
	if ignored > 0 {
		done.Notes = append(done.Notes, fmt.Sprintf("%d of the tokens are not meant to be learned, but a token file cannot mark them: a job will learn them all; use data.documents to exclude them", ignored))
	}
	done.Notes = slices.Concat(done.Notes, n.noteEmpty(), n.noteUnused(r.chat))
	if err != nil && failed == nil && ctx.Err() == nil {
		err = input.BadInput(err)
	}
	return err
}

// recordKeys maps the formats of records to their default keys.
var recordKeys = map[string][]string{"text": {"text"}, "prompt": {"prompt", "completion"}, "chat": {"messages"}}

// records returns the reader of the records, or nil for text files.
func (e Encoding) records(tok Tokenizer) (*docReader, []error) {
	usual, ok := recordKeys[e.Format]
	switch {
	case e.Format == "" && len(e.Keys) > 0:
		return nil, []error{errors.New("--key applies to records; set --format to text, prompt or chat")}
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
	r, err := Source{Documents: Documents{Format: e.Format, Keys: e.Keys, Date: time.Now()}}.newDocReader(tok)
	if err != nil {
		errs = append(errs, fmt.Errorf("--format %w", errors.Unwrap(err))) // without the job's key
	}
	return r, errs
}

// open finds all problems before anything is encoded.
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
		errs = append(errs, errors.Unwrap(w)) // without the job's key
	}
	if _, err := os.Lstat(e.Out); err == nil {
		errs = append(errs, e.exists())
	}
	if len(errs) == 0 {
		if err := fetch(ctx, key, files, nil); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, nil, nil, input.BadInput(errors.Join(errs...))
	}
	return tok.(fileTokenizer), records, files, nil
}

// writeHeader writes the header of a token file after its ids.
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

// byteFiles encodes files as their bytes.
type byteFiles struct{ Bytes }

func (byteFiles) parts() partEncoder              { return byteFiles{} }
func (byteFiles) cut(text []byte) int             { return min(len(text), chunkBytes) }
func (byteFiles) refuse([]byte) error             { return nil }
func (byteFiles) spelledOut(task, []uint32) int64 { return 0 }
func (byteFiles) noteSpelledOut(int64) string     { return "" }

func (byteFiles) part(ids []uint32, t task) []uint32 {
	for _, b := range t.text {
		ids = append(ids, uint32(b))
	}
	return ids
}
