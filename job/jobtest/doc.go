// Package jobtest makes small folders, texts and job files for tests. It imports no other package of
// this module, so that every package's tests can use it.
package jobtest
