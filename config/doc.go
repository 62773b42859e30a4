// Package config defines the job file: its keys, defaults and limits. It turns rows of the file into
// values of a Config and reports every problem with its line.
//
// What follows from several keys, the model and the machine is in package job/spec, and the files of
// other programs are in config/dialect.
//
// Begin with config.go: Config is the job file as a struct. fields.go is the table of keys, values.go
// has the types of their values, and read.go reads a file.
package config
