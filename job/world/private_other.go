//go:build !unix

package world

import "io/fs"

// private checks nothing here: the folder for temporary files is its user's alone.
func private(fs.FileInfo) error { return nil }
