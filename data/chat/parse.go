package chat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// expr is an expression, and stmt a statement: they fail by a panic with an *Error,
// which Render returns.
type (
	expr func(r *run, s *scope) Value
	stmt func(r *run, s *scope)
)

// Template is a template that was read. It may be used by many goroutines at once.
type Template struct {
	text string
	body []stmt
}

// Parse reads a template. Its error is an *Error.
func Parse(text string) (t *Template, err error) {
	if len(text) > MaxTemplate {
		return nil, &Error{1, 1, fmt.Errorf("%d bytes; a template has at most %d", len(text), MaxTemplate)}
	}
	text, tokens, err := lex(text)
	if err != nil {
		return nil, err
	}
	p := &parser{text: text, tokens: tokens}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *Error:
			t, err = nil, e
		default:
			panic(e)
		}
	}()
	body := p.body()
	if p.next().kind != end {
		p.fail("%s without its beginning", p.next().text)
	}
	return &Template{text, body}, nil
}

type parser struct {
	text   string
	tokens []token
	depth  int
	loops  int // for statements around
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

// is tells whether the next token is a word or a sign.
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
		p.fail("%s where %s is wanted", p.shown(), text)
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
		p.fail("%s where a name is wanted", p.shown())
	}
	return p.take().text
}

func (p *parser) closeBlock() {
	if p.next().kind != blockEnd {
		p.fail("%s where the tag should end", p.shown())
	}
	p.take()
}

// deeper counts what is within each other.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > maxDepth {
		p.fail("more than %d things within each other", maxDepth)
	}
	return func() { p.depth-- }
}

// body reads up to a tag that begins with one of the words, which stays.
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
				v := e(r, s)
				r.look(t.at, v)
				r.write(t.at, printed(v))
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
				p.fail("the template ends, and %s is missing", strings.Join(until, " or "))
			}
			return all
		}
	}
}

// endTag reads a tag of one word, which body has stopped at.
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
	p.failAt(at, "the statement %s is not done here", word)
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

// targets are the names that a value is given to: one, or several for its parts.
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
		p.fail("a list without brackets is not done here")
	}
	var filter expr
	if p.skip("if") {
		filter = p.conditional()
	}
	if p.is("recursive") {
		p.fail("a recursive loop is not done here")
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
				r.fail(at, "%s is no namespace, so %s.%s cannot be set", first, first, part)
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
		p.fail("a set block with a filter is not done here")
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
		own := *m
		own.in = s
		r.assign(at, s, []string{m.name}, &own)
	}
}

func (p *parser) generation() stmt {
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
			r.generated = append(r.generated, [2]int{from, r.out.Len()})
		}
	}
}

// tuple is an expression, or several with commas: a list.
func (p *parser) tuple() expr {
	first := p.conditional()
	if !p.is(",") {
		return first
	}
	all := []expr{first}
	for p.skip(",") {
		all = append(all, p.conditional())
	}
	return listOf(p.next().at, all)
}

func listOf(at int, all []expr) expr {
	return func(r *run, s *scope) Value {
		l := &List{}
		for _, e := range all {
			l.Items = append(l.Items, e(r, s))
		}
		return r.made(at, l)
	}
}

func (p *parser) conditional() expr {
	defer p.deeper()()
	value := p.or()
	if !p.skip("if") {
		return value
	}
	condition := p.or()
	other := expr(func(*run, *scope) Value { return undefined{"the else of an if"} })
	if p.skip("else") {
		other = p.conditional()
	}
	return func(r *run, s *scope) Value {
		if truth(condition(r, s)) {
			return value(r, s)
		}
		return other(r, s)
	}
}

func (p *parser) or() expr {
	a := p.and()
	for p.skip("or") {
		left, b := a, p.and()
		a = func(r *run, s *scope) Value {
			if v := left(r, s); truth(v) {
				return v
			}
			return b(r, s)
		}
	}
	return a
}

func (p *parser) and() expr {
	a := p.not()
	for p.skip("and") {
		left, b := a, p.not()
		a = func(r *run, s *scope) Value {
			if v := left(r, s); !truth(v) {
				return v
			}
			return b(r, s)
		}
	}
	return a
}

func (p *parser) not() expr {
	if p.skip("not") {
		defer p.deeper()()
		a := p.not()
		return func(r *run, s *scope) Value { return !truth(a(r, s)) }
	}
	return p.compare()
}

var comparisons = []string{"==", "!=", "<=", ">=", "<", ">", "in", "not"}

// compare is a chain: a < b < c is a < b and b < c.
func (p *parser) compare() expr {
	type link struct {
		at int
		op string
		b  expr
	}
	a := p.sum()
	var chain []link
	for slices.ContainsFunc(comparisons, p.is) {
		op := p.next()
		if op.text == "not" && (p.tokens[1].kind != name || p.tokens[1].text != "in") {
			break
		}
		p.take()
		if op.text == "not" {
			p.take()
			op.text = "not in"
		}
		chain = append(chain, link{op.at, op.text, p.sum()})
	}
	if len(chain) == 0 {
		return a
	}
	return func(r *run, s *scope) Value {
		left := a(r, s)
		for _, l := range chain {
			right := l.b(r, s)
			if !r.compare(l.at, l.op, left, right) {
				return false
			}
			left = right
		}
		return true
	}
}

// binary reads a chain of operators of one rank.
func (p *parser) binary(operand func() expr, operators ...string) expr {
	a := operand()
	for slices.ContainsFunc(operators, p.is) {
		op := p.take()
		left, b := a, operand()
		a = func(r *run, s *scope) Value {
			x := left(r, s)
			return r.operate(op.at, op.text, x, b(r, s))
		}
	}
	return a
}

func (p *parser) sum() expr     { return p.binary(p.concat, "+", "-") }
func (p *parser) concat() expr  { return p.binary(p.product, "~") }
func (p *parser) product() expr { return p.binary(p.power, "*", "/", "//", "%") }

func (p *parser) power() expr {
	a := p.unary(true)
	if p.is("**") {
		p.fail("the operator ** is not done here")
	}
	return a
}

func (p *parser) unary(filters bool) expr {
	defer p.deeper()()
	var a expr
	switch t := p.next(); {
	case p.skip("-"):
		b := p.unary(false)
		a = func(r *run, s *scope) Value { return r.operate(t.at, "-", int64(0), b(r, s)) }
	case p.skip("+"):
		a = p.unary(false)
	default:
		a = p.postfix(p.primary())
	}
	for filters {
		switch {
		case p.is("|"):
			a = p.filter(a)
		case p.is("is"):
			a = p.test(a)
		case p.is("("):
			a = p.call(a, "")
		default:
			return a
		}
	}
	return a
}

var constants = map[string]Value{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

// reserved are words that no variable has.
var reserved = []string{"if", "else", "elif", "for", "in", "is", "and", "or", "not", "set", "import", "recursive", "endif", "endfor"}

func (p *parser) primary() expr {
	t := p.take()
	constant := func(v Value) expr { return func(*run, *scope) Value { return v } }
	switch t.kind {
	case name:
		if v, ok := constants[t.text]; ok {
			return constant(v)
		}
		if slices.Contains(reserved, t.text) {
			p.failAt(t.at, "%s where a value is wanted", t.text)
		}
		return func(_ *run, s *scope) Value { return s.get(t.text) }
	case str:
		text := t.text
		for p.next().kind == str {
			text += p.take().text
		}
		return constant(text)
	case integer:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil || n > maxNumber {
			p.failAt(t.at, "the number %s is too large", t.text)
		}
		return constant(n)
	case float:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.failAt(t.at, "the number %s is too large", t.text)
		}
		return constant(f)
	case sign:
		switch t.text {
		case "(":
			return p.parenthesis()
		case "[":
			return listOf(t.at, p.items("]"))
		case "{":
			return p.dict(t.at)
		}
	}
	p.failAt(t.at, "%q where a value is wanted", t.text)
	return nil
}

func (p *parser) parenthesis() expr {
	if p.skip(")") {
		return listOf(p.next().at, nil)
	}
	first := p.conditional()
	if p.skip(")") {
		return first
	}
	p.want(",")
	return listOf(p.next().at, append([]expr{first}, p.items(")")...))
}

func (p *parser) items(closing string) (all []expr) {
	for !p.skip(closing) {
		all = append(all, p.conditional())
		if !p.is(closing) {
			p.want(",")
		}
	}
	return all
}

func (p *parser) dict(at int) expr {
	var keys, values []expr
	for !p.skip("}") {
		keys = append(keys, p.conditional())
		p.want(":")
		values = append(values, p.conditional())
		if !p.is("}") {
			p.want(",")
		}
	}
	return func(r *run, s *scope) Value {
		d := &Dict{}
		for i := range keys {
			k := keys[i](r, s)
			switch k.(type) {
			case string, int64, bool, nil:
			default:
				r.fail(at, "%s as a key", describe(k))
			}
			d.Set(k, values[i](r, s))
		}
		return r.made(at, d)
	}
}

func (p *parser) postfix(a expr) expr {
	for {
		switch {
		case p.is("."):
			a = p.attribute(a)
		case p.is("["):
			a = p.subscript(a)
		case p.is("("):
			a = p.call(a, "")
		default:
			return a
		}
	}
}

func (p *parser) attribute(of expr) expr {
	at := p.take().at
	if p.next().kind == integer {
		p.fail("a number behind a dot is not done here")
	}
	part := p.name()
	get := func(r *run, s *scope) Value { return r.attribute(at, of(r, s), part) }
	if !p.is("(") {
		return get
	}
	if _, known := methods[part]; !known {
		p.failAt(at, "the method %s is not done here", part)
	}
	return p.call(get, part)
}

func (p *parser) subscript(of expr) expr {
	at := p.take().at
	var bounds [3]expr
	n, slice := 0, false
	for !p.skip("]") {
		switch {
		case p.skip(":"):
			if slice = true; n == 2 {
				p.fail("a slice of more than three numbers")
			}
			n++
		case bounds[n] != nil:
			p.fail("%s where ] is wanted", p.shown())
		default:
			bounds[n] = p.tuple()
		}
	}
	if !slice && bounds[0] == nil {
		p.failAt(at, "brackets without an index")
	}
	return func(r *run, s *scope) Value {
		v := of(r, s)
		if !slice {
			return r.item(at, v, bounds[0](r, s))
		}
		var values [3]Value
		for i, b := range bounds {
			if b != nil {
				values[i] = b(r, s)
			}
		}
		return r.slice(at, v, values)
	}
}

// arguments are those of a call, read behind its bracket.
type arguments struct {
	values []expr
	names  []string
	named  []expr
}

func (p *parser) arguments() (a arguments) {
	for !p.skip(")") {
		if p.is("*") || p.is("**") {
			p.fail("arguments by %s are not done here", p.next().text)
		}
		if p.next().kind == name && p.tokens[1].kind == sign && p.tokens[1].text == "=" {
			a.names = append(a.names, p.name())
			p.take()
			a.named = append(a.named, p.conditional())
		} else {
			a.values = append(a.values, p.conditional())
		}
		if !p.is(")") {
			p.want(",")
		}
	}
	return a
}

// given are arguments with their values.
type given struct {
	values []Value
	named  Dict
}

func (a arguments) eval(r *run, s *scope) (g given) {
	for _, e := range a.values {
		g.values = append(g.values, e(r, s))
	}
	for i, e := range a.named {
		g.named.Set(a.names[i], e(r, s))
	}
	return g
}

func (p *parser) call(f expr, what string) expr {
	at := p.take().at
	a := p.arguments()
	return func(r *run, s *scope) Value {
		callee := f(r, s)
		return r.call(at, callee, a.eval(r, s))
	}
}

func (p *parser) filter(of expr) expr {
	p.take()
	at := p.next().at
	word := p.name()
	f, known := filters()[word]
	if !known {
		p.failAt(at, "the filter %s is not done here", word)
	}
	var a arguments
	if p.skip("(") {
		a = p.arguments()
	}
	return func(r *run, s *scope) Value {
		v := of(r, s)
		r.look(at, v)
		return r.made(at, f(&caller{r, at, word}, v, a.eval(r, s)))
	}
}

func (p *parser) test(of expr) expr {
	p.take()
	not := p.skip("not")
	at := p.next().at
	word := p.name()
	f, known := tests[word]
	if !known {
		p.failAt(at, "the test %s is not done here", word)
	}
	var a arguments
	if p.skip("(") {
		a = p.arguments()
	} else if t := p.next(); t.kind == str || t.kind == integer || t.kind == float || t.kind == sign && strings.Contains("[{", t.text) ||
		t.kind == name && !slices.Contains([]string{"else", "or", "and", "is", "if", "not", "in"}, t.text) {
		a.values = []expr{p.postfix(p.primary())}
	}
	return func(r *run, s *scope) Value {
		v := of(r, s)
		r.step()
		return f(&caller{r, at, word}, v, a.eval(r, s)) != not
	}
}
