package jobtest

import (
	"fmt"
	"strings"
	"testing"
)

// tinyJob is a job of a few milliseconds a step over a.txt.
const tinyJob = `data: {text: [a.txt], validation: 0.1}
model: {layers: 1, heads: 2, width: 8, context: 8}
train: {steps: 7, micro_batch: 2, eval_every: 3, eval_batches: 2}
parallel: {ranks: 2}
schedule: {warmup: 3}
`

// InTinyFolder makes a folder with tinyJob and a text of some thousand bytes the
// current one.
func InTinyFolder(t *testing.T) {
	t.Helper()
	InFolder(t, tinyJob)
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, "line %d of %d\n", i*i, i)
	}
	Write(t, "a.txt", b.String())
}
