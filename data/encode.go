package data

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"zeroth/internal/input"
)

// task is a chunk of text and the segment to write its ids to.
type task struct {
	text        []byte
	first, last bool // whether it is the first or last of its file
	to          *segment
}

// fileTokenizer encodes files in parts, on all cores.
type fileTokenizer interface {
	Tokenizer
	parts() partEncoder
	cut(text []byte) int                   // length of the first part of a text, to encode at once
	refuse(text []byte) error              // error if the text cannot be encoded faithfully
	spelledOut(t task, ids []uint32) int64 // number of special tokens spelled out in the text
	noteSpelledOut(n int64) string
}

// partEncoder is the state of one encoding goroutine.
type partEncoder interface {
	// part appends the ids of a part of a file, with the tokens that begin and end a document.
	part(ids []uint32, t task) []uint32
}

// encodeFiles encodes text files on all cores and passes their segments to each, in order.
// It holds one file's text and the chunks being encoded. spelledOut counts the special tokens
// spelled out in the text.
func encodeFiles(ctx context.Context, v fileTokenizer, files []file, progress func(done, total int64), each func(segment) error) (spelledOut int64, err error) {
	m := meter{total: sizeOfFiles(files), report: progress}
	var count atomic.Int64
	err = inOrder(ctx, func(ctx context.Context, emit func(task)) error { return chunks(ctx, files, v, emit) },
		v.parts, func(e partEncoder, t task) {
			ids := e.part(make([]uint32, 0, len(t.text)/2), t)
			count.Add(v.spelledOut(t, ids))
			t.to.data = littleEndian(ids, t.to.width)
			m.add(int64(len(t.text)))
		}, func(t task) error { return each(*t.to) })
	return count.Load(), err
}

// inOrder calls work for what read emits, on all cores, each of which has a state that start returns,
// and then take, in order, until that fails. It returns the error of take or else that of read,
// whose context ends if take fails.
func inOrder[T, S any](ctx context.Context, read func(ctx context.Context, emit func(T)) error, start func() S, work func(S, T), take func(T) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type job struct {
		x    T
		done chan struct{} // closed after work
	}
	jobs, order := make(chan job), make(chan job, 4*runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			state := start()
			for j := range jobs {
				work(state, j.x)
				close(j.done)
			}
		})
	}
	var reading, err error
	wg.Go(func() {
		reading = read(ctx, func(x T) {
			j := job{x, make(chan struct{})}
			order <- j
			jobs <- j
		})
		close(jobs)
		close(order)
	})
	for j := range order {
		if <-j.done; err == nil {
			if err = take(j.x); err != nil {
				cancel()
			}
		}
	}
	wg.Wait()
	return cmp.Or(err, reading)
}

// chunks reads the files in order and emits their text in chunks, until ctx ends.
func chunks(ctx context.Context, files []file, v fileTokenizer, emit func(task)) error {
	var errs []error
	width := idWidth(v.Vocab())
	for _, f := range files {
		if ctx.Err() != nil {
			break
		}
		text := make([]byte, f.size)
		err := readText(text, f)
		if err == nil {
			if err = v.refuse(text); err != nil {
				err = input.BadInput(fmt.Errorf("%s: %w", f.path, err))
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for first := true; len(text) > 0 && ctx.Err() == nil; first = false {
			n := v.cut(text)
			emit(task{text[:n], first, n == len(text), &segment{name: f.path, width: width}})
			text = text[n:]
		}
	}
	return joinSome(errs)
}
