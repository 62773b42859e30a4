package shard

import "math/bits"

// Tree is a binary tree over numbered leaves, as many as its value. What it sums has the same bits
// whoever has which leaf.
type Tree int

// Node covers leaves [At<<Level, (At+1)<<Level) of a Tree, as far as they exist.
type Node struct{ Level, At int }

// Turns returns how many of n things a part has, if parts share them as evenly as possible: the first parts have one more
// if the parts do not divide n.
func Turns(n, parts, part int) int { return (n - part + parts - 1) / parts }

// Turn returns the i-th of them. A part has a block of 2^k things, of which the first is a multiple of 2^k, for each
// binary digit k of n/parts, so it has few nodes of a Tree.
func Turn(n, parts, part, i int) int {
	each, from := n/parts, 0
	for block := 1 << bits.Len(uint(each)); block > 0; block /= 2 {
		switch {
		case each&block == 0:
			continue
		case i < block:
			return from + part*block + i
		}
		from, i = from+parts*block, i-block
	}
	return from + part
}

// Fold appends a node to some that end where it begins or before, and replaces siblings by their parent: each
// adds to the sum of the last node. A node without a sibling takes its parent's place.
func (t Tree) Fold(nodes []Node, n Node) []Node {
	for 1<<n.Level < int(t) {
		left := n.At%2 == 0
		switch at := len(nodes) - 1; {
		case left && (n.At+1)<<n.Level < int(t):
			return append(nodes, n)
		case !left && (at < 0 || nodes[at] != Node{n.Level, n.At - 1}):
			return append(nodes, n)
		case !left:
			nodes = nodes[:at]
		}
		n = Node{n.Level + 1, n.At / 2}
	}
	return append(nodes, n)
}
