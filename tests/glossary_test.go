package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// leftovers are words that are not to be used and still are, by package.
var leftovers = map[string][]string{}

var (
	// nameWords cuts a name such as NewHTTPServer_v2 into its words.
	nameWords = regexp.MustCompile(`[A-Z][a-z0-9]+|[a-z0-9]+|[A-Z]`)
	textWords = regexp.MustCompile(`[A-Za-z]+`)
	tableRow  = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \|(?: ([^|]+) \|)?$`)
	codeName  = regexp.MustCompile("`([a-z]+)\\.([A-Z]\\w*)`")
)

// glossary is docs/glossary.md: its words with what they mean, and those that are
// not used, in names and in texts.
type glossary struct {
	words, meanings []string
	names, texts    map[string]bool // every form of a word: forecasts, forecasting
}

func readGlossary(t *testing.T) (g glossary) {
	t.Helper()
	raw, err := os.ReadFile("../docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	used, unused, ok := strings.Cut(string(raw), "\n## Words that are not used\n")
	if !ok {
		t.Fatal("docs/glossary.md does not say which words are not used")
	}
	for _, m := range tableRow.FindAllStringSubmatch(used, -1) {
		if m[1] != "word" && m[1] != "---" {
			g.words, g.meanings = append(g.words, strings.Split(m[1], ", ")...), append(g.meanings, m[2])
		}
	}
	g.names, g.texts = map[string]bool{}, map[string]bool{}
	for _, m := range tableRow.FindAllStringSubmatch(unused, -1) {
		if m[3] != "all" && m[3] != "names" {
			continue
		}
		for word := range strings.SplitSeq(m[1], ", ") {
			for _, form := range forms(word) {
				g.names[form] = true
				g.texts[form] = m[3] == "all"
			}
		}
	}
	return g
}

// forms are a word and what English makes of it.
func forms(word string) []string {
	stem := strings.TrimSuffix(word, "e")
	return []string{word, word + "s", stem + "es", stem + "ed", stem + "er", stem + "ing"}
}

// unwanted are the words of a Go file that are not to be used: of its names and,
// but for tests, of what it says.
func (g glossary) unwanted(f *ast.File, test bool) (out []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			for _, w := range nameWords.FindAllString(n.Name, -1) {
				if n.Name != "Helper" && g.names[strings.ToLower(w)] { // testing's is called so
					out = append(out, strings.ToLower(w))
				}
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING && !test {
				out = append(out, g.unwantedText(n.Value)...)
			}
		}
		return true
	})
	return out
}

func (g glossary) unwantedText(text string) (out []string) {
	for _, w := range textWords.FindAllString(text, -1) {
		if g.texts[strings.ToLower(w)] {
			out = append(out, strings.ToLower(w))
		}
	}
	return out
}

// Words that docs/glossary.md retires are in no name, in nothing that the program
// says, and in no page.
func TestGlossaryWordsAreNotUsed(t *testing.T) {
	g := readGlossary(t)
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder, _ := filepath.Rel("..", filepath.Dir(file))
		for _, w := range g.unwanted(f, strings.HasSuffix(file, "_test.go")) {
			if !slices.Contains(leftovers[filepath.ToSlash(folder)], w) {
				t.Errorf("%s: %q is not used here; docs/glossary.md says what is", file, w)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	names, text := pages(t)
	for _, page := range names {
		used, _, _ := strings.Cut(text[page], "\n## Words that are not used\n")
		for _, w := range g.unwantedText(used) {
			t.Errorf("%s: %q is not used here; docs/glossary.md says what is", page, w)
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), "", "package a\nfunc newForecast_of(HTTPRoom int) { print(`the room`) }\n", 0)
	if got := strings.Join(g.unwanted(f, false), " "); err != nil || got != "forecast room room" {
		t.Errorf("a file with three: %q, %v", got, err)
	}
}

// What docs/glossary.md explains is there: each word in the code, in what it says
// or in a page, each name in its package.
func TestGlossaryExplainsWhatIsThere(t *testing.T) {
	g, all, exported := readGlossary(t), strings.Builder{}, map[string]bool{}
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
	if err != nil || len(g.words) < 50 {
		t.Fatal(len(g.words), err)
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(strings.ToLower(all.String()), "\n//", " ")), " ")
	for _, w := range g.words {
		if !strings.Contains(text, strings.ToLower(w)) {
			t.Errorf("nothing but docs/glossary.md has the word %s", w)
		}
	}
	for _, m := range g.meanings {
		for _, name := range codeName.FindAllStringSubmatch(m, -1) {
			if !exported[name[1]+"."+name[2]] {
				t.Errorf("docs/glossary.md names %s, and there is no such type", name[0])
			}
		}
	}
}
