package spec

import (
	"embed"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"zeroth/config/tree"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
	"zeroth/job/hf"
)

//go:embed goals/*.yaml
var goals embed.FS

// Goal is a job file to start from: its name, its purpose and its text.
type Goal struct{ Name, For, Text string }

// Goals returns all goals, sorted by file name. The first line of each file is the goal's purpose.
func Goals() (all []Goal) {
	files, err := fs.Glob(goals, "goals/*.yaml")
	if err != nil {
		panic(fmt.Sprintf("config: goals: %v", err))
	}
	for _, file := range files {
		text, err := goals.ReadFile(file)
		if err != nil {
			panic(fmt.Sprintf("config: goals: %v", err))
		}
		about, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		name := strings.TrimSuffix(strings.TrimPrefix(file, "goals/"), ".yaml")
		all = append(all, Goal{name, about, string(text)})
	}
	return all
}

// goalModel is the model from which the fine-tuning goals start, as named in their files.
const goalModel = "hf://Qwen/Qwen3-0.6B"

// Of returns the goal with its model replaced by a folder, a published one or one on the Hub; an empty name
// changes nothing. It rejects goals that do not start from a model.
func (g Goal) Of(model string) (Goal, error) {
	if model == "" {
		return g, nil
	}
	if !strings.Contains(g.Text, goalModel) {
		return g, input.BadInput(fmt.Errorf("%s starts from no model; want --model with chat, finetune or lora", g.Name))
	}
	switch address := hf.Address(model); {
	case address != "":
		model = address
	case !hub.Is(model) && !input.Exists(filepath.Join(model, "config.json")):
		return g, input.BadInput(fmt.Errorf("%q is neither a folder with config.json nor a published model; want a folder, hf://org/name, or one of %s", model, published(model)))
	case !hub.Is(model):
		model = tree.Quote(model)
	}
	g.Text = strings.ReplaceAll(g.Text, goalModel, model)
	return g, nil
}
