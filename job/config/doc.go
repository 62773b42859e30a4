// Package config is the job file: its keys, defaults and limits, and all that is
// wrong with one, with file and line. Strings become types here.
//
// What never enters: devices, ranks at work, and anything written to disk.
//
// Begin with config.go: Config is the job file as a struct, Load reads one. fields.go
// is the table of keys; read.go takes values from the file, resolve.go fills in what
// it leaves open and refuses what does not fit together.
package config
