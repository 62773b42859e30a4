//go:build cuda && !mutation

package cuda

// leftOut says whether a mutation leaves a wait out; without the tag there are none.
func (q *Queue) leftOut(_, _, _ string) bool { return false }

// markLabels are wanted by mutations alone.
type markLabels struct{}

func (*markLabels) note(uint64, string) {}

func (*markLabels) of(uint64) string { return "" }
