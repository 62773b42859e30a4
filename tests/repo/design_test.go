package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// has reports whether a Go file has a function or method named function.
func has(file, function string) (bool, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return false, err
	}
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == function {
			return true, nil
		}
	}
	return false, nil
}

// TestDesignWalks checks that files and functions named in ARCHITECTURE.md exist, written as
// `file.go:Function` or `file.go`.
func TestDesignWalks(t *testing.T) {
	page, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	hops := 0
	for _, m := range regexp.MustCompile("`([a-z0-9_/]+\\.go)(?::(\\w+))?`").FindAllStringSubmatch(string(page), -1) {
		file := filepath.Join("..", "..", m[1])
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
			continue
		}
		if m[2] == "" {
			continue
		}
		hops++
		if ok, err := has(file, m[2]); err != nil || !ok {
			t.Errorf("ARCHITECTURE.md names %s:%s, and there is no such function (%v)", m[1], m[2], err)
		}
	}
	if hops < 20 {
		t.Errorf("only %d functions are named", hops)
	}
	if ok, err := has("design_test.go", "nowhere"); ok || err != nil {
		t.Errorf("a function that is nowhere: %v, %v", ok, err)
	}
}

// TestFilesNamedAreThere checks that the files of packages under job that a page names exist, and
// also those named in package comments.
func TestFilesNamedAreThere(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../../README.md", "../../BENCHMARKS.md", "../../CONTRIBUTING.md", "../../ARCHITECTURE.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\b(?:job|config)/[a-z0-9_/]+\.go\b`).FindAllString(string(text), -1) {
			if _, err := os.Stat(filepath.Join("..", "..", name)); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
	for name := range places {
		comment, _ := packageComment(t, name)
		_, begin, ok := strings.Cut(comment, "Begin with ")
		if !ok {
			continue
		}
		for _, file := range regexp.MustCompile(`\b[a-z0-9_]+\.go\b`).FindAllString(begin, -1) {
			if _, err := os.Stat(filepath.Join("..", "..", name, file)); err != nil {
				t.Errorf("the package comment of %s: %v", name, err)
			}
		}
	}
}
