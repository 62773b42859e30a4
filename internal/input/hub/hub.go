// Package hub downloads models from the Hugging Face Hub into the cache of Python's
// huggingface_hub, so that both share every file:
//
//	models--ORG--NAME/refs/REVISION            commit of a branch or tag
//	models--ORG--NAME/trees/COMMIT.json        files of a commit, with sizes and checksums
//	models--ORG--NAME/blobs/SUM                a complete file; SUM is its checksum
//	models--ORG--NAME/blobs/SUM.incomplete     the beginning of one
//	models--ORG--NAME/snapshots/COMMIT/FILE    a link to a blob
//	.locks/models--ORG--NAME/SUM.lock          locked while a blob is downloaded
//	.locks/models--ORG--NAME/model.lock        locked while anything of the model is downloaded
//
// Fetch downloads files, and Folder returns where they are. Other packages see only a folder.
//
// A model in object storage, s3://BUCKET/PREFIX, is downloaded the same way, into the cache of package s3.
package hub

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"zeroth/internal/input"
	"zeroth/internal/input/s3"
)

const scheme = "hf://"

// Is reports whether a name is that of a model on the Hub or in object storage rather than a path.
func Is(name string) bool { return strings.HasPrefix(name, scheme) || s3.Is(name) }

// model is a parsed name.
type model struct {
	repo     string // "org/name", for some old models only "name"
	revision string // a branch, tag or commit
}

var (
	repository = regexp.MustCompile(`^[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?$`)
	revision   = regexp.MustCompile(`^[A-Za-z0-9_][\w./+-]*$`)
	commit     = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// parse reads hf://org/name@revision; without a revision it is main.
func parse(name string) (model, error) {
	repo, rev, given := strings.Cut(strings.TrimPrefix(name, scheme), "@")
	if !given {
		rev = "main"
	}
	plain := repository.MatchString(repo) && !strings.Contains(repo, "--") && !strings.Contains(repo, "..") && len(repo) <= 200
	if !plain || !revision.MatchString(rev) || path.Clean(rev) != rev || slices.Contains(strings.Split(rev, "/"), "..") || len(rev) > 200 {
		return model{}, input.BadInput(fmt.Errorf("%.250q is not a model on the Hub; want hf://org/name or hf://org/name@revision", name))
	}
	return model{repo, rev}, nil
}

func (m model) String() string {
	if m.revision == "main" {
		return scheme + m.repo
	}
	return scheme + m.repo + "@" + m.revision
}

// pinned reports whether the revision is a commit, which never changes.
func (m model) pinned() bool { return commit.MatchString(m.revision) }

// at returns the model at another revision.
func (m model) at(revision string) model { return model{m.repo, revision} }

// Split returns the repository and the revision of a name: "org/name" and "main" of hf://org/name.
// It returns any other name unchanged, without a revision.
func Split(name string) (repo, revision string) {
	if m, err := parse(name); err == nil && Is(name) {
		return m.repo, m.revision
	}
	return name, ""
}

// Folder returns the folder of a model that Fetch has returned. It returns any other name
// unchanged.
func Folder(name string) string {
	if s3.Is(name) {
		return objectsFolder(name)
	}
	m, err := parse(name)
	cache, noCache := cacheFolder()
	if !Is(name) || err != nil || noCache != nil {
		return name
	}
	return m.snapshot(cache)
}

// base returns the model's folder name in the cache.
func (m model) base() string { return "models--" + strings.ReplaceAll(m.repo, "/", "--") }

func (m model) snapshot(cache string) string {
	return filepath.Join(cache, m.base(), "snapshots", m.revision)
}

// home returns the folder of Hugging Face's files.
func home() (string, error) {
	if h := os.Getenv("HF_HOME"); h != "" {
		return expand(h)
	}
	if x := os.Getenv("XDG_CACHE_HOME"); x != "" {
		return expand(filepath.Join(x, "huggingface"))
	}
	return expand("~/.cache/huggingface")
}

// cacheFolder returns the folder of downloaded models.
func cacheFolder() (string, error) {
	for _, key := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if c := os.Getenv(key); c != "" {
			return expand(c)
		}
	}
	h, err := home()
	return filepath.Join(h, "hub"), err
}

// expand replaces variables and a leading ~ as huggingface_hub does, and returns an absolute path.
func expand(folder string) (string, error) {
	folder = os.ExpandEnv(folder)
	if err := input.CheckPath(folder); err != nil {
		return "", fmt.Errorf("the folder for downloaded models: %w", err)
	}
	if rest, ok := strings.CutPrefix(folder, "~"); ok && (rest == "" || os.IsPathSeparator(rest[0])) {
		user, err := os.UserHomeDir()
		if err != nil {
			return "", input.BadInput(fmt.Errorf("no folder for downloaded models: %w; set HF_HOME", err))
		}
		folder = filepath.Join(user, rest)
	}
	return filepath.Abs(folder)
}

// token returns the user's token, and where it comes from; "" for none.
func token() (token, from string, err error) {
	if t := strings.TrimSpace(os.Getenv("HF_TOKEN")); t != "" {
		return t, "HF_TOKEN", nil
	}
	file := os.Getenv("HF_TOKEN_PATH")
	if file == "" {
		h, err := home()
		if err != nil {
			return "", "", err
		}
		file = filepath.Join(h, "token")
	} else if file, err = expand(file); err != nil {
		return "", "", err
	}
	const longest = 4096 // bytes
	raw, err := input.Read(file, longest)
	if errors.Is(err, os.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", "", input.BadInput(fmt.Errorf("the token of the Hub: %w", err))
	}
	return strings.TrimSpace(string(raw)), file, nil
}

// offline reports whether the user forbids connections to the Hub.
func offline() bool {
	for _, key := range []string{"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"} {
		if v := os.Getenv(key); v != "" {
			return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(v))
		}
	}
	return false
}
