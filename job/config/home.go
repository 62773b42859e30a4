package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// AtHome is a path as a user writes it, with the home folder for a leading ~. A
// shell does that only at the beginning of a word, not behind --out= or --set.
func AtHome(path string) (string, error) {
	rest, home := strings.CutPrefix(path, "~")
	switch {
	case !home:
		return path, nil
	case rest != "" && !os.IsPathSeparator(rest[0]):
		name, _, _ := strings.Cut(path, "/")
		return "", fmt.Errorf("%q: the home folder of another user is not looked up; write the path out, or ./%s for what is called so", path, name)
	}
	folder, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("%q: %w", path, err)
	}
	return filepath.Join(folder, rest), nil
}

// path is text that names a file or folder, with ~ for the home folder.
type path struct{ text }

func (v path) set(n *node) string {
	var s string
	if wrong := (text{&s}).set(n); wrong != "" {
		return wrong
	}
	full, err := AtHome(s)
	if err != nil {
		return err.Error()
	}
	*v.p = full
	return ""
}

func (v path) want() string { return "a path, in quotes if it has : or # or brackets" }

// patterns are texts that name files, each with ~ for the home folder: as a
// variable, whose value matches only itself.
type patterns struct{ texts }

func (v patterns) set(n *node) string {
	var all []string
	if wrong := (texts{&all}).set(n); wrong != "" {
		return wrong
	}
	for i, s := range all {
		if _, err := AtHome(s); err != nil {
			return err.Error()
		}
		if rest, home := strings.CutPrefix(s, "~"); home {
			all[i] = "${HOME}" + rest
		}
	}
	*v.p = all
	return ""
}
