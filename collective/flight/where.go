package flight

import (
	"fmt"
	"slices"
	"time"

	"zeroth/collective"
)

// Where says what the rank was doing when its record was read: the operation it was in, or the
// last one it was through with.
func (d Dump) Where() string {
	for _, in := range []bool{true, false} {
		for _, o := range slices.Backward(d.Operations) {
			since, verb := o.Started, "is in"
			if !in {
				since, verb = o.Done, "computes since"
			}
			if in && o.State != collective.Started || !in && o.State != collective.Done && o.State != collective.Launched {
				continue
			}
			return fmt.Sprintf("%s %s (%s) of step %d, for %v", verb, o.Call(), o.Label, o.Step, (d.At - since).Round(time.Millisecond))
		}
	}
	return "has not communicated yet"
}
