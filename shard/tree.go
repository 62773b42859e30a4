package shard

// Tree is a binary tree over numbered leaves, as many as its value. What it sums has the same bits
// whoever has which leaf.
type Tree int

// Node covers leaves [At<<Level, (At+1)<<Level) of a Tree, as far as they exist.
type Node struct{ Level, At int }

// Begin returns where part i of n things begins, or ends for the part before. The first parts have one more
// if the parts do not divide n.
func Begin(n, parts, i int) int { return i*(n/parts) + min(i, n%parts) }

// Fold appends a node to some that end where it begins, and replaces siblings by their parent: each
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
