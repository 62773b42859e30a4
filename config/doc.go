// Package config defines the job file: its keys, defaults and limits. It turns rows of the file into
// values of a Config and reports every problem with its line.
//
// What follows from several keys, the model and the machine is in package job/spec, and the files of
// other programs are in config/dialect, their words in config/words.
//
// Begin with config.go: Config is the job file as a struct. Each section has a file with its struct and
// the table of its keys, such as train.go. fields.go says what a row has, values.go has the types of
// values, and read.go reads a file.
package config
