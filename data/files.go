package data

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"zeroth/internal/input"
	"zeroth/internal/input/s3"
	"zeroth/internal/parallel"
)

// file is an input file as it was when found.
type file struct {
	path    string
	size    int64 // bytes, > 0
	info    fs.FileInfo
	pattern int // index of the first pattern that matches it

	object *object // if the file is in object storage; path is that of its local copy, and info is nil
}

// name returns the name by which files are sorted, on every machine the same.
func (f file) name() string {
	if f.object != nil {
		return f.object.name()
	}
	return f.path
}

// Found holds the files found by Check.
type Found struct {
	source Source
	files  atomic.Pointer[[]file] // nil once taken, to free the memory during a run
}

func found(s Source, files []file) *Found {
	f := &Found{source: s}
	f.files.Store(&files)
	return f
}

// take returns the files if they belong to the source and were not taken before, otherwise
// nil.
func (f *Found) take(s Source) []file {
	if f == nil || f.source.Dir != s.Dir || !slices.Equal(f.source.Text, s.Text) || !slices.Equal(f.source.Tokens, s.Tokens) || !slices.Equal(f.source.Documents.Files, s.Documents.Files) {
		return nil
	}
	if files := f.files.Swap(nil); files != nil {
		return *files
	}
	return nil
}

// find returns the files matching any pattern, sorted by path, each once even if it has
// several names. It skips empty text files; empty token files, and files that are not text
// or tokens at all, are errors. In a pattern * ? [..] {..} match within a folder's name, **
// matches folders at any depth but does not follow symbolic links, and ${NAME} is the value
// of the environment variable. s3://BUCKET/PATTERN matches objects. A pattern without a match may be the exact name of a file. If
// ctx ends, its cause is the only error.
func find(ctx context.Context, key, dir string, patterns []string) (files []file, errs []error) {
	wrong := make([][]error, len(patterns))
	budget := mostEntries
	for i, pattern := range patterns {
		found, err := match(ctx, dir, pattern, key == "tokens", &budget)
		if err != nil {
			wrong[i] = append(wrong[i], err)
		}
		for _, f := range found {
			f.pattern = i
			files = append(files, f)
		}
	}
	files = unique(files)
	kinds := make([]error, len(files))
	err := parallel.For(ctx, len(files), 0, func(_ context.Context, i int) error {
		if files[i].object == nil { // fetch checks the others
			kinds[i] = checkKind(key, files[i].path)
		}
		return nil
	})
	if err != nil {
		return nil, []error{err}
	}
	for i, err := range kinds {
		if at := files[i].pattern; err != nil {
			wrong[at] = append(wrong[at], err)
		}
	}
	for i, w := range wrong {
		if len(w) > 0 {
			errs = append(errs, &Problem{fmt.Sprintf("%s[%d]", key, i), joinSome(w)})
		}
	}
	return files, errs
}

// unique sorts files by path and removes duplicates under other names.
func unique(files []file) []file {
	slices.SortStableFunc(files, func(a, b file) int { return strings.Compare(a.name(), b.name()) })
	seen := map[any]bool{}
	return slices.DeleteFunc(files, func(f file) bool {
		id := identity(f)
		again := seen[id]
		seen[id] = true
		return again
	})
}

// apart separates the files that are also among held, under any name or as a copy, from the others.
func apart(files, held []file) (others, both []file, err error) {
	sums := map[string][sha256.Size]byte{}
	sum := func(f file) [sha256.Size]byte {
		if _, ok := sums[f.path]; !ok && err == nil {
			sums[f.path], err = contentSum(f.path)
		}
		return sums[f.path]
	}
	for _, f := range files {
		same := func(h file) bool { return f.size == h.size && (identity(f) == identity(h) || sum(f) == sum(h)) }
		if slices.ContainsFunc(held, same) {
			both = append(both, f)
		} else {
			others = append(others, f)
		}
	}
	return others, both, err
}

// contentSum returns the SHA-256 of a file.
func contentSum(path string) (sum [sha256.Size]byte, err error) {
	f, err := input.Open(path, math.MaxInt64)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return [sha256.Size]byte(h.Sum(nil)), err
}

// match returns the files of one pattern, at least one.
func match(ctx context.Context, dir, pattern string, refuseEmpty bool, budget *int) ([]file, error) {
	if pattern == "" {
		return nil, errors.New("an empty pattern; name a file or a pattern such as FOLDER/**/*.txt")
	}
	expanded, err := expand(pattern)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pattern, err)
	}
	if err := input.CheckPath(expanded, "s3://"); err != nil {
		return nil, err
	}
	if s3.Is(expanded) {
		return matchObjects(ctx, expanded, refuseEmpty)
	}
	expanded = inDir(escape(dir), expanded)
	paths, err := walk(ctx, expanded, budget)
	if exact := inDir(dir, pattern); len(paths) == 0 && isFile(exact) {
		paths, err = []string{exact}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pattern, err)
	}
	if len(paths) == 0 {
		return nil, noMatch(expanded)
	}
	infos, errs := make([]fs.FileInfo, len(paths)), make([]error, len(paths))
	err = parallel.For(ctx, len(paths), 0, func(_ context.Context, i int) error {
		infos[i], errs[i] = os.Stat(paths[i])
		return nil
	})
	if err != nil { // some infos may be missing
		return nil, err
	}
	var files []file
	for i, path := range paths {
		info, err := infos[i], errs[i]
		switch {
		case err != nil:
			return nil, err
		case info.IsDir(): // a symbolic link to a folder
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is not a regular file (%v)", path, info.Mode().Type())
		case info.Size() == 0 && refuseEmpty:
			return nil, fmt.Errorf("%s is empty", path)
		case info.Size() > 0:
			files = append(files, file{path: filepath.Clean(path), size: info.Size(), info: info})
		}
	}
	if len(files) == 0 && len(paths) == 1 {
		return nil, fmt.Errorf("%s is empty", paths[0])
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no text: each of the %d files it matches is empty or a folder, such as %s", pattern, len(paths), paths[0])
	}
	return files, nil
}

// mostEntries limits how many names of files and folders a search reads. A pattern with
// several ** may reach a folder several times: its names then count each time, and after a
// few times so do the system calls.
var mostEntries = 10_000_000

const (
	fewTimes  = 4  // reads of a folder at normal cost; a pattern with one ** reads each twice
	rereading = 60 // cost of further reads in names, instead of 1: about 20 µs of a search that ends within seconds
)

// walk returns the paths of the files matching a pattern. It decreases budget by the names it
// reads.
func walk(ctx context.Context, pattern string, budget *int) ([]string, error) {
	parts := strings.Split(filepath.ToSlash(filepath.Clean(pattern)), "/")
	parts = slices.CompactFunc(parts, func(a, b string) bool { return a == "**" && b == "**" })
	folder, rest := doublestar.SplitPattern(strings.Join(parts, "/"))
	if rest == "" || rest == "." || rest == ".." {
		return nil, nil // names a folder
	}
	paths, err := doublestar.Glob(&bounded{os.DirFS(folder), ctx, budget, map[string]int{}}, rest, doublestar.WithFilesOnly(), doublestar.WithNoFollow(), doublestar.WithFailOnIOErrors())
	for i, path := range paths {
		paths[i] = filepath.Join(folder, filepath.FromSlash(path))
	}
	if at := (*fs.PathError)(nil); errors.As(err, &at) { // its path is relative to folder
		err = &fs.PathError{Op: at.Op, Path: filepath.Join(folder, at.Path), Err: at.Err}
	}
	return paths, err
}

// bounded is a file system that limits how many names are read, and stops when ctx ends.
type bounded struct {
	fs.FS
	ctx    context.Context
	budget *int
	read   map[string]int // number of reads by folder
}

// ReadDir implements fs.ReadDirFS.
func (s *bounded) ReadDir(name string) ([]fs.DirEntry, error) {
	cost := 1
	if s.read[name]++; s.read[name] > fewTimes {
		cost = rereading
	}
	if err := s.count(cost); err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(s.FS, name)
	if err == nil {
		err = s.count(len(entries))
	}
	return entries, err
}

// Stat implements fs.StatFS.
func (s *bounded) Stat(name string) (fs.FileInfo, error) {
	if err := s.count(1); err != nil {
		return nil, err
	}
	return fs.Stat(s.FS, name)
}

// count returns an error if n more names exceed the limit, or if ctx ended.
func (s *bounded) count(n int) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if *s.budget -= n; *s.budget < 0 {
		return fmt.Errorf("the search reads more than %d names of files and folders; use a more specific pattern, with fewer **", mostEntries)
	}
	return nil
}

// isFile reports whether a path exists and is not a folder.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// noMatch returns the error for a pattern without a match.
func noMatch(pattern string) error {
	if info, err := os.Stat(pattern); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a folder; its files are %s", pattern, filepath.Join(pattern, "**"))
	}
	if filepath.IsAbs(pattern) {
		return fmt.Errorf("no file matches %s", pattern)
	}
	return fmt.Errorf("no file matches %s; relative paths start in the working directory", pattern)
}

// inDir makes a relative path relative to dir.
func inDir(dir, path string) string {
	if dir == "" || filepath.IsAbs(path) {
		return path
	}
	return dir + string(filepath.Separator) + path
}

var variable = regexp.MustCompile(`\$\{[^}]*\}`)

// expand replaces ${NAME} by the variable's value, escaped so that it matches literally.
func expand(pattern string) (string, error) {
	var errs []error
	s := variable.ReplaceAllStringFunc(pattern, func(v string) string {
		name := v[2 : len(v)-1]
		value, ok := os.LookupEnv(name)
		if name == "GOROOT" && value == "" {
			root, err := goroot()
			if err != nil {
				errs = append(errs, err)
			}
			return escape(root)
		}
		if !ok {
			errs = append(errs, fmt.Errorf("the environment variable %s is not set; export it or write out the path", name))
		}
		return escape(value)
	})
	return s, errors.Join(errs...)
}

// escape returns a pattern that matches only path. On Windows, where the backslash separates
// folders, nothing can be escaped.
func escape(path string) string {
	if runtime.GOOS == "windows" {
		return path
	}
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "{", `\{`).Replace(path)
}

// goroot returns the source folder of the installed Go, for jobs run without GOROOT in the
// environment: as reported by the go command, or else where this program was built.
func goroot() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output(); err == nil {
		if root := strings.TrimSpace(string(out)); root != "" {
			return root, nil
		}
	}
	root := build.Default.GOROOT
	if _, err := os.Stat(filepath.Join(root, "src")); root == "" || errors.Is(err, fs.ErrNotExist) {
		return "", errors.New("GOROOT is unknown: there is no go command in PATH; set GOROOT to a Go installation, or name other files, such as text: [\"FOLDER/**/*.txt\"]")
	}
	return root, nil
}
