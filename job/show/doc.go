// Package show formats what people read: sizes, spans of time, tables, drawings, and
// text from files made safe for a terminal.
//
// What never enters: jobs, and any other package of ours.
//
// Begin with words.go; table.go aligns columns, screen.go guards a terminal, chart.go
// is for drawings, which svg.go writes.
package show
