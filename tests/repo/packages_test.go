package repo

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// packageComment returns the package comment in a folder and the number of files that have one.
func packageComment(t *testing.T, folder string) (comment string, n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(folder), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(file, "_test.go") && f.Doc != nil {
			comment, n = f.Doc.Text(), n+1
		}
	}
	return comment, n
}

// TestPackageComments checks that every package has a package comment in exactly one file.
func TestPackageComments(t *testing.T) {
	for name := range places {
		if _, n := packageComment(t, name); n != 1 {
			t.Errorf("%s: %d package comments, want one", name, n)
		}
	}
}

// undocumented returns the exported functions, methods and types of a file that have no
// comment beginning with their names.
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

// implements lists files of methods that only implement an interface, which explains them.
var implements = []string{"../../job/shadow/operations.go"} // nn.Ops

// known lists methods of the language's own interfaces, which need no comment.
var known = map[string]bool{"String": true, "Error": true, "Unwrap": true}

// receiver returns the name of a method's type.
func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	if s, ok := t.(*ast.StarExpr); ok {
		t = s.X
	}
	id, _ := t.(*ast.Ident)
	return fmt.Sprint(id)
}

// TestExportedNamesHaveComments checks that exported names of packages under job and internal have comments
// that begin with them.
func TestExportedNamesHaveComments(t *testing.T) {
	for name := range places {
		if name != "job" && !strings.HasPrefix(name, "internal/") && !strings.HasPrefix(name, "config") && !strings.HasPrefix(name, "job/") {
			continue
		}
		files, err := filepath.Glob(filepath.Join("..", "..", name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || slices.Contains(implements, filepath.ToSlash(file)) {
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
