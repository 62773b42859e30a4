// Package tests checks promises that span packages by running jobs. tests/repo checks the repository
// itself: imports, pages and examples.
//
// Begin with stages_test.go, which checks that stages agree to the bit.
package tests
