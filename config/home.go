package config

import (
	"fmt"
	"os"
	gopath "path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"zeroth/config/tree"
	"zeroth/input"
	"zeroth/input/hub"
	"zeroth/job/hf"
)

// Path replaces a leading ~ by the home folder, and refuses addresses except those with one of the schemes.
// A shell replaces ~ only at the beginning of a word, not after --out= or --set.
func Path(path string, schemes ...string) (string, error) {
	rest, home := strings.CutPrefix(path, "~")
	switch {
	case !home:
		return path, input.CheckPath(path, schemes...)
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

// path is the name of a file or folder, with ~ for the home folder, or an address with one of the schemes.
type path struct {
	text
	schemes []string
}

var (
	objects = []string{"s3://"}
	models  = []string{"hf://", "s3://"}
)

func (v path) set(n *tree.Node) string {
	var s string
	if wrong := (text{&s}).set(n); wrong != "" {
		return wrong
	}
	full, err := Path(s, v.schemes...)
	if err != nil && slices.Contains(v.schemes, "hf://") && strings.Contains(s, "://huggingface.co/") {
		return err.Error() + ": " + ToDownload(s)
	} else if err != nil {
		return err.Error()
	}
	*v.p = full
	return ""
}

func (v path) want() string { return "a path, in quotes if it has : or # or brackets" }

// patterns are texts that match file names. A leading ~ becomes a variable, so that characters of
// the home folder's path are not wildcards. Addresses have one of the schemes.
type patterns struct {
	texts
	schemes []string
}

func (v patterns) set(n *tree.Node) string {
	var all []string
	if wrong := (texts{&all}).set(n); wrong != "" {
		return wrong
	}
	for i, s := range all {
		if _, err := Path(s, v.schemes...); err != nil {
			return err.Error()
		}
		if rest, home := strings.CutPrefix(s, "~"); home {
			all[i] = "${HOME}" + rest
		}
	}
	*v.p = all
	return ""
}

// repository matches a model's name on the Hugging Face Hub.
var repository = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[\w.-]+$`)

// inHub matches a model's name at the beginning of a path on the Hub.
var inHub = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)?`)

// ToDownload returns advice on downloading a model if from looks like its name on the Hub and is
// not a folder.
func ToDownload(from string) string {
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
