package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"strings"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/gotypes"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// argsFile declares the structs that are passed by address to functions with many arguments.
const argsFile = "../args.go"

// argStructs contains these structs as types of a separate package, with pointers as *byte, since
// avo does not know unsafe.Pointer.
var argStructs = readArgs()

func readArgs() *types.Package {
	src, err := os.ReadFile(argsFile)
	if err != nil {
		panic(err)
	}
	text := strings.ReplaceAll(string(src), "unsafe.Pointer", "*byte")
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, argsFile, strings.Replace(text, "import \"unsafe\"\n", "", 1), parser.SkipObjectResolution)
	if err != nil {
		panic(err)
	}
	pkg, err := (&types.Config{}).Check("kernel", files, []*ast.File{f}, nil)
	if err != nil {
		panic(err)
	}
	return pkg
}

// parsed returns a signature with parameters that may be argStructs.
func parsed(signature string) *gotypes.Signature {
	s, err := gotypes.ParseSignatureInPackage(argStructs, signature)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", signature, err))
	}
	return s
}

// param returns a parameter or, for a name with a dot, a field of the struct that the parameter
// points to. The struct's address stays in a register.
func param(c *build.Context, name string) gotypes.Component {
	of, field, ok := strings.Cut(name, ".")
	if !ok {
		return c.Param(name)
	}
	r, ok := pointers[of]
	if !ok {
		r = c.GP64()
		c.Load(c.Param(of), r)
		pointers[of] = r
	}
	return c.Param(of).Dereference(r).Field(exported(field))
}

// pointers are the registers of a function's structs.
var pointers = map[string]reg.GPVirtual{}

// wordsOf copies a struct of words that a parameter points to onto the stack, using two registers,
// and returns a function for the place of a field.
func wordsOf(c *build.Context, name, of string, base, word reg.Register) func(field string) operand.Mem {
	fields := argStructs.Scope().Lookup(of).Type().Underlying().(*types.Struct)
	local, place := c.AllocLocal(8*fields.NumFields()), map[string]operand.Mem{}
	c.Load(c.Param(name), base)
	for i := range fields.NumFields() {
		m := local.Offset(8 * i)
		place[fields.Field(i).Name()] = m
		c.MOVQ(operand.Mem{Base: base, Disp: 8 * i}, word)
		c.MOVQ(word, m)
	}
	return func(field string) operand.Mem {
		m, ok := place[exported(field)]
		if !ok {
			panic("no field " + field)
		}
		return m
	}
}

// exported returns the name of a field, which is given with a lower-case first letter.
func exported(field string) string { return strings.ToUpper(field[:1]) + field[1:] }
