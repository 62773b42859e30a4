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
// Templates are untrusted: their depth, their steps and their output are limited.
package chat

import "fmt"

// Limits of a template and of a rendering.
const (
	MaxTemplate = 1 << 20 // bytes
	MaxOutput   = 1 << 24 // bytes, of the output or any string
	maxDepth    = 200     // of nested expressions, blocks and calls
	maxWork     = 1 << 28 // per rendering: bytes read or produced, plus stepWork per step
	stepWork    = 64
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
