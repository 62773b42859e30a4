package spec

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
	"zeroth/job/hf"
)

// resolveShape derives the settings missing from a model without a folder, and checks that its
// heads fit.
func (r *resolver) resolveShape(makes int) {
	m := &r.Job.Model
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
		r.Refuse(wrong, want, "model.heads", "model.width")
	}
	if !r.Has("model.vocab") {
		if m.Vocab = makes; makes > hf.Most {
			r.Refuse(fmt.Sprintf("a vocabulary of %d tokens is more than %d", makes, hf.Most), "want a smaller one", "model.vocab", "data.vocab")
		}
	}
	if m.Family == "llama" {
		r.resolveLlama()
	}
}

func (r *resolver) resolveLlama() {
	m := &r.Job.Model
	if m.Heads%m.KV != 0 {
		r.Refuse(fmt.Sprintf("%d key and value heads do not divide %d heads", m.KV, m.Heads),
			wantNear("kv_heads", m.KV, func(n int) bool { return m.Heads%n == 0 }), "model.kv_heads", "model.heads")
	}
	if x := m.Experts; x.Count > 0 {
		m.Experts = hf.FreshExperts(x.Count, x.Router.TopK, x.FFN)
		if most := min(x.Count, device.MaxTopK); x.Router.TopK > most {
			r.Refuse(fmt.Sprintf("%d of %d experts for each token", x.Router.TopK, x.Count), fmt.Sprintf("want at most %d", most), "model.experts.per_token", "model.experts.count")
		}
	}
}

// modelFrom sets the shape to that of the model in the folder. A job may choose shorter sequences
// than the model supports.
func (r *resolver) modelFrom() {
	m := &r.Job.Model
	if r.Bad["model.from"] {
		return
	}
	read, kept, err := r.readModel()
	if err != nil {
		want := hf.Download(m.From)
		if want == "" && r.draft && !input.Exists(m.From) && !strings.Contains(m.From, "/") {
			want = "want a folder, or one of the published models " + published(m.From)
		}
		r.Wrong(r.Given["model.from"].At, "model.from", err.Error(), want)
		return
	}
	r.Job.Folder = kept
	read.From = m.From
	if r.Has("model.context") && m.Context > read.Context {
		r.Refuse(fmt.Sprintf("sequences of %d tokens, but the model of %s supports at most %d", m.Context, m.From, read.Context),
			fmt.Sprintf("want a context of at most %d", read.Context), "model.context")
	}
	if r.Has("model.context") && m.Context < read.Context {
		read.Context, read.Longest = m.Context, read.Context
	}
	*m = read
}

// shapeOnly reports whether the job only plans a published model, which needs no folder.
func (r *resolver) shapeOnly() bool {
	from := r.Job.Model.From
	repo, revision := hub.Split(from)
	s, ok := hf.FindPublished(repo)
	return ok && r.draft && (revision == "main" && repo == s.Repository || !hub.Is(from) && !input.Exists(from))
}

// published lists the names of the published models: those with all parts of a name, such as Llama and 70B, or else
// all.
func published(like string) string {
	var names, near []string
	for _, s := range hf.Published() {
		names = append(names, s.Name)
		if !slices.ContainsFunc(strings.Split(strings.ToLower(like), "-"), func(part string) bool {
			return !strings.Contains(strings.ToLower(strings.ReplaceAll(s.Name, "-", "")), part)
		}) {
			near = append(near, s.Name)
		}
	}
	if near != nil {
		names = near
	}
	return strings.Join(names, ", ")
}

// readModel reads the model that model.from names.
func (r *resolver) readModel() (hf.Model, hf.Carried, error) {
	from := r.Job.Model.From
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
func (r *resolver) fetchModels() {
	fetch := r.Job.env.Fetch
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
	}{{"model.from", &r.Job.Model.From, files}, {"data.vocab", &r.Job.Data.Vocab, hub.Tokenizer}} {
		if !hub.Is(*x.name) || !r.Has(x.key) || x.key == "model.from" && r.shapeOnly() {
			continue
		}
		pinned, err := fetch(*x.name, x.files)
		if err != nil {
			r.Wrong(r.Given[x.key].At, x.key, err.Error(), "")
			if !input.IsInput(err) {
				r.failed = err
			}
			continue
		}
		*x.name, r.Given[x.key].Text = pinned, pinned
	}
}
