package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"zeroth/data"
	"zeroth/input"
	"zeroth/job/show"
)

// node is a YAML value and its place. Scalars keep their text, because the key determines the
// type: 6e-4 is a number to one YAML library and text to another.
type node struct {
	at     position
	kind   kind
	text   string // of a scalar
	quoted bool
	items  []*node // of a list
	pairs  []*pair // of a mapping

	from *translation // in the root of a translated job
}

type pair struct {
	key   string
	at    position // of the key
	value *node
}

type kind int

const (
	nothing kind = iota // null or missing: selects the default
	scalar
	list
	mapping
)

var kindNames = [...]string{"nothing", "a value", "a list", "a mapping"}

// find returns the pair with the key, nil if there is none.
func (n *node) find(key string) *pair {
	i := slices.IndexFunc(n.pairs, func(p *pair) bool { return p.key == key })
	if i < 0 {
		return nil
	}
	return n.pairs[i]
}

// String returns the value as a short excerpt of the file.
func (n *node) String() string {
	switch {
	case n.kind == scalar && (n.quoted || len(n.text) > 40):
		return strconv.Quote(show.Cut(n.text, 40))
	case n.kind == scalar:
		return n.text
	}
	return kindNames[n.kind]
}

// readFile returns the job file as a mapping, and its syntax errors.
func readFile(file string) (*node, Problems) {
	root := &node{at: position{file: file}, kind: mapping}
	if wrong, want := notJob(file); wrong != "" {
		return root, fatal(root.at, wrong, want)
	}
	raw, err := readJob(file)
	if err != nil {
		want := "want the path of a job file in YAML, or - for the standard input; 'zeroth init' writes one"
		for _, near := range []string{file + ".yaml", filepath.Join(file, "job.yaml")} {
			if input.Exists(near) {
				want = "did you mean " + near + "?"
			}
		}
		if input.Exists(filepath.Join(file, "config.json")) {
			want = "a model is planned with --model " + file + ", and trained by a job with model.from"
		}
		return root, fatal(root.at, "the job file cannot be read: "+input.Cause(err).Error(), want)
	}
	top, problems := parse(withoutComments(raw), root.at)
	switch {
	case problems.Fatal():
		return root, problems
	case top == nil || top.kind == nothing:
		return root, append(problems, fatal(root.at, "the job file is empty", `it needs at least a line like: data: {text: ["*.txt"]}`)...)
	case top.kind != mapping:
		return root, append(problems, fatal(top.at, "the job file is "+top.what()+", not a mapping", `want sections like: data: {text: ["*.txt"]}`)...)
	}
	if t := translated(top); t != nil {
		return t.job, append(problems, t.problems...)
	}
	return top, problems
}

// notJob returns an error message and advice if the file is data or a model, not a job. Both are
// empty if it may be a job.
func notJob(file string) (wrong, want string) {
	if strings.Contains(file, "://") {
		return "this is an address, not a job file", "nothing is downloaded here: fetch the file first"
	}
	what, key := data.Kind(file)
	if what == "" || file == "-" {
		return "", ""
	}
	wrong = "this is " + what + ", not a job file"
	if key == "" {
		return wrong, "'zeroth init' writes a job file"
	}
	section := fmt.Sprintf("%s: [%s]", key, Quote(file))
	if format := data.Format(file); key == "documents" && format != "" {
		section += ", format: " + format
	}
	return wrong, fmt.Sprintf("name it in a job file, such as job.yaml with the line data: {%s}, and type: zeroth train job.yaml", section)
}

// readJob returns the text of a job file; - is the standard input.
func readJob(file string) ([]byte, error) {
	if file != "-" {
		return input.Read(file, jobBytes)
	}
	if stdin.of != os.Stdin {
		stdin.of = os.Stdin
		stdin.raw, stdin.err = io.ReadAll(io.LimitReader(os.Stdin, jobBytes+1))
	}
	if stdin.err == nil && len(stdin.raw) > jobBytes {
		return nil, fmt.Errorf("it is larger than the limit of %d bytes for such a file", jobBytes)
	}
	return stdin.raw, stdin.err
}

// stdin caches the standard input, because a job may be read several times.
var stdin struct {
	of  *os.File
	raw []byte
	err error
}

func (n *node) what() string {
	if n.kind == scalar {
		return "the single value " + n.String()
	}
	return kindNames[n.kind]
}

func fatal(at position, wrong, right string) Problems {
	p := newProblem(at, "", wrong, right)
	p.fatal = true
	return Problems{p}
}

// overlay replaces the file's value by that of a "key=value".
func overlay(root *node, set string) Problems {
	at := position{set: set}
	key, raw, ok := strings.Cut(set, "=")
	if !ok || key == "" {
		return Problems{newProblem(at, "", "there is no key=value here", "want for example --set train.steps=20")}
	}
	value, problems := parse([]byte(raw), at)
	if problems.Fatal() {
		for i := range problems {
			problems[i].Key, problems[i].fatal = key, false
			problems[i].Right = cmp.Or(problems[i].Right, "put the value into quotes, as YAML does")
		}
		return problems
	}
	if value == nil { // empty or only a comment
		value = &node{at: at, kind: scalar, text: raw}
		if raw == "" {
			value.kind = nothing
		}
	}
	if wrong := put(root, key, value); wrong != "" {
		problems = append(problems, newProblem(at, key, wrong, ""))
	}
	return problems
}

// put replaces or adds the value at a dotted key. It returns an error message if it cannot.
func put(in *node, key string, value *node) (wrong string) {
	head, rest, deeper := strings.Cut(key, ".")
	p := in.find(head)
	if p == nil {
		p = &pair{key: head, at: value.at, value: &node{at: value.at}}
		in.pairs = append(in.pairs, p)
	}
	if !deeper {
		p.at, p.value = value.at, value
		return ""
	}
	if p.value.kind == nothing {
		p.value = &node{at: value.at, kind: mapping}
	}
	if p.value.kind != mapping {
		return fmt.Sprintf("%s is %s and has no keys", head, p.value.what())
	}
	return put(p.value, rest, value)
}

// clone returns a copy that put may change.
func (n *node) clone() *node {
	c := *n
	c.pairs = make([]*pair, len(n.pairs))
	for i, p := range n.pairs {
		c.pairs[i] = &pair{p.key, p.at, p.value.clone()}
	}
	return &c
}

// moveTo sets the place of a value and everything in it.
func (n *node) moveTo(at position) {
	n.at = at
	for _, item := range n.items {
		item.moveTo(at)
	}
	for _, p := range n.pairs {
		p.at = at
		p.value.moveTo(at)
	}
}

// parse parses one YAML document; nil if it is empty.
func parse(raw []byte, at position) (*node, Problems) {
	if len(raw) > jobBytes {
		return nil, fatal(at, fmt.Sprintf("%d bytes, more than %d", len(raw), jobBytes), "")
	}
	raw = bytes.TrimPrefix(raw, []byte(string(byteOrderMark)))
	if i, wrong, right := plain(raw); wrong != "" {
		return nil, fatal(at.at(raw, i), wrong, right)
	}
	tokens := lexer.Tokenize(string(raw))
	if t, wrong := over(tokens); t != nil {
		return nil, fatal(at.token(t), wrong, "")
	}
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var e yaml.Error
		if errors.As(err, &e) {
			return nil, fatal(at.token(e.GetToken()), "not YAML: "+e.GetMessage(), tabAdvice(e.GetMessage()))
		}
		return nil, fatal(at, "not YAML: "+err.Error(), "")
	}
	docs := slices.DeleteFunc(f.Docs, func(d *ast.DocumentNode) bool { return d.Body == nil })
	if len(docs) == 0 {
		return nil, nil
	}
	t := &tree{at: at, anchors: map[string]*node{}}
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

func (p position) token(t *token.Token) position {
	if p.set == "" && t != nil && t.Position != nil {
		p.line, p.col = t.Position.Line, t.Position.Column
	}
	return p
}

// tree converts the library's syntax tree to nodes.
type tree struct {
	at       position
	path     []string // keys of the enclosing mappings
	anchors  map[string]*node
	problems Problems
}

func (t *tree) complain(at *token.Token, wrong, right string) {
	t.problems = append(t.problems, newProblem(t.at.token(at), strings.Join(t.path, "."), wrong, right))
}

func (t *tree) convert(n ast.Node) *node {
	at := t.at.token(n.GetToken())
	switch n := n.(type) {
	case *ast.MappingNode:
		return t.mapping(at, n.Values)
	case *ast.MappingValueNode:
		return t.mapping(at, []*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		out := &node{at: at, kind: list}
		for _, v := range n.Values {
			out.items = append(out.items, t.convert(v))
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
		return &node{at: at}
	case *ast.LiteralNode:
		return &node{at: at, kind: scalar, text: n.Value.Value, quoted: true}
	}
	tk := n.GetToken()
	return &node{at: at, kind: scalar, text: tk.Value,
		quoted: tk.Type == token.DoubleQuoteType || tk.Type == token.SingleQuoteType}
}

func (t *tree) alias(n *ast.AliasNode) *node {
	name := n.Value.GetToken().Value
	if v, ok := t.anchors[name]; ok {
		return v
	}
	t.complain(n.GetToken(), "*"+name+" refers to no anchor before it", "want &"+name+" at the value it should repeat")
	return &node{at: t.at.token(n.GetToken())}
}

func (t *tree) mapping(at position, values []*ast.MappingValueNode) *node {
	if len(values) > 0 {
		at = t.at.token(values[0].Key.GetToken())
	}
	out := &node{at: at, kind: mapping}
	var merged []*node
	var merge *ast.MappingValueNode
	for _, v := range values {
		if v.Key.Type() == ast.MergeKeyType {
			if merge != nil {
				t.complain(v.Key.GetToken(), fmt.Sprintf("<< given twice, first at %v", t.at.token(merge.Key.GetToken())), "want <<: [*one, *other]")
			}
			merge, merged = v, t.merged(v)
			continue
		}
		p := &pair{key: t.key(v.Key), at: t.at.token(v.Key.GetToken())}
		t.path = append(t.path, p.key)
		if first := out.find(p.key); first != nil {
			t.complain(v.Key.GetToken(), fmt.Sprintf("given twice, first at %v", first.at), "remove one")
		} else {
			p.value = t.convert(v.Value)
			out.pairs = append(out.pairs, p)
		}
		t.path = t.path[:len(t.path)-1]
	}
	for _, m := range merged {
		for _, p := range m.pairs {
			if out.find(p.key) == nil {
				out.pairs = append(out.pairs, p)
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
func (t *tree) merged(v *ast.MappingValueNode) []*node {
	known := len(t.problems)
	from := t.convert(v.Value)
	maps := []*node{from}
	if from.kind == list && len(from.items) > 0 {
		maps = from.items
	}
	for _, m := range maps {
		if m.kind != mapping && len(t.problems) == known {
			t.complain(v.Key.GetToken(), "<< takes the keys of mappings, but this is "+m.what(), "want <<: *name, or <<: [*one, *other]")
		}
	}
	return maps
}
