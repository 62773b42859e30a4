//go:build !unix

package main

// tellLarge does nothing: there is no signal to tell it.
func tellLarge() {}
