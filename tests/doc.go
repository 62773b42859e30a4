// Package tests has the promises of the README as tests of the whole program, and
// the rules of its source, such as the import table.
//
// Begin with stages_test.go, stages that agree to the bit, and imports_test.go, the
// table of packages.
package tests
