package config

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed goals/*.yaml
var goals embed.FS

// Goal is a job file to start from: its name, what it is for, and its text.
type Goal struct{ Name, For, Text string }

// Goals are those there are, in the order of their files. What a goal is for is
// the first line of its file.
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
