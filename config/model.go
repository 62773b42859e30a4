package config

import (
	"context"
	"fmt"
	gopath "path"
	"regexp"
	"strings"

	"zeroth/input"
	"zeroth/input/hub"
	"zeroth/job/hf"
)

// resolveShape derives the settings missing from a model without a folder, and checks that its
// heads fit.
func (r *reader) resolveShape(makes int) {
	m := &r.Config.Model
	m.Eps = 1e-5
	if !m.HeadsFit(m.Heads) {
		wrong := fmt.Sprintf("%d heads do not divide width %d", m.Heads, m.Width)
		if m.Width%m.Heads == 0 {
			wrong = fmt.Sprintf("%d heads of width %d: rotary positions rotate pairs, so a head's width must be even", m.Heads, m.Width/m.Heads)
		}
		want := wantNear("heads", m.Heads, m.HeadsFit)
		if m.Family == "llama" && m.Width%2 != 0 {
			want = "want an even width"
		}
		r.refuse(wrong, want, "model.heads", "model.width")
	}
	if !r.has("model.vocab") {
		if m.Vocab = makes; makes > hf.Most {
			r.refuse(fmt.Sprintf("a vocabulary of %d tokens is more than %d", makes, hf.Most), "want a smaller one", "model.vocab", "data.vocab")
		}
	}
	if m.Family == "llama" {
		r.resolveLlama()
	}
}

func (r *reader) resolveLlama() {
	m := &r.Config.Model
	if m.Heads%m.KV != 0 {
		r.refuse(fmt.Sprintf("%d key and value heads do not divide %d heads", m.KV, m.Heads),
			wantNear("kv_heads", m.KV, func(n int) bool { return m.Heads%n == 0 }), "model.kv_heads", "model.heads")
	}
}

// modelFrom sets the shape to that of the model in the folder. A job may choose shorter sequences
// than the model supports.
func (r *reader) modelFrom() {
	m := &r.Config.Model
	if r.bad["model.from"] {
		return
	}
	read, kept, err := r.readModel()
	if err != nil {
		want := toDownload(m.From)
		if want == "" && r.draft && !input.Exists(m.From) && !strings.Contains(m.From, "/") {
			want = "want a folder, or one of the published models " + published()
		}
		r.wrong(r.given["model.from"].at, "model.from", err.Error(), want)
		return
	}
	r.Config.Folder = kept
	read.From = m.From
	if r.has("model.context") && m.Context > read.Context {
		r.refuse(fmt.Sprintf("sequences of %d tokens, but the model of %s supports at most %d", m.Context, m.From, read.Context),
			fmt.Sprintf("want a context of at most %d", read.Context), "model.context")
	}
	if r.has("model.context") && m.Context < read.Context {
		read.Context, read.Longest = m.Context, read.Context
	}
	*m = read
}

// shapeOnly reports whether the job only plans a published model, which needs no folder.
func (r *reader) shapeOnly() bool {
	from := r.Config.Model.From
	repo, revision := hub.Split(from)
	s, ok := hf.FindPublished(repo)
	return ok && r.draft && (revision == "main" && repo == s.Repository || !hub.Is(from) && !input.Exists(from))
}

// published lists the names of the published models.
func published() string {
	var names []string
	for _, s := range hf.Published() {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}

// readModel reads the model that model.from names.
func (r *reader) readModel() (hf.Model, hf.Carried, error) {
	from := r.Config.Model.From
	if !r.shapeOnly() {
		return hf.ReadConfig(hub.Folder(from))
	}
	repo, _ := hub.Split(from)
	s, _ := hf.FindPublished(repo)
	m, notes, err := hf.ReadModel(s.Config)
	return m, hf.Carried{Config: s.Config, Notes: notes}, err
}

// fetchModels downloads the models on the Hub that the job names, without their weights, and
// replaces their revisions by commits, so that whoever reads the job again gets the same files.
func (r *reader) fetchModels() {
	fetch := r.Config.env.Fetch
	if fetch == nil {
		fetch = func(name string, files hub.Files) (string, error) {
			return hub.Fetch(context.Background(), name, files, nil)
		}
	}
	files := hub.Tokenizer
	if r.draft {
		files = hub.Config
	}
	for _, x := range []struct {
		key   string
		name  *string
		files hub.Files
	}{{"model.from", &r.Config.Model.From, files}, {"data.vocab", &r.Config.Data.Vocab, hub.Tokenizer}} {
		if !hub.Is(*x.name) || !r.has(x.key) || x.key == "model.from" && r.shapeOnly() {
			continue
		}
		pinned, err := fetch(*x.name, x.files)
		if err != nil {
			r.wrong(r.given[x.key].at, x.key, err.Error(), "")
			if !input.IsInput(err) {
				r.failed = err
			}
			continue
		}
		*x.name, r.given[x.key].text = pinned, pinned
	}
}

// repository matches a model's name on the Hugging Face Hub.
var repository = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[\w.-]+$`)

// inHub matches a model's name at the beginning of a path on the Hub.
var inHub = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)?`)

// toDownload returns advice on downloading a model if from looks like its name on the Hub and is
// not a folder.
func toDownload(from string) string {
	_, address, url := strings.Cut(from, "://")
	published, known := hf.FindPublished(from)
	switch {
	case hub.Is(from):
		return ""
	case url:
		from = inHub.FindString(strings.TrimPrefix(address, "huggingface.co/"))
	case known && !input.Exists(from):
		from = published.Repository
	case !repository.MatchString(from) || input.Exists(from) || input.Exists(gopath.Dir(from)):
		return ""
	}
	return fmt.Sprintf("write hf://%s to download it from the Hugging Face Hub", from)
}
