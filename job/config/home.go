package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// AtHome replaces a leading ~ by the home folder. A shell does this only at the beginning of a
// word, not after --out= or --set.
func AtHome(path string) (string, error) {
	rest, home := strings.CutPrefix(path, "~")
	switch {
	case !home:
		return path, nil
	case rest != "" && !os.IsPathSeparator(rest[0]):
		name, _, _ := strings.Cut(path, "/")
		return "", fmt.Errorf("%q: the home folders of other users are not looked up; write the full path, or ./%s for a file with that name", path, name)
	}
	folder, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("%q: %w", path, err)
	}
	return filepath.Join(folder, rest), nil
}

// path is the name of a file or folder, with ~ for the home folder.
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

// patterns are texts that match file names. A leading ~ becomes a variable, so that characters of
// the home folder's path are not wildcards.
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
