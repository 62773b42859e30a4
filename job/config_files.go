package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// checkFiles refuses patterns without a file and data without a byte.
func (r *reader) checkFiles() {
	for _, key := range []string{"data.text", "data.tokens"} {
		list := r.given[key]
		if list == nil {
			continue
		}
		empty := 0
		for _, item := range list.items {
			path, err := fillIn(item.text)
			if err != nil {
				r.wrong(item.at, key, err.Error(), "set it, or write the path out")
				continue
			}
			bytes, err := anyBytes(path)
			switch {
			case err != nil:
				r.wrong(item.at, key, err.Error(), "paths are relative to the current directory")
			case !bytes:
				empty++
			}
		}
		if empty == len(list.items) && !r.bad[key] && empty > 0 {
			r.wrong(list.at, key, "every file it names is empty", "want files with something to train on")
		}
	}
}

// anyBytes tells whether a file that matches the pattern has a byte; that there
// is no such file, or that it cannot be read, is an error.
func anyBytes(pattern string) (bool, error) {
	base, rest := doublestar.SplitPattern(filepath.ToSlash(pattern))
	if !strings.ContainsAny(rest, "*?[{") {
		return readable(pattern)
	}
	found, bytes := false, false
	err := doublestar.GlobWalk(os.DirFS(base), rest, func(name string, d fs.DirEntry) error {
		info, err := os.Stat(filepath.Join(base, name))
		if err != nil || !info.Mode().IsRegular() {
			return nil
		}
		found = true
		if bytes = info.Size() > 0; bytes {
			return fs.SkipAll
		}
		return nil
	}, doublestar.WithFilesOnly())
	switch {
	case err != nil && !errors.Is(err, fs.SkipAll):
		return false, fmt.Errorf("%s: %w", pattern, err)
	case !found:
		return false, fmt.Errorf("no file matches %s", pattern)
	}
	return bytes, nil
}

// readable tells whether a file has a byte.
func readable(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("%s cannot be read: %w", path, cause(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("%s cannot be read: %w", path, cause(err))
	}
	if info.IsDir() {
		return false, fmt.Errorf("%s is a folder, its files are %s", path, filepath.Join(path, "**"))
	}
	return info.Size() > 0, nil
}

// cause is a file error without the operation and path.
func cause(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// fillIn replaces ${NAME} by the environment's value; GOROOT is where Go's own
// source lies even if the environment does not say.
func fillIn(pattern string) (string, error) {
	var missing []string
	out := os.Expand(pattern, func(name string) string {
		s := os.Getenv(name)
		if s == "" && name == "GOROOT" {
			s = build.Default.GOROOT
		}
		if s == "" {
			missing = append(missing, name)
		}
		return s
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("%s: the environment has no %s", pattern, strings.Join(missing, ", "))
	}
	return out, nil
}

// countVocab is the number of tokens in a folder's vocab.json.
func countVocab(folder string) (int, error) {
	path := filepath.Join(folder, "vocab.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("%s cannot be read: %w", path, cause(err))
	}
	var ids map[string]int
	if err := json.Unmarshal(raw, &ids); err != nil {
		return 0, fmt.Errorf("%s is not a mapping from tokens to numbers: %w", path, err)
	}
	n := 0
	for _, id := range ids {
		n = max(n, id+1)
	}
	if n < 1 || n > most {
		return 0, fmt.Errorf("%s has %d tokens", path, n)
	}
	return n, nil
}
