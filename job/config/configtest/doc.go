// Package configtest loads small job files for the tests of other packages.
//
// What never enters: anything the program itself uses. Only tests import it.
//
// Begin with configtest.go.
package configtest
