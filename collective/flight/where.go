package flight

import (
	"fmt"
	"slices"
	"time"

	"zeroth/collective"
)

// Where describes what the rank was doing when its record was read: the operation it was in, or the
// last one it had completed.
func (d Dump) Where() string {
	for _, o := range slices.Backward(d.Operations) {
		if o.State == collective.Started {
			return fmt.Sprintf("has been in %s for %v", where(o), (d.At - o.Started).Round(time.Millisecond))
		}
	}
	for _, o := range slices.Backward(d.Operations) {
		if o.State == collective.Done || o.State == collective.Launched {
			return fmt.Sprintf("has computed for %v since %s", (d.At - o.Done).Round(time.Millisecond), where(o))
		}
	}
	return "has not communicated yet"
}

func where(o collective.Operation) string {
	return fmt.Sprintf("%s (%s) of step %d", o.Call(), o.Label, o.Step)
}
