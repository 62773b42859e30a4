// Package tests has the promises of the README as tests of the whole program, and
// the rules of its source, such as the import table.
//
// Begin with stages_test.go, which checks that stages agree to the bit, and imports_test.go,
// which contains the table of packages.
package tests
