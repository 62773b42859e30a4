package parquet

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/internal/input/jsonread"
)

// physical is the storage type of a column's values.
type physical int

const (
	boolean   physical = 0
	int32s    physical = 1
	int64s    physical = 2
	float32s  physical = 4
	float64s  physical = 5
	byteArray physical = 6
)

// Repetition of a field in its parent.
const (
	required = 0
	optional = 1
	repeated = 2
)

// Annotations, of the older and the newer kind, that affect reading.
const (
	convUTF8   = 0
	convMap    = 1
	convPairs  = 2 // of a map, by older writers
	convList   = 3
	convEnum   = 4
	convUint8  = 11
	convUint64 = 14
	convInt64  = 18
	convJSON   = 19

	logicString  = 1
	logicMap     = 2
	logicList    = 3
	logicEnum    = 4
	logicInteger = 10
	logicUnknown = 11 // only nulls
	logicJSON    = 12
)

// element is a field in the file's list of fields, depth first.
type element struct {
	name             string
	physical, repeat int
	children         int
	converted, logic int // -1 if missing
	unsigned         bool
}

// node is a field of the schema.
type node struct {
	element
	path     string
	rep, def int // levels of a value that is not null
	leaf     int // index among all columns; -1 if it has fields
	fields   []*node
	leaves   int  // number of columns below it
	list     bool // a list: its only field has the items
	pairs    bool // a map: its only field has the keys and values
	unwrap   bool // as a list item, replaced by its only field
}

func (e *element) read(d *decoder, kind byte) {
	e.converted, e.logic, e.physical = -1, -1, -1
	d.read(kind, map[int]any{1: &e.physical, 3: &e.repeat, 4: &e.name, 5: &e.children, 6: &e.converted, 10: func(kind byte) {
		d.fields(kind, func(id int, kind byte) bool {
			e.logic = id
			return id == logicInteger && e.integer(d, kind)
		})
	}})
}

func (e *element) integer(d *decoder, kind byte) bool {
	d.fields(kind, func(id int, kind byte) bool {
		e.unsigned = e.unsigned || id == 2 && kind == kindFalse
		return kind == kindTrue || kind == kindFalse
	})
	return true
}

// tree builds a node from the next element, consuming the elements below it.
func tree(all *[]element, parent *node, columns *int, depth int) *node {
	if len(*all) == 0 {
		fail("the schema has fewer fields than announced")
	}
	n := &node{element: (*all)[0], leaf: -1}
	*all = (*all)[1:]
	if parent != nil {
		n.rep, n.def, n.path = parent.rep, parent.def, strings.TrimPrefix(parent.path+"."+n.name, ".")
		switch n.repeat {
		case required:
		case optional:
			n.def++
		case repeated:
			n.rep, n.def = n.rep+1, n.def+1
		default:
			fail("column %q: repetition %d", n.path, n.repeat)
		}
	}
	if depth > maxDepth || n.children < 0 || n.children > len(*all) {
		fail("column %q has %d fields, %d deep", n.path, n.children, depth)
	}
	if n.children == 0 && parent != nil {
		n.leaf, n.leaves = *columns, 1
		*columns++
		return n
	}
	for range n.children {
		child := tree(all, n, columns, depth+1)
		n.fields = append(n.fields, child)
		n.leaves += child.leaves
	}
	n.markList()
	return n
}

// markList finds the items of a list: the only field of a repeated field or, as written by
// older writers, the repeated field itself.
func (n *node) markList() {
	if n.converted == convMap || n.logic == logicMap || n.converted == convPairs && n.repeat != repeated {
		n.pairs = len(n.fields) == 1 && n.fields[0].repeat == repeated && len(n.fields[0].fields) == 2
	}
	if n.list = n.converted == convList || n.logic == logicList; !n.list || len(n.fields) != 1 || n.fields[0].repeat != repeated {
		n.list = false
		return
	}
	item := n.fields[0]
	item.unwrap = len(item.fields) == 1 && item.name != "array" && item.name != n.name+"_tuple"
}

// columns returns the leaves below n, in order.
func (n *node) columns() (all []*node) {
	if n.leaf >= 0 {
		return []*node{n}
	}
	for _, f := range n.fields {
		all = append(all, f.columns()...)
	}
	return all
}

// names returns the names of n's fields.
func (n *node) names() string {
	var all []string
	for i, f := range n.fields {
		if i == 20 {
			all = append(all, fmt.Sprintf("and %d more", len(n.fields)-i))
			break
		}
		all = append(all, fmt.Sprintf("%.40q", f.name))
	}
	return strings.Join(all, ", ")
}

// kind returns the JSON kind of a column's values; it fails with the name of an unsupported type.
func (n *node) kind() jsonread.Kind {
	plain := n.converted < 0 && n.logic < 0 || n.logic == logicUnknown
	text := slices.Contains([]int{convUTF8, convEnum, convJSON}, n.converted) || slices.Contains([]int{logicString, logicEnum, logicJSON}, n.logic)
	integer := n.converted >= convUint8 && n.converted <= convInt64 || n.logic == logicInteger
	switch p := physical(n.physical); {
	case p == byteArray && (plain || text):
		return jsonread.String
	case p == boolean && plain:
		return jsonread.Bool
	case (p == int32s || p == int64s) && (plain || integer), (p == float32s || p == float64s) && plain:
		return jsonread.Number
	}
	what := fmt.Sprintf("dates, decimals or another kind (physical type %d, converted type %d, logical type %d)", n.physical, n.converted, n.logic)
	if len(n.fields) > 0 || n.physical < 0 {
		what = "no values"
	}
	fail("column %q contains %s, which is not supported; write it as text or a number", n.path, what)
	return jsonread.None
}

// isUnsigned reports whether the column's integers are unsigned.
func (n *node) isUnsigned() bool {
	return n.unsigned || n.converted >= convUint8 && n.converted <= convUint64
}
