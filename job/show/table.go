package show

import (
	"strings"
	"unicode/utf8"
)

// Columns is text in columns. Of "lrr" the first is set flush left and the others
// flush right.
type Columns struct {
	Align string
	rows  [][]string
}

// Add adds a row, a cell for each column.
func (t *Columns) Add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *Columns) String() string {
	widths := make([]int, len(t.Align))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.Align[i] == 'r' {
				cell, gap = gap+cell, ""
			}
			line.WriteString(cell + gap + "  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
