// Package tree reads YAML and JSON into nodes that know where they were written, so that every
// problem of a file is reported with its line.
package tree
