//go:build cuda && !mutation

package cuda

// leftOut says whether a mutation leaves a wait out; without the tag there are none.
func (q *Queue) leftOut(_, _ string) bool { return false }
