package spec

import (
	"slices"
	"testing"

	"zeroth/job/jobtest"
)

// TestWeights checks that weights read back unchanged and are passed to the data source.
func TestWeights(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	jobtest.Write(t, "ab.txt", "x")
	jobtest.Write(t, "b.txt", "x")
	c := mustLoad(t, "data={documents: [{path: 'a*.txt', weight: 3}, {weight: 1e-1, path: b.txt}]}")
	if !slices.Equal(c.Data.Documents, []string{"a*.txt", "b.txt"}) || !slices.Equal(Source(c).Documents.Weights, []float64{3, 0.1}) {
		t.Errorf("%q %v", c.Data.Documents, Source(c).Documents.Weights)
	}
	want := `[{path: "a*.txt", weight: 3}, {path: "b.txt", weight: 0.1}]`
	if got := c.Text("data.documents"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if again := mustLoad(t, "data={documents: "+want+"}"); again.Text("data.documents") != want {
		t.Errorf("read again: %s", again.Text("data.documents"))
	}
	if c = mustLoad(t, "data={documents: [a.txt]}"); len(c.Data.Weights) > 0 || c.Text("data.documents") != `["a.txt"]` {
		t.Errorf("%v %s", c.Data.Weights, c.Text("data.documents"))
	}
}
