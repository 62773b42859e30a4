package chat

import (
	"slices"
	"strconv"
	"strings"
)

// tuple reads an expression, or several separated by commas.
func (p *parser) tuple() expr {
	first := p.conditional()
	if !p.is(",") {
		return first
	}
	all := []expr{first}
	for p.skip(",") {
		all = append(all, p.conditional())
	}
	return listOf(p.next().at, tuple, all)
}

func listOf(at int, kind sequence, all []expr) expr {
	return func(r *run, s *scope) Value {
		r.hold(at, itemSize*(1+len(all)))
		l := &List{kind: kind, Items: make([]Value, 0, len(all))}
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

// compare reads a chain of comparisons: a < b < c means a < b and b < c.
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

// binary reads a chain of operators of the same precedence.
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
		p.fail("the operator ** is not supported")
	}
	return a
}

func (p *parser) unary(filters bool) expr {
	defer p.deeper()()
	var a expr
	switch t := p.next(); {
	case p.skip("-"):
		b := p.unary(false)
		a = func(r *run, s *scope) Value { return r.signed(t.at, -1, b(r, s)) }
	case p.skip("+"):
		b := p.unary(false)
		a = func(r *run, s *scope) Value { return r.signed(t.at, 1, b(r, s)) }
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
			a = p.call(a)
		default:
			return a
		}
	}
	return a
}

var constants = map[string]Value{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

// reserved are words that cannot be variables.
var reserved = []string{"if", "else", "elif", "for", "in", "is", "and", "or", "not", "set", "import", "recursive", "endif", "endfor"}

// absent lists variables that every template or macro has in the reference but not here.
var absent = []string{"self", "varargs", "kwargs", "lipsum", "cycler", "joiner"}

func (p *parser) primary() expr {
	t := p.take()
	constant := func(v Value) expr { return func(*run, *scope) Value { return v } }
	switch t.kind {
	case name:
		if v, ok := constants[t.text]; ok {
			return constant(v)
		}
		if slices.Contains(reserved, t.text) {
			p.failAt(t.at, "%s where a value is expected", t.text)
		}
		if slices.Contains(absent, t.text) {
			p.failAt(t.at, "%s is not supported", t.text)
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
			return listOf(t.at, list, p.items("]"))
		case "{":
			return p.dict(t.at)
		}
	}
	p.failAt(t.at, "%q where a value is expected", t.text)
	return nil
}

func (p *parser) parenthesis() expr {
	if p.skip(")") {
		return listOf(p.next().at, tuple, nil)
	}
	first := p.conditional()
	if p.skip(")") {
		return first
	}
	p.want(",")
	return listOf(p.next().at, tuple, append([]expr{first}, p.items(")")...))
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
		r.hold(at, entrySize*(1+len(keys)))
		for i := range keys {
			k := keys[i](r, s)
			r.look(at, k)
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
			a = p.call(a)
		default:
			return a
		}
	}
}

func (p *parser) attribute(object expr) expr {
	at := p.take().at
	if p.next().kind == integer {
		p.fail("a number after a dot is not supported")
	}
	part := p.name()
	get := func(r *run, s *scope) Value { return r.attribute(at, object(r, s), part) }
	if !p.is("(") {
		return get
	}
	if _, known := methods[part]; !known {
		p.failAt(at, "the method %s is not supported", part)
	}
	return p.call(get)
}

func (p *parser) subscript(object expr) expr {
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
			p.fail("%s where ] is expected", p.shown())
		default:
			bounds[n] = p.tuple()
		}
	}
	if !slice && bounds[0] == nil {
		p.failAt(at, "brackets without an index")
	}
	return func(r *run, s *scope) Value {
		v := object(r, s)
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

// arguments are the arguments of a call, read after its opening bracket.
type arguments struct {
	values []expr
	names  []string
	named  []expr
}

func (p *parser) arguments() (a arguments) {
	for !p.skip(")") {
		if p.is("*") || p.is("**") {
			p.fail("arguments with %s are not supported", p.next().text)
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

// given are evaluated arguments.
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

func (p *parser) call(f expr) expr {
	at := p.take().at
	a := p.arguments()
	return func(r *run, s *scope) Value {
		callee := f(r, s)
		return r.call(at, callee, a.eval(r, s))
	}
}

func (p *parser) filter(operand expr) expr {
	p.take()
	at := p.next().at
	word := p.name()
	f, known := filters()[word]
	if !known {
		p.failAt(at, "the filter %s is not supported", word)
	}
	var a arguments
	if p.skip("(") {
		a = p.arguments()
	}
	return func(r *run, s *scope) Value {
		v := operand(r, s)
		r.step()
		r.look(at, v)
		g := a.eval(r, s)
		r.lookAll(at, g)
		return r.made(at, f(&caller{r, at, word}, v, g))
	}
}

func (p *parser) test(operand expr) expr {
	p.take()
	not := p.skip("not")
	at := p.next().at
	word := p.name()
	f, known := tests[word]
	if !known {
		p.failAt(at, "the test %s is not supported", word)
	}
	var a arguments
	if p.skip("(") {
		a = p.arguments()
	} else if t := p.next(); t.kind == str || t.kind == integer || t.kind == float || t.kind == sign && strings.Contains("[{", t.text) ||
		t.kind == name && !slices.Contains([]string{"else", "or", "and", "is", "if", "not", "in"}, t.text) {
		a.values = []expr{p.postfix(p.primary())}
	}
	return func(r *run, s *scope) Value {
		v := operand(r, s)
		r.step()
		g := a.eval(r, s)
		r.lookAll(at, g)
		return f(&caller{r, at, word}, v, g) != not
	}
}
