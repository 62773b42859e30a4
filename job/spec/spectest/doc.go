// Package spectest loads small job files for the tests of other packages.
package spectest
