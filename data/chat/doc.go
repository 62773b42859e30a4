// Package chat renders the chat templates of Hugging Face models: Jinja as the
// reference uses it (jinja2 by transformers' apply_chat_template: blocks take the
// line's white space before them and the line feed behind them along), so far as
// templates need it. A construct that is not known is refused by name and place when
// the template is read, not when it is met.
//
//	lex.go     text and the tokens of its tags
//	parse.go   statements and expressions
//	eval.go    what they do, over ordered maps
//	value.go   values, as Python prints and compares them
//	filter.go  filters, tests and methods
//
// A template comes from anybody: its depth, the steps it takes and the text it makes
// have limits.
//
// What never enters: files, tokens, and which messages a model learns from. It is larger
// than other packages because the language has many parts, each small.
package chat

import "fmt"

// Limits of a template and of what it does.
const (
	MaxTemplate = 1 << 20 // bytes
	MaxOutput   = 1 << 24 // bytes, of a text or any string within
	maxDepth    = 200     // of expressions, blocks and calls within each other
	maxWork     = 1 << 28 // of one rendering: bytes that are looked at or made, and stepWork a step
	stepWork    = 64
)

// Error is what is wrong with a template, or what it did.
type Error struct {
	Line, Column int // from 1
	Err          error
}

func (e *Error) Error() string {
	return fmt.Sprintf("chat template: line %d, column %d: %v", e.Line, e.Column, e.Err)
}
func (e *Error) Unwrap() error { return e.Err }
