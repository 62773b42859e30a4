// Package config defines the job file: its keys, defaults and limits. It reports all errors of a
// job with file and line. Strings become types here.
//
// Devices, running ranks and written files are outside this package.
//
// Begin with config.go: Config is the job file as a struct, and Load reads one. fields.go is the
// table of keys; read.go reads values from the file; resolve.go derives the missing ones and
// rejects combinations that cannot work.
package config
