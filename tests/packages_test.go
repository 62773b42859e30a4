package tests

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A package of more lines than mostLines says in its package comment why.
const (
	mostLines = 2000
	reason    = "It is larger than other packages because"
)

// packageText is a package's comment and its lines, without those of tests.
type packageText struct {
	comment string
	lines   int
}

// faults are what is missing in a package's package comment.
func (r packageText) faults() (out []string) {
	text := strings.Join(strings.Fields(r.comment), " ")
	if text == "" {
		out = append(out, "there is no package comment")
	}
	switch large := r.lines > mostLines; {
	case large && !strings.Contains(text, reason+" "):
		out = append(out, fmt.Sprintf("%d lines, and the package comment does not say: %s", r.lines, reason))
	case !large && strings.Contains(text, reason):
		out = append(out, fmt.Sprintf("%d lines need no reason in the package comment", r.lines))
	}
	return out
}

func readPackage(folder string) (r packageText, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return r, err
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return r, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return r, err
		}
		if f.Doc != nil && r.comment != "" {
			return r, fmt.Errorf("%s: a second package comment", name)
		}
		r.comment += f.Doc.Text()
		r.lines += bytes.Count(src, []byte{'\n'})
	}
	return r, nil
}

// Every package says what it is; packages under job also what never enters and
// where to begin.
func TestHousePackageComments(t *testing.T) {
	for name := range places {
		r, err := readPackage(filepath.Join("..", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.faults() {
			t.Errorf("%s: %s", name, f)
		}
		if name != "job" && !strings.HasPrefix(name, "job/") {
			continue
		}
		for _, part := range []string{"What never enters: ", "Begin with "} {
			if !strings.Contains(r.comment, part) {
				t.Errorf("%s: the package comment has no %q", name, part)
			}
		}
	}
}

func TestHouseFaultsAreFound(t *testing.T) {
	for _, c := range []struct {
		pkg   packageText
		fails bool
	}{
		{packageText{"Package a is.", mostLines}, false},
		{packageText{"", 10}, true},
		{packageText{"Package a is.", mostLines + 1}, true},
		{packageText{"Package a is. It is larger\nthan other packages because of b.", mostLines + 1}, false},
		{packageText{"Package a is. It is larger than other packages because of b.", 10}, true},
	} {
		if got := c.pkg.faults(); len(got) > 0 != c.fails {
			t.Errorf("%+v: %v", c.pkg, got)
		}
	}
}

// undocumented are the exported functions, methods and types of a file without a
// comment that begins with their names.
func undocumented(f *ast.File) (out []string) {
	check := func(name *ast.Ident, doc string) {
		if name.IsExported() && !strings.HasPrefix(doc, name.Name) {
			out = append(out, name.Name)
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if !known[d.Name.Name] && (d.Recv == nil || ast.IsExported(receiver(d))) {
				check(d.Name, d.Doc.Text())
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					check(s.Name, cmp.Or(s.Doc.Text(), d.Doc.Text()))
				}
			}
		}
	}
	return out
}

// known are methods that the language's own interfaces explain.
var known = map[string]bool{"String": true, "Error": true, "Unwrap": true}

// receiver is the name of the type that a method is of.
func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	if s, ok := t.(*ast.StarExpr); ok {
		t = s.X
	}
	id, _ := t.(*ast.Ident)
	return fmt.Sprint(id)
}

// What packages under job export says what it is.
func TestHouseExportedNamesAreExplained(t *testing.T) {
	for name := range places {
		if name != "job" && name != "input" && !strings.HasPrefix(name, "job/") {
			continue
		}
		files, err := filepath.Glob(filepath.Join("..", name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range undocumented(f) {
				t.Errorf("%s: %s has no comment that begins with its name", file, x)
			}
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), "", "package a\n// B is.\nfunc B() {}\n// B is.\nfunc C() {}\ntype D int\nfunc (d *D) E() {}\n", parser.ParseComments)
	if got := fmt.Sprint(undocumented(f)); err != nil || got != "[C D E]" {
		t.Errorf("undocumented: %s, %v", got, err)
	}
}
