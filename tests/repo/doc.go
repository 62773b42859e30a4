// Package repo checks the repository itself: imports, comments, the commands and generated parts of
// pages, and examples.
//
// Begin with imports_test.go, which contains the table of packages.
package repo
