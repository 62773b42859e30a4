// Package chat renders the chat templates of Hugging Face models: the subset of Jinja that
// templates need, with the settings of the reference (jinja2 as used by transformers'
// apply_chat_template: blocks strip the white space before them on their line and the line feed
// after them). Unknown constructs are reported by name and position when the template is
// parsed, not when they are evaluated.
//
// lex.go     text and the tokens of its tags
// parse.go   statements and expressions
// eval.go    their evaluation, over ordered maps
// value.go   values, printed and compared as in Python
// filter.go  filters, tests and methods
//
// Templates are untrusted: their depth, their work and the memory of what they make are limited,
// so that a rendering takes about a second and 64 MiB at most. Work and memory are counted before
// they are used. Memory is counted as if all values were kept until the end.
package chat

import "fmt"

// Limits of a template and of a rendering.
const (
	MaxTemplate = 1 << 17 // bytes
	MaxOutput   = 1 << 23 // bytes, of the output or any string
	maxDepth    = 200     // of nested expressions, blocks and calls
	maxWork     = 1 << 28 // per rendering: bytes read or produced, plus stepWork per step
	stepWork    = 64
	maxMade     = 32 << 20 // bytes of all values made by a rendering
	maxName     = 1 << 10  // bytes of an attribute's name or of a date's format
)

// Approximate sizes, in bytes, of the parts of values.
const (
	itemSize  = 48  // of a list, with a string's header
	entrySize = 160 // of a map
	scopeSize = 512 // of variables that a macro keeps
)

// Error is an error in a template or in a rendering.
type Error struct {
	Line, Column int // from 1
	Err          error
}

func (e *Error) Error() string {
	return fmt.Sprintf("chat template: line %d, column %d: %v", e.Line, e.Column, e.Err)
}
func (e *Error) Unwrap() error { return e.Err }
