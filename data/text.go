package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"zeroth/internal/input"
	"zeroth/internal/parallel"
)

// readFiles reads text files into one segment of byte tokens.
func readFiles(ctx context.Context, files []file, progress func(done, total int64)) ([]segment, error) {
	starts := make([]int64, len(files)+1)
	for i, f := range files {
		starts[i+1] = starts[i] + f.size
	}
	m := meter{total: starts[len(files)], report: progress}
	all := make([]byte, m.total)
	errs := make([]error, len(files))
	_ = parallel.For(ctx, len(files), 0, func(_ context.Context, i int) error {
		errs[i] = readText(all[starts[i]:starts[i+1]], files[i])
		m.add(files[i].size)
		return nil
	})
	return []segment{{name: "text", data: all, width: 1}}, joinSome(errs)
}

// readText fills dst, of f.size bytes, with a text file.
func readText(dst []byte, f file) error {
	if err := readFile(dst, f); err != nil {
		return err
	}
	return refuseZeros(f.path, dst)
}

// readFile fills dst, of f.size bytes, with the file.
func readFile(dst []byte, f file) error {
	h, err := input.Open(f.path, math.MaxInt64)
	if err != nil {
		return err
	}
	defer h.Close()
	n, err := io.ReadFull(h, dst)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return changed(f, int64(n))
	}
	if err != nil {
		return err
	}
	if more, _ := h.Read(make([]byte, 1)); more > 0 {
		return changed(f, int64(n+more))
	}
	return nil
}

// changed returns the error for a file whose size changed after it was found.
func changed(f file, size int64) error {
	return fmt.Errorf("%s: %d bytes when it was found, now %d or more; start again when it is completely written", f.path, f.size, size)
}

// joinSome joins the first eight errors and counts the others.
func joinSome(errs []error) error {
	var some []error
	more := 0
	for _, err := range errs {
		if err != nil && len(some) < 8 {
			some = append(some, err)
		} else if err != nil {
			more++
		}
	}
	if more > 0 {
		some = append(some, fmt.Errorf("and %d more files", more))
	}
	return errors.Join(some...)
}

// meter sums the bytes processed by several goroutines and reports progress, unless report is nil.
type meter struct {
	sync.Mutex
	done, total int64
	report      func(done, total int64)
}

func (m *meter) add(n int64) {
	m.Lock()
	defer m.Unlock()
	if m.done += n; m.report != nil {
		m.report(m.done, m.total)
	}
}

// sizeOfFiles returns the bytes of files.
func sizeOfFiles(files []file) (sum int64) {
	for _, f := range files {
		sum += f.size
	}
	return sum
}
