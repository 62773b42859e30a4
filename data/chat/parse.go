package chat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"zeroth/internal/input"
)

// expr and stmt are compiled expressions and statements. They fail by panicking with an
// *Error, which Render returns.
type (
	expr func(r *run, s *scope) Value
	stmt func(r *run, s *scope)
)

// Template is a parsed template. It is safe for concurrent use.
type Template struct {
	text string
	body []stmt
}

// Mentions reports whether a name occurs in the template.
func (t *Template) Mentions(name string) bool { return strings.Contains(t.text, name) }

// Parse parses a template. Its error is an *Error.
func Parse(text string) (t *Template, err error) {
	if len(text) > MaxTemplate {
		return nil, &Error{1, 1, fmt.Errorf("%d bytes; a template has at most %d", len(text), MaxTemplate)}
	}
	text, tokens, err := lex(text)
	if err != nil {
		return nil, err
	}
	p := &parser{text: text, tokens: tokens}
	defer input.Catch(func(e *Error) { t, err = nil, e })
	body := p.body()
	if p.next().kind != end {
		p.fail("%s without a beginning", p.next().text)
	}
	return &Template{text, body}, nil
}

type parser struct {
	text   string
	tokens []token
	depth  int
	loops  int // enclosing for statements
}

func (p *parser) fail(format string, args ...any) { p.failAt(p.next().at, format, args...) }

func (p *parser) failAt(at int, format string, args ...any) {
	panic(wrong(p.text, at, format, args...).(*Error))
}

func (p *parser) next() token { return p.tokens[0] }

func (p *parser) take() token {
	t := p.tokens[0]
	if t.kind != end {
		p.tokens = p.tokens[1:]
	}
	return t
}

// is reports whether the next token is the given word or sign.
func (p *parser) is(text string) bool {
	t := p.next()
	return (t.kind == name || t.kind == sign) && t.text == text
}

func (p *parser) skip(text string) bool {
	if p.is(text) {
		p.take()
		return true
	}
	return false
}

func (p *parser) want(text string) {
	if !p.skip(text) {
		p.fail("%s where %s is expected", p.shown(), text)
	}
}

func (p *parser) shown() string {
	if t := p.next(); t.kind != end && t.text != "" {
		return strconv.Quote(t.text)
	}
	return "the end"
}

func (p *parser) name() string {
	if p.next().kind != name {
		p.fail("%s where a name is expected", p.shown())
	}
	return p.take().text
}

func (p *parser) closeBlock() {
	if p.next().kind != blockEnd {
		p.fail("%s where the tag should end", p.shown())
	}
	p.take()
}

// deeper counts a level of nesting, until the returned function is called.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > maxDepth {
		p.fail("more than %d levels of nesting", maxDepth)
	}
	return func() { p.depth-- }
}

// body reads statements up to a tag that begins with one of the words, which it does not read.
func (p *parser) body(until ...string) (all []stmt) {
	defer p.deeper()()
	for {
		switch t := p.next(); t.kind {
		case data:
			p.take()
			if t.text != "" {
				all = append(all, func(r *run, _ *scope) { r.write(t.at, t.text) })
			}
		case printBegin:
			p.take()
			e := p.tuple()
			if p.next().kind != printEnd {
				p.fail("%s where the tag should end", p.shown())
			}
			p.take()
			all = append(all, func(r *run, s *scope) {
				r.write(t.at, r.printed(t.at, e(r, s)))
			})
		case blockBegin:
			if word := p.tokens[1]; word.kind == name && (slices.Contains(until, word.text) || strings.HasPrefix(word.text, "end") || word.text == "else" || word.text == "elif") {
				if !slices.Contains(until, word.text) {
					p.failAt(word.at, "%s does not belong here", word.text)
				}
				return all
			}
			p.take()
			all = append(all, p.statement())
		default:
			if len(until) > 0 {
				p.fail("the template ends without %s", strings.Join(until, " or "))
			}
			return all
		}
	}
}

// endTag reads the beginning and the word of the tag at which body stopped.
func (p *parser) endTag() string {
	p.take()
	word := p.take().text
	return word
}

func (p *parser) statement() stmt {
	at := p.next().at
	word := p.name()
	switch word {
	case "if":
		return p.ifs()
	case "for":
		return p.forLoop()
	case "set":
		return p.set()
	case "macro":
		return p.macro()
	case "generation":
		return p.generation()
	case "break", "continue":
		p.closeBlock()
		if p.loops == 0 {
			p.failAt(at, "%s outside of a loop", word)
		}
		return func(r *run, _ *scope) { r.leave = word }
	}
	p.failAt(at, "the statement %s is not supported", word)
	return nil
}

// do runs statements, up to a break or continue.
func do(all []stmt, r *run, s *scope) {
	for _, f := range all {
		if r.leave != "" {
			return
		}
		r.step()
		f(r, s)
	}
}

func (p *parser) ifs() stmt {
	condition := p.tuple()
	p.closeBlock()
	then := p.body("elif", "else", "endif")
	var other []stmt
	switch p.endTag() {
	case "elif":
		defer p.deeper()()
		other = []stmt{p.ifs()}
	case "else":
		p.closeBlock()
		other = p.body("endif")
		p.endTag()
		p.closeBlock()
	default:
		p.closeBlock()
	}
	return func(r *run, s *scope) {
		if truth(condition(r, s)) {
			do(then, r, s)
		} else {
			do(other, r, s)
		}
	}
}

// targets reads the names on the left of an assignment: one, or several for a value's items.
func (p *parser) targets() (names []string) {
	open := p.skip("(")
	names = append(names, p.name())
	for p.skip(",") {
		names = append(names, p.name())
	}
	if open {
		p.want(")")
	}
	return names
}

func (p *parser) forLoop() stmt {
	at := p.next().at
	names := p.targets()
	p.want("in")
	over := p.or()
	if p.skip(",") {
		p.fail("a list without brackets is not supported")
	}
	var filter expr
	if p.skip("if") {
		filter = p.conditional()
	}
	if p.is("recursive") {
		p.fail("a recursive loop is not supported")
	}
	p.closeBlock()
	p.loops++
	body := p.body("else", "endfor")
	p.loops--
	var empty []stmt
	if p.endTag() == "else" {
		p.closeBlock()
		empty = p.body("endfor")
		p.endTag()
	}
	p.closeBlock()
	l := &loop{at, names, over, filter, body, empty}
	return l.run
}

func (p *parser) set() stmt {
	at := p.next().at
	first := p.name()
	if p.skip(".") {
		part := p.name()
		p.want("=")
		value := p.tuple()
		p.closeBlock()
		return func(r *run, s *scope) {
			in, ok := s.get(first).(*space)
			if !ok {
				r.fail(at, "%s is not a namespace, so %s.%s cannot be set", first, first, part)
			}
			in.Set(part, value(r, s))
		}
	}
	names := []string{first}
	for p.skip(",") {
		names = append(names, p.name())
	}
	if p.skip("=") {
		value := p.tuple()
		p.closeBlock()
		return func(r *run, s *scope) { r.assign(at, s, names, value(r, s)) }
	}
	if p.is("|") {
		p.fail("a set block with a filter is not supported")
	}
	p.closeBlock()
	body := p.body("endset")
	p.endTag()
	p.closeBlock()
	return func(r *run, s *scope) { r.assign(at, s, names, r.capture(body, s)) }
}

func (p *parser) macro() stmt {
	at := p.next().at
	m := &macro{name: p.name()}
	p.want("(")
	for !p.skip(")") {
		m.params = append(m.params, p.name())
		var initial expr
		if p.skip("=") {
			initial = p.conditional()
		}
		m.initial = append(m.initial, initial)
		if !p.is(")") {
			p.want(",")
		}
	}
	p.closeBlock()
	loops := p.loops
	p.loops = 0
	m.body = p.body("endmacro")
	p.loops = loops
	p.endTag()
	p.closeBlock()
	return func(r *run, s *scope) {
		r.hold(at, scopeSize)
		defined := *m
		defined.in = s
		r.assign(at, s, []string{m.name}, &defined)
	}
}

func (p *parser) generation() stmt {
	at := p.next().at
	p.closeBlock()
	loops := p.loops
	p.loops = 0
	body := p.body("endgeneration")
	p.loops = loops
	p.endTag()
	p.closeBlock()
	return func(r *run, s *scope) {
		from := r.out.Len()
		do(body, r, s.inner())
		if r.captures == 0 {
			r.hold(at, itemSize)
			r.generated = append(r.generated, [2]int{from, r.out.Len()})
		}
	}
}
