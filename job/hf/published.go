package hf

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"sync"
)

//go:embed published.json
var publishedJSON []byte

// Shape is a published model whose shape is built in, so that it can be planned
// without its files.
type Shape struct {
	Name       string          // as people call it: "Llama-3-8B"
	Repository string          // on the Hugging Face Hub
	Parameters int64           // as the Hub counts them, tied ones once
	Config     json.RawMessage // the keys of its config.json that shape the model
}

// Published returns the published models, sorted by family and size.
var Published = sync.OnceValue(func() (all []Shape) {
	if err := json.Unmarshal(publishedJSON, &all); err != nil {
		panic(fmt.Sprintf("hf: published.json: %v", err))
	}
	return all
})

// FindPublished returns the published model with a name or repository, regardless of
// case.
func FindPublished(name string) (Shape, bool) {
	for _, s := range Published() {
		if strings.EqualFold(name, s.Name) || strings.EqualFold(name, s.Repository) || strings.EqualFold(name, path.Base(s.Repository)) {
			return s, true
		}
	}
	return Shape{}, false
}
