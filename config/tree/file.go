package tree

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"zeroth/internal/input"
)

// ReadJob returns the text of a job file; - is the standard input.
func ReadJob(file string) ([]byte, error) {
	if file != "-" {
		return input.Read(file, JobBytes)
	}
	if stdin.of != os.Stdin {
		stdin.of = os.Stdin
		stdin.raw, stdin.err = io.ReadAll(io.LimitReader(os.Stdin, JobBytes+1))
	}
	if stdin.err == nil && len(stdin.raw) > JobBytes {
		return nil, fmt.Errorf("it is larger than the limit of %d bytes for such a file", JobBytes)
	}
	return stdin.raw, stdin.err
}

// stdin caches the standard input, because a job may be read several times.
var stdin struct {
	of  *os.File
	raw []byte
	err error
}

// WithoutComments blanks out the comments of JavaScript in a text that looks like JSON, and leaves all
// else where it is.
func WithoutComments(raw []byte) []byte {
	if i := strings.IndexFunc(string(raw), func(r rune) bool { return !strings.ContainsRune(" \t\r\n", r) }); i < 0 || raw[i] != '{' && raw[i] != '/' {
		return raw
	}
	out := slices.Clone(raw)
	in := byte(0) // a string, by its quote, or a comment: '/' to the end of the line, '*'
	for i := 0; i < len(out); i++ {
		c, next := out[i], byte(0)
		if i+1 < len(out) {
			next = out[i+1]
		}
		switch {
		case in == '"':
			if c == '\\' {
				i++
			} else if c == '"' {
				in = 0
			}
			continue
		case in == 0 && c == '"':
			in = '"'
			continue
		case in == 0 && c == '/' && (next == '/' || next == '*') && (i == 0 || strings.IndexByte(" \t\r\n,{}[]\"", out[i-1]) >= 0): // not s3://
			in = next
			out[i], out[i+1] = ' ', ' '
			i++
			continue
		case in == '/' && c == '\n':
			in = 0
		case in == '*' && c == '*' && next == '/':
			out[i], out[i+1], in = ' ', ' ', 0
			i++
			continue
		}
		if (in == '/' || in == '*') && c != '\n' {
			out[i] = ' '
		}
	}
	return out
}
