package data

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
)

// lines reads a text line by line. Blank lines it passes over as fast as they can be
// read, for a small compressed file can have billions of them.
type lines struct {
	*bufio.Scanner
	ctx context.Context // that ends it, also between two lines that are far apart
	n   int             // the line that was read last, from 1
}

func newLines(ctx context.Context, r io.Reader) *lines {
	l := &lines{Scanner: bufio.NewScanner(r), ctx: ctx}
	l.Buffer(make([]byte, 1<<16), maxLine)
	l.Split(l.split)
	return l
}

// split implements bufio.SplitFunc. It moves past blank lines without a token, so that
// it is called again as soon as there is more.
func (l *lines) split(text []byte, end bool) (advance int, token []byte, err error) {
	if err := l.ctx.Err(); err != nil {
		return 0, nil, err
	}
	skip := 0
	for i, c := range text {
		if c == '\n' {
			l.n++
			skip = i + 1
		} else if c != ' ' && c != '\t' && c != '\r' {
			break
		}
	}
	advance, token, err = bufio.ScanLines(text[skip:], end)
	if token != nil {
		l.n++
	}
	return skip + advance, token, err
}

// wrong is why there are no more lines; nil where the text is at its end.
func (l *lines) wrong() error {
	switch err := l.Err(); {
	case err == nil, l.ctx.Err() != nil:
		return nil // who has ended it knows
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("line %d has more than %d bytes", l.n+1, maxLine)
	default:
		return fmt.Errorf("after line %d: %w", l.n, err)
	}
}
