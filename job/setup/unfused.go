package setup

import "slices"

// Unfused is what libraries had no fused products for, of all that ranks have issued, a
// line each: kernels of their own computed it. Queues are idle.
func Unfused(ranks []*Rank) (lines []string) {
	for _, r := range ranks {
		if d, ok := r.Device.(interface{ Unfused() []string }); ok {
			lines = append(lines, d.Unfused()...)
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}
