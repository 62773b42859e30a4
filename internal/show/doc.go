// Package show formats text for people: sizes, durations, tables, drawings, and text from files
// made safe for a terminal.
//
// It must not import any other package of ours.
//
// Begin with words.go; table.go aligns columns, screen.go protects a terminal, and chart.go
// describes drawings, which svg.go writes.
package show
