package data

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"zeroth/input"
)

// Encoding is a token file to be made of text files.
type Encoding struct {
	Text      []string // patterns of text files, each a document
	Tokenizer string   // see NewTokenizer
	Out       string   // the file, which must not exist

	// Progress, if not nil, is told how much has been encoded, in bytes. Calls do
	// not overlap.
	Progress func(done, total int64)
}

// Encoded is what a token file has.
type Encoded struct {
	Documents int
	Bytes     int64 // of text
	Tokens    int64
	Width     int // bytes of an id
	Vocab     int // ids are in [0, Vocab)
	Notes     []string
}

// Encode writes the ids of text files into one file in llm.c's format, whose header
// says how wide they are. It holds one file's text at a time. What is wrong with
// the files is an input error, and then, as after any other error, there is no file.
func (e Encoding) Encode(ctx context.Context) (Encoded, error) {
	tok, files, err := e.open()
	if err != nil {
		return Encoded{}, err
	}
	done := Encoded{Documents: len(files), Width: idWidth(tok.Vocab()), Vocab: tok.Vocab()}
	for _, f := range files {
		done.Bytes += f.size
	}
	out, err := os.CreateTemp(filepath.Dir(e.Out), filepath.Base(e.Out)+".tmp-")
	if err != nil {
		return Encoded{}, err
	}
	defer os.Remove(out.Name()) // it is gone if all went well
	defer out.Close()
	progress := e.Progress
	if progress == nil {
		progress = func(int64, int64) {}
	}
	w := bufio.NewWriterSize(out, 1<<20)
	if _, err = w.Write(make([]byte, headerBytes)); err == nil {
		var spelt int64
		spelt, err = encodeFiles(ctx, tok, files, progress, func(s segment) error {
			if done.Tokens += int64(s.len()); done.Tokens > math.MaxInt32 {
				return input.BadInput(fmt.Errorf("more than %d tokens, which is all that the header of such a file can say; make several files of the text", math.MaxInt32))
			}
			_, err := w.Write(s.data)
			return err
		})
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
	if err != nil {
		return Encoded{}, err
	}
	return done, finishTokens(out, e.Out, done)
}

// open finds all that is wrong before a byte is encoded.
func (e Encoding) open() (fileTokenizer, []file, error) {
	var errs []error
	tok, err := NewTokenizer(e.Tokenizer)
	if err != nil {
		errs = append(errs, fmt.Errorf("--tokenizer: %w", err))
	}
	if tok == (Bytes{}) {
		tok = byteFiles{}
	}
	files, wrong := find("text", "", e.Text)
	for _, w := range wrong {
		errs = append(errs, errors.Unwrap(w)) // without the key of a job
	}
	if _, err := os.Lstat(e.Out); err == nil {
		errs = append(errs, fmt.Errorf("%s exists; remove it, or name another file", e.Out))
	}
	if len(errs) > 0 {
		return nil, nil, input.BadInput(errors.Join(errs...))
	}
	return tok.(fileTokenizer), files, nil
}

// finishTokens writes the header of a file that is complete but for it, and gives it
// its name.
func finishTokens(f *os.File, name string, e Encoded) error {
	for magic, format := range llmc {
		if format.width == e.Width {
			var head [12]byte
			binary.LittleEndian.PutUint32(head[:], magic)
			binary.LittleEndian.PutUint32(head[4:], format.version)
			binary.LittleEndian.PutUint32(head[8:], uint32(e.Tokens))
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return err
			}
			if _, err := f.Write(head[:]); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
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
