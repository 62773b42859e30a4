package hf

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"

	"zeroth/internal/input"
)

//go:embed published.json
var publishedJSON []byte

// Shape is a published model whose shape is built in, so that it can be planned
// without its files.
type Shape struct {
	Name       string          // as people call it: "Llama-3-8B"
	Repository string          // on the Hugging Face Hub
	Parameters int64           // as the Hub counts them, tied ones once, without layers that predict further tokens
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

// repository matches org/name at the beginning of a name on the Hub.
var repository = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[\w.-]+`)

// Address returns hf://org/name for the name of a published model, org/name, or the address of a page of the Hub. It
// returns "" for files and folders, for what may become one, and for anything else.
func Address(name string) string {
	_, page, url := strings.Cut(name, "://huggingface.co/")
	if url {
		return "hf://" + cmp.Or(repository.FindString(page), page)
	}
	s, published := FindPublished(name)
	switch {
	case input.Exists(name):
		return ""
	case published:
		return "hf://" + s.Repository
	case repository.FindString(name) != name || input.Exists(path.Dir(name)):
		return ""
	}
	return "hf://" + name
}

// Download returns advice on a name that is no folder but has an address, or "".
func Download(name string) string {
	if address := Address(name); address != "" {
		return fmt.Sprintf("write %s to download it from the Hugging Face Hub", address)
	}
	return ""
}
