// Types checks the types of all packages and tests of the module for other systems:
//
//	go run .ci/types.go darwin/arm64 windows/amd64
//
// Unlike go build and go vet, it compiles nothing for them, not even the standard library.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// listed is a package as go list prints it.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string // of imports that name another package, as tests and vendored ones do
	DepOnly         bool
}

func main() {
	for _, system := range os.Args[1:] {
		if err := check(system); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", system, err)
			os.Exit(1)
		}
	}
}

// check checks the packages of one system, each after those that it imports.
func check(system string) error {
	goos, arch, _ := strings.Cut(system, "/")
	list := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,DepOnly", "./...")
	list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+arch)
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return err
	}
	if err := list.Start(); err != nil {
		return err
	}
	done := map[string]*types.Package{"unsafe": types.Unsafe}
	for read := json.NewDecoder(out); ; {
		var p listed
		if err := read.Decode(&p); errors.Is(err, io.EOF) {
			return list.Wait()
		} else if err != nil {
			return err
		}
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") { // the latter's main is generated
			continue
		}
		if done[p.ImportPath], err = p.check(types.SizesFor("gc", arch), done); err != nil {
			return err
		}
	}
}

// check checks one package. The functions of other modules are not looked into.
func (p listed) check(sizes types.Sizes, done map[string]*types.Package) (*types.Package, error) {
	files, set := make([]*ast.File, len(p.GoFiles)), token.NewFileSet()
	var err error
	for i, name := range p.GoFiles {
		if files[i], err = parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
	}
	from := types.Config{Sizes: sizes, IgnoreFuncBodies: p.DepOnly, FakeImportC: true, Importer: importer(func(path string) (*types.Package, error) {
		if to, ok := p.ImportMap[path]; ok {
			path = to
		}
		return done[path], nil
	})}
	name, _, _ := strings.Cut(p.ImportPath, " ")
	return from.Check(name, set, files, nil)
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
