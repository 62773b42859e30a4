package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	tableRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \|$`)
	codeName = regexp.MustCompile("`([a-z]+)\\.([A-Z]\\w*)`")
)

// readGlossary returns the words of docs/glossary.md and what they mean.
func readGlossary(t *testing.T) (words, meanings []string) {
	t.Helper()
	raw, err := os.ReadFile("../docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range tableRow.FindAllStringSubmatch(string(raw), -1) {
		if m[1] != "word" && m[1] != "---" {
			words, meanings = append(words, strings.Split(m[1], ", ")...), append(meanings, m[2])
		}
	}
	return words, meanings
}

// What docs/glossary.md explains is there: each word in the code, in what it says
// or in a page, each name in its package.
func TestGlossaryExplainsWhatIsThere(t *testing.T) {
	words, meanings := readGlossary(t)
	all, exported := strings.Builder{}, map[string]bool{}
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, ".md") || d.Name() == "glossary.md" || d.Name() == "glossary_test.go" {
			return err
		}
		raw, err := os.ReadFile(file)
		if err != nil || strings.HasSuffix(file, ".md") {
			all.Write(raw)
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, raw, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all.Write(raw)
		for _, d := range f.Decls {
			if d, ok := d.(*ast.GenDecl); ok {
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						exported[f.Name.Name+"."+s.Name.Name] = true
					}
				}
			}
		}
		return nil
	})
	if err != nil || len(words) < 50 {
		t.Fatal(len(words), err)
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(strings.ToLower(all.String()), "\n//", " ")), " ")
	for _, w := range words {
		if !strings.Contains(text, strings.ToLower(w)) {
			t.Errorf("nothing but docs/glossary.md has the word %s", w)
		}
	}
	for _, m := range meanings {
		for _, name := range codeName.FindAllStringSubmatch(m, -1) {
			if !exported[name[1]+"."+name[2]] {
				t.Errorf("docs/glossary.md names %s, and there is no such type", name[0])
			}
		}
	}
}
