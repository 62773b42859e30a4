// Package testjob makes small folders, texts and job files for the tests of other
// packages.
//
// What never enters: anything the program itself uses, and any other package of ours.
// Only tests import it.
//
// Begin with testjob.go.
package testjob
