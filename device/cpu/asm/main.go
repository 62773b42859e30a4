// The generator of the assembly of device/cpu, a module of its own so that the
// product does not depend on avo. Run it from this directory:
//
//	go run .
//
// It writes gemm_amd64.s, gemm_stubs_amd64.go and the like.
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

var files = []struct {
	name string
	body func(*build.Context)
}{{"gemm", gemm}, {"cast", cast}, {"bf16", bf16}, {"attention", attention}, {"elementwise", elementwise}, {"optim", optim},
	{"norm", norm}, {"sums", sums}, {"limits", limits}}

func main() {
	dir := flag.String("dir", "..", "directory the files are written to")
	flag.Parse()
	for _, f := range files {
		if err := generate(*dir, f.name, f.body); err != nil {
			log.Fatalf("%s: %v", f.name, err)
		}
	}
}

func generate(dir, name string, body func(*build.Context)) error {
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
	cfg := printer.Config{Name: "avo", Argv: []string{"go", "run", "-C", "device/cpu/asm"}, Pkg: "cpu"}
	text, err := printer.NewGoAsm(cfg).Print(file)
	if err != nil {
		return err
	}
	stubs, err := printer.NewStubs(cfg).Print(file)
	if err != nil {
		return err
	}
	// avo knows no unsafe.Pointer without loading the package it writes for.
	stubs = bytes.ReplaceAll(stubs, []byte("*byte"), []byte("unsafe.Pointer"))
	stubs = bytes.Replace(stubs, []byte("package cpu\n"), []byte("package cpu\n\nimport \"unsafe\"\n"), 1)
	base := filepath.Join(dir, name)
	if err := os.WriteFile(base+"_amd64.s", text, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(base+"_stubs_amd64.go", stubs, 0o644); err != nil {
		return fmt.Errorf("stubs: %w", err)
	}
	return nil
}
