package parquet

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/input/jsonread"
)

// physical is how a column's values are stored.
type physical int

const (
	boolean   physical = 0
	int32s    physical = 1
	int64s    physical = 2
	float32s  physical = 4
	float64s  physical = 5
	byteArray physical = 6
)

// What a field is in its parent.
const (
	required = 0
	optional = 1
	repeated = 2
)

// Annotations of the older and of the newer kind that say how a column is read here.
const (
	convUTF8   = 0
	convList   = 3
	convEnum   = 4
	convUint8  = 11
	convUint64 = 14
	convInt64  = 18
	convJSON   = 19

	logicString  = 1
	logicList    = 3
	logicEnum    = 4
	logicInteger = 10
	logicUnknown = 11 // of nothing but nulls
	logicJSON    = 12
)

// element is a field as a file lists them, depth first.
type element struct {
	name             string
	physical, repeat int
	children         int
	converted, logic int // -1: none
	unsigned         bool
}

// node is a field of the schema.
type node struct {
	element
	path     string
	rep, def int // levels of a value that is there
	leaf     int // its column, of all; -1: it has fields
	fields   []*node
	leaves   int  // columns below it
	list     bool // its one field has the items
	unwrap   bool // as the items of a list it is that of its one field
}

func (e *element) read(d *decoder, kind byte) {
	e.converted, e.logic, e.physical = -1, -1, -1
	d.fields(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			e.physical = d.small(kind)
		case 3:
			e.repeat = d.small(kind)
		case 4:
			e.name = d.text(kind)
		case 5:
			e.children = d.small(kind)
		case 6:
			e.converted = d.small(kind)
		case 10:
			d.fields(kind, func(id int, kind byte) bool {
				e.logic = id
				return id == logicInteger && e.integer(d, kind)
			})
		default:
			return false
		}
		return true
	})
}

func (e *element) integer(d *decoder, kind byte) bool {
	d.fields(kind, func(id int, kind byte) bool {
		e.unsigned = e.unsigned || id == 2 && kind == kindFalse
		return kind == kindTrue || kind == kindFalse
	})
	return true
}

// tree makes a node of the next of the elements and takes as many as belong to it.
func tree(all *[]element, parent *node, columns *int, depth int) (*node, error) {
	if len(*all) == 0 {
		return nil, fmt.Errorf("the schema has fewer fields than it says")
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
			return nil, fmt.Errorf("column %q: repetition %d", n.path, n.repeat)
		}
	}
	if depth > maxDepth || n.children < 0 || n.children > len(*all) {
		return nil, fmt.Errorf("column %q has %d fields, %d deep", n.path, n.children, depth)
	}
	if n.children == 0 && parent != nil {
		n.leaf, n.leaves = *columns, 1
		*columns++
		return n, nil
	}
	for range n.children {
		child, err := tree(all, n, columns, depth+1)
		if err != nil {
			return nil, err
		}
		n.fields = append(n.fields, child)
		n.leaves += child.leaves
	}
	n.markList()
	return n, nil
}

// markList finds the items of a list: a repeated field whose one field they are, or as
// older writers have it the repeated field itself.
func (n *node) markList() {
	if n.list = n.converted == convList || n.logic == logicList; !n.list || len(n.fields) != 1 || n.fields[0].repeat != repeated {
		n.list = false
		return
	}
	item := n.fields[0]
	item.unwrap = len(item.fields) == 1 && item.name != "array" && item.name != n.name+"_tuple"
}

// columns are the nodes of leaves, in order.
func (n *node) columns() (all []*node) {
	if n.leaf >= 0 {
		return []*node{n}
	}
	for _, f := range n.fields {
		all = append(all, f.columns()...)
	}
	return all
}

// names are those of fields.
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

// kind is what values of a column are here, or an error that names what is not read.
func (n *node) kind() (jsonread.Kind, error) {
	unread := func(what string) (jsonread.Kind, error) {
		return jsonread.None, fmt.Errorf("column %q holds %s, which is not read; write it as text or a number", n.path, what)
	}
	plain := n.converted < 0 && n.logic < 0 || n.logic == logicUnknown
	text := slices.Contains([]int{convUTF8, convEnum, convJSON}, n.converted) || slices.Contains([]int{logicString, logicEnum, logicJSON}, n.logic)
	integer := n.converted >= convUint8 && n.converted <= convInt64 || n.logic == logicInteger
	switch p := physical(n.physical); {
	case p == byteArray && (plain || text):
		return jsonread.String, nil
	case p == boolean && plain:
		return jsonread.Bool, nil
	case (p == int32s || p == int64s) && (plain || integer), (p == float32s || p == float64s) && plain:
		return jsonread.Number, nil
	}
	if len(n.fields) > 0 || n.physical < 0 {
		return unread("no values")
	}
	return unread(fmt.Sprintf("dates, decimals or another kind (physical type %d, converted type %d, logical type %d)", n.physical, n.converted, n.logic))
}

// isUnsigned is whether the column's integers have no sign.
func (n *node) isUnsigned() bool {
	return n.unsigned || n.converted >= convUint8 && n.converted <= convUint64
}
