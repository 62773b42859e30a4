package chat

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// compare evaluates one comparison.
func (r *run) compare(at int, op string, a, b Value) bool {
	r.look(at, a)
	r.look(at, b)
	switch op {
	case "==":
		return equal(a, b)
	case "!=":
		return !equal(a, b)
	case "in":
		return r.contains(at, b, a)
	case "not in":
		return !r.contains(at, b, a)
	}
	var c int
	x, n, whole, ok := number(a)
	y, m, whole2, ok2 := number(b)
	s, ok3 := a.(string)
	t, ok4 := b.(string)
	switch {
	case whole && whole2: // a float64 is not exact above 2^53
		c = cmp.Compare(n, m)
	case ok && ok2 && x < y:
		c = -1
	case ok && ok2 && x > y:
		c = 1
	case ok && ok2:
	case ok3 && ok4:
		c = strings.Compare(s, t)
	default:
		r.fail(at, "%s %s %s", describe(a), op, describe(b))
	}
	return op == "<" && c < 0 || op == "<=" && c <= 0 || op == ">" && c > 0 || op == ">=" && c >= 0
}

// contains evaluates x in v.
func (r *run) contains(at int, v, x Value) bool {
	switch v := v.(type) {
	case string:
		part, ok := x.(string)
		if !ok {
			r.fail(at, "%s in a string", describe(x))
		}
		return strings.Contains(v, part)
	case *Dict:
		switch x.(type) {
		case *List, *Dict:
			r.fail(at, "%s cannot be a key of a map", describe(x))
		}
		_, ok := v.Get(x)
		return ok
	}
	return slices.ContainsFunc(r.iterate(at, v), func(item Value) bool { return equal(item, x) })
}

// operate evaluates a op b.
func (r *run) operate(at int, op string, a, b Value) Value {
	r.step()
	if op == "~" {
		s, t := r.printed(at, a), r.printed(at, b)
		r.long(at, len(s)+len(t))
		return s + t
	}
	x, n, whole, ok := number(a)
	y, m, whole2, ok2 := number(b)
	switch {
	case ok && ok2 && whole && whole2 && op != "/":
		return r.integers(at, op, n, m)
	case ok && ok2:
		return r.floats(at, op, x, y)
	case op == "+":
		if s, ok := a.(string); ok {
			if t, ok := b.(string); ok {
				r.long(at, len(s)+len(t))
				return s + t
			}
		}
		if s, ok := a.(*List); ok {
			if t, ok := b.(*List); ok && s.kind == t.kind && s.kind <= tuple {
				r.hold(at, itemSize*(1+len(s.Items)+len(t.Items)))
				return r.made(at, &List{Items: slices.Concat(s.Items, t.Items), kind: s.kind})
			}
		}
	case op == "*":
		if s, ok := a.(string); ok && whole2 && ok2 {
			m = max(m, 0)
			if m > 0 && len(s) > 0 {
				r.long(at, int(min(m, MaxOutput+1))*len(s))
			}
			return strings.Repeat(s, int(min(m, MaxOutput)))
		}
		if s, ok := b.(string); ok && whole && op == "*" {
			return r.operate(at, op, s, n)
		}
	}
	r.fail(at, "%s %s %s", describe(a), op, describe(b))
	return nil
}

// signed evaluates +v or -v.
func (r *run) signed(at int, sign int64, v Value) Value {
	if _, _, _, ok := number(v); !ok {
		r.fail(at, "the sign of %s", describe(v))
	}
	return r.operate(at, "*", sign, v)
}

func (r *run) integers(at int, op string, a, b int64) Value {
	if b == 0 && (op == "//" || op == "%") {
		r.fail(at, "division by 0")
	}
	if max(a, b) > maxNumber || min(a, b) < -maxNumber {
		r.fail(at, "a number above 2^53")
	}
	var n int64
	switch op {
	case "+":
		n = a + b
	case "-":
		n = a - b
	case "*":
		if f := float64(a) * float64(b); math.Abs(f) > maxNumber {
			r.fail(at, "a number above 2^53")
		}
		n = a * b
	case "//", "%":
		n = a / b
		if a%b != 0 && (a < 0) != (b < 0) { // Python rounds down
			n--
		}
		if op == "%" {
			n = a - n*b
		}
	}
	if n > maxNumber || n < -maxNumber {
		r.fail(at, "a number above 2^53")
	}
	return n
}

func (r *run) floats(at int, op string, a, b float64) Value {
	if b == 0 && (op == "/" || op == "//" || op == "%") {
		r.fail(at, "division by 0")
	}
	switch op {
	case "+":
		return a + b
	case "-":
		return a - b
	case "*":
		return a * b
	case "/":
		return a / b
	}
	rest := math.Mod(a, b)
	if rest != 0 && (b < 0) != (rest < 0) {
		rest += b
	}
	if op == "%" {
		if rest == 0 {
			return math.Copysign(0, b)
		}
		return rest
	}
	whole := math.Round((a - rest) / b)
	if whole == 0 {
		return math.Copysign(0, a/b)
	}
	return whole
}
