package chat

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// one returns the only argument, given by position or by name, or initial if there is none.
func (c *caller) one(g given, name string, initial Value) Value {
	if len(g.values) > 1 {
		c.fail("%d arguments", len(g.values))
	}
	for _, k := range g.named.keys {
		if k != name {
			c.fail("unknown argument %s", quoted(k))
		}
	}
	if v, ok := g.named.Get(name); ok {
		return v
	}
	if len(g.values) == 1 {
		return g.values[0]
	}
	return initial
}

// none fails if there are arguments.
func (c *caller) none(g given) {
	if len(g.values)+len(g.named.keys) > 0 {
		c.fail("it takes no arguments")
	}
}

func (c *caller) text(v Value) string {
	s, ok := v.(string)
	if !ok {
		c.fail("%s where a string is expected", describe(v))
	}
	return s
}

type filter func(c *caller, v Value, g given) Value

// plainText returns a filter that applies f to the printed value.
func plainText(f func(c *caller, s string) string) filter {
	return func(c *caller, v Value, g given) Value {
		c.none(g)
		s := c.r.printed(c.at, v)
		c.r.long(c.at, len(s))
		return f(c, s)
	}
}

func unchanged(_ *caller, s string) string { return s }

// several contains the letters that Python's upper expands to several letters.
const several = "ßŉǰΐΰևẖẗẘẙẚὐὒὔὖᾀᾁᾂᾃᾄᾅᾆᾇᾈᾉᾊᾋᾌᾍᾎᾏᾐᾑᾒᾓᾔᾕᾖᾗᾘᾙᾚᾛᾜᾝᾞᾟᾠᾡᾢᾣᾤᾥᾦᾧᾨᾩᾪᾫᾬᾭᾮᾯᾲᾳᾴᾶᾷᾼῂῃῄῆῇῌῒΐῖῗῢΰῤῦῧῲῳῴῶῷῼﬀﬁﬂﬃﬄﬅﬆﬓﬔﬕﬖﬗ"

func upper(c *caller, s string) string {
	c.plainCase(s, several)
	return strings.ToUpper(s)
}

func lower(c *caller, s string) string {
	c.plainCase(s, "İΣ") // Σ depends on its place in the word
	return strings.ToLower(s)
}

func capitalized(c *caller, s string) string {
	first, n := utf8.DecodeRuneInString(s)
	if unicode.ToTitle(first) != unicode.ToUpper(first) {
		c.plainCase(s[:n], s[:n])
	}
	return upper(c, s[:n]) + lower(c, s[n:])
}

// plainCase refuses letters that Python does not convert one by one.
func (c *caller) plainCase(s, special string) {
	c.r.spend(c.at, len(s))
	if i := strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 && strings.ContainsRune(special, r) }); i >= 0 {
		r, _ := utf8.DecodeRuneInString(s[i:])
		c.fail("the letter %q is not supported", r)
	}
}

// filters returns the supported filters by name.
func filters() map[string]filter {
	return map[string]filter{
		"trim": func(c *caller, v Value, g given) Value {
			return stripped(c, c.r.printed(c.at, v), c.one(g, "chars", nil), true, true)
		},
		"length": length, "count": length,
		"tojson":  asJSON,
		"string":  plainText(unchanged),
		"upper":   plainText(upper),
		"lower":   plainText(lower),
		"safe":    plainText(unchanged),
		"list":    listed,
		"reverse": reversed, "first": first, "last": last,
		"join": joined, "default": initial, "d": initial,
		"items": func(c *caller, v Value, g given) Value {
			if _, ok := v.(undefined); ok {
				return &iterator{}
			}
			return &iterator{items: items(c, v, g).(*List).Items}
		},
		"int": toInt, "replace": replaced, "map": mapped,
		"select":     func(c *caller, v Value, g given) Value { return selected(c, v, g, false, true) },
		"reject":     func(c *caller, v Value, g given) Value { return selected(c, v, g, false, false) },
		"selectattr": func(c *caller, v Value, g given) Value { return selected(c, v, g, true, true) },
		"rejectattr": func(c *caller, v Value, g given) Value { return selected(c, v, g, true, false) },
		"capitalize": plainText(capitalized),
	}
}

func listed(c *caller, v Value, g given) Value {
	c.none(g)
	return &List{Items: c.r.iterate(c.at, v)}
}

func length(c *caller, v Value, g given) Value {
	c.none(g)
	switch v := v.(type) {
	case string:
		return int64(utf8.RuneCountInString(v))
	case *List, *Dict, undefined:
		return int64(len(c.r.iterate(c.at, v)))
	}
	c.fail("%s has no length", describe(v))
	return nil
}

func asJSON(c *caller, v Value, g given) Value {
	indent := -1
	for _, k := range g.named.keys {
		switch x := g.named.at(k); {
		case k == "indent" && x != nil:
			n, ok := x.(int64)
			if !ok || n < 0 || n > 100 {
				c.fail("indent is %s", quoted(x))
			}
			indent = int(n)
		case k == "indent", k == "ensure_ascii" && x == false, k == "sort_keys" && x == false:
		default:
			c.fail("the argument %s=%s is not supported", quoted(k), quoted(x))
		}
	}
	if len(g.values) > 0 {
		c.fail("positional arguments")
	}
	c.r.brief(c.at, v)
	var b strings.Builder
	if err := toJSON(&b, v, indent, 0); err != nil {
		c.fail("%v", err)
	}
	c.r.long(c.at, b.Len())
	return b.String()
}

func reversed(c *caller, v Value, g given) Value {
	c.none(g)
	all := c.r.iterate(c.at, v)
	c.r.hold(c.at, itemSize*len(all))
	back := slices.Clone(all)
	slices.Reverse(back)
	switch v.(type) {
	case string:
	case *iterator:
		return &List{Items: back}
	default:
		return &iterator{items: back}
	}
	var b strings.Builder
	for _, x := range back {
		b.WriteString(x.(string))
	}
	return b.String()
}

func first(c *caller, v Value, g given) Value {
	c.none(g)
	if all := c.r.iterate(c.at, v); len(all) > 0 {
		return all[0]
	}
	return undefined{"the first item"}
}

func last(c *caller, v Value, g given) Value {
	c.none(g)
	if all := c.r.iterate(c.at, v); len(all) > 0 {
		return all[len(all)-1]
	}
	return undefined{"the last item"}
}

func joined(c *caller, v Value, g given) Value {
	between := c.r.printed(c.at, c.one(g, "d", ""))
	all := c.r.iterate(c.at, v)
	c.r.hold(c.at, itemSize*len(all))
	parts, n := make([]string, 0, len(all)), 0
	for _, x := range all {
		parts = append(parts, c.r.printed(c.at, x))
		if n += len(between) + len(parts[len(parts)-1]); n > MaxOutput {
			break
		}
	}
	c.r.long(c.at, n)
	return strings.Join(parts, between)
}

func initial(c *caller, v Value, g given) Value {
	also := false
	if len(g.values) == 2 {
		also = truth(g.values[1])
		g.values = g.values[:1]
	}
	if b, ok := g.named.Get("boolean"); ok {
		also = truth(b)
		only := Dict{}
		if d, ok := g.named.Get("default_value"); ok {
			only.Set("default_value", d)
		}
		g.named = only
	}
	other := c.one(g, "default_value", "")
	if _, missing := v.(undefined); missing || also && !truth(v) {
		return other
	}
	return v
}

func toInt(c *caller, v Value, g given) Value {
	other := c.one(g, "default", int64(0))
	switch v := v.(type) {
	case string:
		c.plainNumber(v)
		if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 54); err == nil {
			return n
		}
		if f, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil && f < maxNumber && f > -maxNumber {
			return int64(f)
		}
		return other
	case float64:
		return int64(v)
	case undefined:
		c.fail("%s is not a number", describe(v))
	}
	if _, n, _, ok := number(v); ok {
		return n
	}
	return other
}

// plainNumber refuses texts that only one of Python and Go reads as numbers: 1_000, 0x1p4, other digits.
func (c *caller) plainNumber(s string) {
	if strings.ContainsAny(s, "_xX") || strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 && unicode.IsDigit(r) }) {
		c.fail("the text %.40q is not supported", s)
	}
}

func replaced(c *caller, v Value, g given) Value {
	if len(g.values) != 2 || len(g.named.keys) > 0 {
		c.fail("it takes the text to replace and the replacement")
	}
	return replaceText(c, c.r.printed(c.at, v), c.text(g.values[0]), c.text(g.values[1]))
}

func replaceText(c *caller, s, from, to string) string {
	c.r.long(c.at, len(s)+(strings.Count(s, from))*max(0, len(to)-len(from)))
	return strings.ReplaceAll(s, from, to)
}

// part returns an attribute of a value, given a dotted name.
func (c *caller) part(v Value, name string) Value {
	if len(name) > maxName {
		c.fail("an attribute's name of more than %d bytes", maxName)
	}
	for _, key := range strings.Split(name, ".") {
		v = c.r.item(c.at, v, key)
	}
	return v
}

func mapped(c *caller, v Value, g given) Value {
	out := &iterator{}
	attribute, byName := g.named.Get("attribute")
	if byName {
		other, has := g.named.Get("default")
		for _, x := range c.r.iterate(c.at, v) {
			c.r.hold(c.at, itemSize)
			x = c.part(x, c.text(attribute))
			if _, missing := x.(undefined); missing && has {
				x = other
			}
			out.items = append(out.items, x)
		}
		return out
	}
	if len(g.values) == 0 {
		c.fail("no attribute or filter given")
	}
	f, ok := filters()[c.text(g.values[0])]
	if !ok {
		c.fail("the filter %s is not supported", quoted(g.values[0]))
	}
	for _, x := range c.r.iterate(c.at, v) {
		c.r.hold(c.at, itemSize+stepWork)
		c.r.look(c.at, x)
		out.items = append(out.items, f(c, x, given{values: g.values[1:], named: g.named}))
	}
	return out
}

// selected returns the items for which the test of the item, or of its attribute, equals want.
func selected(c *caller, v Value, g given, attribute, want bool) Value {
	if len(g.named.keys) > 0 {
		c.fail("named arguments")
	}
	name, args := "", g.values
	if attribute {
		if len(args) == 0 {
			c.fail("no attribute given")
		}
		name, args = c.text(args[0]), args[1:]
	}
	test := func(c *caller, v Value, _ given) bool { return truth(v) }
	if len(args) > 0 {
		known, ok := tests[c.text(args[0])]
		if !ok {
			c.fail("the test %s is not supported", quoted(args[0]))
		}
		test, args = known, args[1:]
	}
	out := &iterator{}
	for _, x := range c.r.iterate(c.at, v) {
		c.r.hold(c.at, itemSize+stepWork)
		y := x
		if attribute {
			y = c.part(x, name)
		}
		if test(c, y, given{values: args}) == want {
			out.items = append(out.items, x)
		}
	}
	return out
}

// isKind returns a test of a value's kind.
func isKind(f func(Value) bool) func(*caller, Value, given) bool {
	return func(c *caller, v Value, g given) bool {
		c.none(g)
		return f(v)
	}
}

// remainder returns a test of a number's remainder when divided by 2.
func remainder(want float64) func(*caller, Value, given) bool {
	return func(c *caller, v Value, g given) bool {
		c.none(g)
		x, _, _, ok := number(v)
		if !ok {
			c.fail("%s where a number is expected", describe(v))
		}
		return math.Abs(math.Mod(x, 2)) == want
	}
}

// comparing returns a test that compares with its argument.
func comparing(op string) func(*caller, Value, given) bool {
	return func(c *caller, v Value, g given) bool {
		if len(g.values) != 1 {
			c.fail("it takes one value")
		}
		return c.r.compare(c.at, op, v, g.values[0])
	}
}

var tests = map[string]func(*caller, Value, given) bool{
	"defined":   isKind(func(v Value) bool { _, no := v.(undefined); return !no }),
	"undefined": isKind(func(v Value) bool { _, no := v.(undefined); return no }),
	"none":      isKind(func(v Value) bool { return v == nil }),
	"string":    isKind(func(v Value) bool { _, ok := v.(string); return ok }),
	"mapping":   isKind(func(v Value) bool { _, ok := v.(*Dict); return ok }),
	"boolean":   isKind(func(v Value) bool { _, ok := v.(bool); return ok }),
	"true":      isKind(func(v Value) bool { return v == true }),
	"false":     isKind(func(v Value) bool { return v == false }),
	"integer":   isKind(func(v Value) bool { _, ok := v.(int64); return ok }),
	"float":     isKind(func(v Value) bool { _, ok := v.(float64); return ok }),
	"number":    isKind(func(v Value) bool { _, _, _, ok := number(v); return ok }),
	"iterable":  isKind(func(v Value) bool { _, ok := v.(*iterator); return ok || measured(v) }),
	"sequence":  isKind(func(v Value) bool { l, ok := v.(*List); return measured(v) && !(ok && l.kind == view) }),
	"odd":       remainder(1),
	"even":      remainder(0),
	"in":        comparing("in"),
	"equalto":   comparing("=="), "eq": comparing("=="), "==": comparing("=="), "ne": comparing("!="), "!=": comparing("!="),
	"gt": comparing(">"), "ge": comparing(">="), "lt": comparing("<"), "le": comparing("<="),
}

// measured reports whether a value has a length.
func measured(v Value) bool {
	switch v.(type) {
	case string, *List, *Dict, undefined:
		return true
	}
	return false
}

// method is a method of values for which applies is true.
type method struct {
	applies func(Value) bool
	do      func(c *caller, v Value, g given) Value
}

func ofText(v Value) bool { _, ok := v.(string); return ok }
func ofDict(v Value) bool { _, ok := v.(*Dict); return ok }

// textMethod returns a method of strings.
func textMethod(f func(c *caller, s string, g given) Value) method {
	return method{ofText, func(c *caller, v Value, g given) Value { return f(c, v.(string), g) }}
}

// cased returns a method that applies f, whose result is about as long as the text.
func cased(f func(c *caller, s string) string) func(*caller, string, given) Value {
	return func(c *caller, s string, g given) Value {
		c.none(g)
		c.r.long(c.at, len(s))
		return f(c, s)
	}
}

var methods = map[string]method{
	"strip":      textMethod(func(c *caller, s string, g given) Value { return stripped(c, s, c.one(g, "", nil), true, true) }),
	"lstrip":     textMethod(func(c *caller, s string, g given) Value { return stripped(c, s, c.one(g, "", nil), true, false) }),
	"rstrip":     textMethod(func(c *caller, s string, g given) Value { return stripped(c, s, c.one(g, "", nil), false, true) }),
	"upper":      textMethod(cased(upper)),
	"lower":      textMethod(cased(lower)),
	"startswith": textMethod(func(c *caller, s string, g given) Value { return affix(c, s, g, strings.HasPrefix) }),
	"endswith":   textMethod(func(c *caller, s string, g given) Value { return affix(c, s, g, strings.HasSuffix) }),
	"split":      textMethod(split),
	"replace":    textMethod(func(c *caller, s string, g given) Value { return replaced(c, s, g) }),
	"join": textMethod(func(c *caller, s string, g given) Value {
		parts := c.r.iterate(c.at, c.one(g, "", &List{}))
		for _, x := range parts {
			c.text(x)
		}
		return joined(c, &List{Items: parts}, given{values: []Value{s}})
	}),
	"find": textMethod(func(c *caller, s string, g given) Value {
		i := strings.Index(s, c.text(c.one(g, "", nil)))
		if i < 0 {
			return int64(-1)
		}
		return int64(utf8.RuneCountInString(s[:i]))
	}),
	"items": {ofDict, items},
	"keys":  {ofDict, func(c *caller, v Value, g given) Value { c.none(g); return &List{Items: v.(*Dict).keys, kind: view} }},
	"values": {ofDict, func(c *caller, v Value, g given) Value {
		c.none(g)
		out := &List{kind: view}
		c.r.hold(c.at, itemSize*len(v.(*Dict).keys))
		for _, k := range v.(*Dict).keys {
			out.Items = append(out.Items, v.(*Dict).at(k))
		}
		return out
	}},
	"get": {ofDict, func(c *caller, v Value, g given) Value {
		if len(g.values) < 1 || len(g.values) > 2 || len(g.named.keys) > 0 {
			c.fail("it takes a key and a default")
		}
		if x, ok := v.(*Dict).Get(g.values[0]); ok {
			return x
		}
		if len(g.values) == 2 {
			return g.values[1]
		}
		return nil
	}},
}

func items(c *caller, v Value, g given) Value {
	c.none(g)
	d, ok := v.(*Dict)
	if !ok {
		c.fail("%s has no items", describe(v))
	}
	out := &List{kind: view}
	c.r.hold(c.at, (entrySize+itemSize)*len(d.keys))
	for _, k := range d.keys {
		out.Items = append(out.Items, &List{Items: []Value{k, d.at(k)}, kind: tuple})
	}
	return out
}

// isSpace reports whether Python's str.strip removes r: white space, and four separators.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func stripped(c *caller, s string, chars Value, left, right bool) Value {
	drop := isSpace
	if chars != nil {
		set := map[rune]bool{}
		c.r.hold(c.at, itemSize*len(c.text(chars)))
		for _, r := range c.text(chars) {
			set[r] = true
		}
		drop = func(r rune) bool { return set[r] }
	}
	if left {
		s = strings.TrimLeftFunc(s, drop)
	}
	if right {
		s = strings.TrimRightFunc(s, drop)
	}
	return s
}

func affix(c *caller, s string, g given, has func(s, part string) bool) Value {
	arg := c.one(g, "", nil)
	if l, ok := arg.(*List); ok && l.kind == tuple {
		return slices.ContainsFunc(l.Items, func(x Value) bool { return has(s, c.text(x)) })
	}
	return has(s, c.text(arg))
}

// fieldsOf returns the number of words of s.
func fieldsOf(s string) (n int) {
	inside := false
	for _, r := range s {
		if space := isSpace(r); space || inside {
			inside = !space
			continue
		}
		inside = true
		n++
	}
	return n
}

// split implements Python's str.split: without a separator it splits at runs of white space.
func split(c *caller, s string, g given) Value {
	most := -1
	if len(g.values) == 2 {
		n, ok := g.values[1].(int64)
		if !ok {
			c.fail("the number of splits is %s, not a number", describe(g.values[1]))
		}
		most, g.values = int(n), g.values[:1]
	}
	out, at := &List{}, c.one(g, "sep", nil)
	if at == nil {
		if most >= 0 {
			c.fail("limiting splits at white space is not supported")
		}
		c.r.hold(c.at, itemSize*fieldsOf(s))
		for _, f := range strings.FieldsFunc(s, isSpace) {
			out.Items = append(out.Items, f)
		}
		return out
	}
	if c.text(at) == "" {
		c.fail("an empty separator")
	}
	n := -1
	parts := 1 + strings.Count(s, c.text(at))
	if most >= 0 {
		n = most + 1
		parts = min(parts, n)
	}
	c.r.hold(c.at, 2*itemSize*parts)
	for _, part := range strings.SplitN(s, c.text(at), n) {
		out.Items = append(out.Items, part)
	}
	return out
}
