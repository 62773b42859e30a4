package setup

import "slices"

// Unfused lists the operations that libraries could not fuse, over all ranks, so that kernels of
// our own computed them. Queues must be idle.
func Unfused(ranks []*Rank) (lines []string) {
	for _, r := range ranks {
		if d, ok := r.Device.(interface{ Unfused() []string }); ok {
			lines = append(lines, d.Unfused()...)
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}
