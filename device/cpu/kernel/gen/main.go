// Command gen generates the assembly of device/cpu. It is a separate module so that the product
// does not depend on avo. Run it from this directory:
//
//	go run .
//
// It generates gemm_amd64.s, gemm_stubs_amd64.go and so on with avo, and gemm_arm64.s and so on
// with the code in neon.go.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

// files are generated for amd64, and for arm64 if neon is set.
var files = []struct {
	name string
	avo  func(*build.Context)
	neon func(*neonFile)
}{
	{"gemm", gemm, neonGemm}, {"cast", cast, neonCast}, {"bf16", bf16, nil}, {"attention", attention, neonAttention},
	{"elementwise", elementwise, neonElementwise}, {"dropout", dropout, nil}, {"codes8", codes8, nil}, {"optim", optim, neonOptim}, {"norm", norm, neonNorm}, {"sums", sums, neonSums},
	{"roofline", roofline, neonRoofline},
}

func main() {
	dir := flag.String("dir", "..", "directory the files are written to")
	flag.Parse()
	if err := generate(*dir); err != nil {
		log.Fatal(err)
	}
}

// generate writes all files.
func generate(dir string) error {
	for _, f := range files {
		base := filepath.Join(dir, f.name)
		if err := generateAMD64(base, f.avo); err != nil {
			return fmt.Errorf("%s for amd64: %w", f.name, err)
		}
		if f.neon == nil {
			continue
		}
		file := newNeonFile(f.name)
		f.neon(file)
		if err := write(base, "arm64", file.assembly(), file.declarations()); err != nil {
			return err
		}
	}
	return nil
}

func generateAMD64(base string, body func(*build.Context)) error {
	c := build.NewContext()
	body(c)
	file, err := c.Result()
	if err != nil {
		return err
	}
	broadcastConstants(file)
	if err := pass.Compile.Execute(file); err != nil {
		return err
	}
	cfg := printer.Config{Name: "avo", Argv: []string{"go", "run", "-C", "device/cpu/kernel/gen"}, Pkg: "kernel"}
	text, err := printer.NewGoAsm(cfg).Print(file)
	if err != nil {
		return err
	}
	stubs, err := printer.NewStubs(cfg).Print(file)
	if err != nil {
		return err
	}
	// avo does not know unsafe.Pointer without loading the package it writes for.
	stubs = bytes.ReplaceAll(stubs, []byte("*byte"), []byte("unsafe.Pointer"))
	if bytes.Contains(stubs, []byte("unsafe.Pointer")) {
		stubs = bytes.Replace(stubs, []byte("package kernel\n"), []byte("package kernel\n\nimport \"unsafe\"\n"), 1)
	}
	return write(base, "amd64", text, stubs)
}

// write writes a file of assembly and its declarations.
func write(base, processor string, text, stubs []byte) error {
	if err := os.WriteFile(base+"_"+processor+".s", text, 0o644); err != nil {
		return err
	}
	return os.WriteFile(base+"_stubs_"+processor+".go", stubs, 0o644)
}
