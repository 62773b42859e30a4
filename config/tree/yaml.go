package tree

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"zeroth/internal/show"
)

// Node is a YAML value and its place. Scalars keep their text, because the key determines the
// type: 6e-4 is a number to one YAML library and text to another.
type Node struct {
	At     Position
	Kind   kind
	Text   string // of a scalar
	Quoted bool
	Items  []*Node // of a list
	Pairs  []*Pair // of a mapping
}

// Pair is a key of a mapping with its value.
type Pair struct {
	Key   string
	At    Position // of the key
	Value *Node
}

type kind int

const (
	Nothing kind = iota // null or missing: selects the default
	Scalar
	List
	Mapping
)

var kindNames = [...]string{"nothing", "a value", "a list", "a mapping"}

// Find returns the pair with the key, nil if there is none.
func (n *Node) Find(key string) *Pair {
	i := slices.IndexFunc(n.Pairs, func(p *Pair) bool { return p.Key == key })
	if i < 0 {
		return nil
	}
	return n.Pairs[i]
}

// String returns the value as a short excerpt of the file.
func (n *Node) String() string {
	switch {
	case n.Kind == Scalar && (n.Quoted || len(n.Text) > 40):
		return strconv.Quote(show.Cut(n.Text, 40))
	case n.Kind == Scalar:
		return n.Text
	}
	return kindNames[n.Kind]
}

// What describes the value for a message.
func (n *Node) What() string {
	if n.Kind == Scalar {
		return "the single value " + n.String()
	}
	return kindNames[n.Kind]
}

// Fatal returns a problem after which no check makes sense.
func Fatal(at Position, wrong, right string) Problems {
	p := NewProblem(at, "", wrong, right)
	p.fatal = true
	return Problems{p}
}

// Overlay replaces the file's value by that of a "key=value".
func Overlay(root *Node, set string) Problems {
	at := Position{Set: set}
	key, raw, ok := strings.Cut(set, "=")
	if !ok || key == "" {
		return Problems{NewProblem(at, "", "there is no key=value here", "want for example --set train.steps=20")}
	}
	value, problems := Parse([]byte(raw), at)
	if problems.Fatal() {
		for i := range problems {
			problems[i].Key, problems[i].fatal = key, false
			problems[i].Right = cmp.Or(problems[i].Right, "put the value into quotes, as YAML does")
		}
		return problems
	}
	if value == nil { // empty or only a comment
		value = &Node{At: at, Kind: Scalar, Text: raw}
		if raw == "" {
			value.Kind = Nothing
		}
	}
	if wrong := Put(root, key, value); wrong != "" {
		problems = append(problems, NewProblem(at, key, wrong, ""))
	}
	return problems
}

// Put replaces or adds the value at a dotted key. It returns an error message if it cannot.
func Put(in *Node, key string, value *Node) (wrong string) {
	head, rest, deeper := strings.Cut(key, ".")
	p := in.Find(head)
	if p == nil {
		p = &Pair{Key: head, At: value.At, Value: &Node{At: value.At}}
		in.Pairs = append(in.Pairs, p)
	}
	if !deeper {
		p.At, p.Value = value.At, value
		return ""
	}
	if p.Value.Kind == Nothing {
		p.Value = &Node{At: value.At, Kind: Mapping}
	}
	if p.Value.Kind != Mapping {
		return fmt.Sprintf("%s is %s and has no keys", head, p.Value.What())
	}
	return Put(p.Value, rest, value)
}

// Clone returns a copy that put may change.
func (n *Node) Clone() *Node {
	c := *n
	c.Pairs = make([]*Pair, len(n.Pairs))
	for i, p := range n.Pairs {
		c.Pairs[i] = &Pair{p.Key, p.At, p.Value.Clone()}
	}
	return &c
}

// MoveTo sets the place of a value and everything in it.
func (n *Node) MoveTo(at Position) {
	n.At = at
	for _, item := range n.Items {
		item.MoveTo(at)
	}
	for _, p := range n.Pairs {
		p.At = at
		p.Value.MoveTo(at)
	}
}

// Parse parses one YAML document; nil if it is empty.
func Parse(raw []byte, at Position) (*Node, Problems) {
	if len(raw) > JobBytes {
		return nil, Fatal(at, fmt.Sprintf("%d bytes, more than %d", len(raw), JobBytes), "")
	}
	raw = bytes.TrimPrefix(raw, []byte(string(byteOrderMark)))
	if i, wrong, right := plain(raw); wrong != "" {
		return nil, Fatal(at.at(raw, i), wrong, right)
	}
	tokens := lexer.Tokenize(string(raw))
	if t, wrong := over(tokens); t != nil {
		return nil, Fatal(at.token(t), wrong, "")
	}
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var e yaml.Error
		if errors.As(err, &e) {
			return nil, Fatal(at.token(e.GetToken()), "not YAML: "+e.GetMessage(), tabAdvice(e.GetMessage()))
		}
		return nil, Fatal(at, "not YAML: "+err.Error(), "")
	}
	docs := slices.DeleteFunc(f.Docs, func(d *ast.DocumentNode) bool { return d.Body == nil })
	if len(docs) == 0 {
		return nil, nil
	}
	t := &tree{at: at, anchors: map[string]*Node{}}
	n := t.convert(docs[0].Body)
	if len(docs) > 1 {
		t.complain(cmp.Or(docs[1].Start, docs[1].Body.GetToken()), "a second document after ---", "want one job in a file")
	}
	return n, t.problems
}

func tabAdvice(message string) string {
	if strings.Contains(message, "\t") {
		return "YAML indents with spaces, never with tabs"
	}
	return ""
}

func (p Position) token(t *token.Token) Position {
	if p.Set == "" && t != nil && t.Position != nil {
		p.line, p.col = t.Position.Line, t.Position.Column
	}
	return p
}

// tree converts the library's syntax tree to nodes.
type tree struct {
	at       Position
	path     []string // keys of the enclosing mappings
	anchors  map[string]*Node
	problems Problems
}

func (t *tree) complain(at *token.Token, wrong, right string) {
	t.problems = append(t.problems, NewProblem(t.at.token(at), strings.Join(t.path, "."), wrong, right))
}

func (t *tree) convert(n ast.Node) *Node {
	at := t.at.token(n.GetToken())
	switch n := n.(type) {
	case *ast.MappingNode:
		return t.mapping(at, n.Values)
	case *ast.MappingValueNode:
		return t.mapping(at, []*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		out := &Node{At: at, Kind: List}
		for _, v := range n.Values {
			out.Items = append(out.Items, t.convert(v))
		}
		return out
	case *ast.AnchorNode:
		v := t.convert(n.Value)
		t.anchors[n.Name.GetToken().Value] = v
		return v
	case *ast.AliasNode:
		return t.alias(n)
	case *ast.TagNode:
		t.complain(n.GetToken(), "a tag, "+show.Cut(n.GetToken().Value, 40), "remove it: the key determines the type of its value")
		return t.convert(n.Value)
	case *ast.NullNode:
		return &Node{At: at}
	case *ast.LiteralNode:
		return &Node{At: at, Kind: Scalar, Text: n.Value.Value, Quoted: true}
	}
	tk := n.GetToken()
	return &Node{At: at, Kind: Scalar, Text: tk.Value,
		Quoted: tk.Type == token.DoubleQuoteType || tk.Type == token.SingleQuoteType}
}

func (t *tree) alias(n *ast.AliasNode) *Node {
	name := n.Value.GetToken().Value
	if v, ok := t.anchors[name]; ok {
		return v
	}
	if strings.ContainsAny(name, "./*?[") {
		t.complain(n.GetToken(), "*"+name+" is a pattern without quotes", `write "*`+name+`"`)
		return &Node{At: t.at.token(n.GetToken())}
	}
	t.complain(n.GetToken(), "*"+name+" refers to no anchor before it", "want &"+name+" at the value it should repeat")
	return &Node{At: t.at.token(n.GetToken())}
}

func (t *tree) mapping(at Position, values []*ast.MappingValueNode) *Node {
	if len(values) > 0 {
		at = t.at.token(values[0].Key.GetToken())
	}
	out := &Node{At: at, Kind: Mapping}
	var merged []*Node
	var merge *ast.MappingValueNode
	for _, v := range values {
		if v.Key.Type() == ast.MergeKeyType {
			if merge != nil {
				t.complain(v.Key.GetToken(), fmt.Sprintf("<< given twice, first at %v", t.at.token(merge.Key.GetToken())), "want <<: [*one, *other]")
			}
			merge, merged = v, t.merged(v)
			continue
		}
		p := &Pair{Key: t.key(v.Key), At: t.at.token(v.Key.GetToken())}
		t.path = append(t.path, p.Key)
		if first := out.Find(p.Key); first != nil {
			t.complain(v.Key.GetToken(), fmt.Sprintf("given twice, first at %v", first.At), "remove one")
		} else {
			p.Value = t.convert(v.Value)
			out.Pairs = append(out.Pairs, p)
		}
		t.path = t.path[:len(t.path)-1]
	}
	for _, m := range merged {
		for _, p := range m.Pairs {
			if out.Find(p.Key) == nil {
				out.Pairs = append(out.Pairs, p)
			}
		}
	}
	return out
}

// key returns the text of a key.
func (t *tree) key(n ast.Node) string {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.MappingKeyNode: // ? key
		return t.key(n.Value)
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		t.complain(n.GetToken(), "a key with "+show.Cut(n.GetToken().Value, 40), "want a plain name as the key")
	}
	return n.String()
}

// merged returns the mappings that << merges: one, or a list. The first one with a key determines
// its value.
func (t *tree) merged(v *ast.MappingValueNode) []*Node {
	known := len(t.problems)
	from := t.convert(v.Value)
	maps := []*Node{from}
	if from.Kind == List && len(from.Items) > 0 {
		maps = from.Items
	}
	for _, m := range maps {
		if m.Kind != Mapping && len(t.problems) == known {
			t.complain(v.Key.GetToken(), "<< takes the keys of mappings, but this is "+m.What(), "want <<: *name, or <<: [*one, *other]")
		}
	}
	return maps
}

// Remove removes a key, which need not be there.
func (n *Node) Remove(key string) {
	section, name := Split(key)
	if in := n.Lookup(section); in != nil {
		in.Pairs = slices.DeleteFunc(in.Pairs, func(p *Pair) bool { return p.Key == name })
	}
}

// Lookup returns the value of a key of the job, or nil.
func (n *Node) Lookup(key string) *Node {
	in := n
	for head, rest, deeper := strings.Cut(key, "."); ; head, rest, deeper = strings.Cut(rest, ".") {
		p := in.Find(head)
		switch {
		case p == nil || deeper && p.Value.Kind != Mapping:
			return nil
		case !deeper:
			return p.Value
		}
		in = p.Value
	}
}

// Join returns the key of a name in a section.
func Join(section, name string) string {
	if section == "" {
		return name
	}
	return section + "." + name
}

// Within returns the name within a section of a key, or of the section that contains the key.
func Within(section, key string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(key, Join(section, ""))
	name, _, _ = strings.Cut(rest, ".")
	return name, ok
}

// Split splits a key into its section and its name: "zero.offload" and "path". The section of a
// top-level key is empty.
func Split(key string) (section, name string) {
	i := strings.LastIndexByte(key, '.')
	return key[:max(0, i)], key[i+1:]
}
