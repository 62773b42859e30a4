package show

import (
	"strings"
	"unicode/utf8"
)

// Columns is a table as text. Align has a letter per column: "lrr" aligns the first left and
// the others right. The first row contains the titles.
type Columns struct {
	Align string
	rows  [][]string
}

// Add adds a row, a cell for each column.
func (t *Columns) Add(cells ...string) { t.rows = append(t.rows, cells) }

// Rows returns the number of rows, including the titles.
func (t *Columns) Rows() int { return len(t.rows) }

func (t *Columns) String() string { return set(t.Align, t.rows) }

// Within returns the table in lines of at most width characters, 0 for any width. If it is too
// wide, the last column moves below its row if it is aligned left; if that is not enough, each
// row becomes a paragraph that repeats the titles.
func (t *Columns) Within(width int) string {
	text := t.String()
	if width == 0 || widest(text) <= width {
		return text
	}
	last := len(t.Align) - 1
	if t.Align[last] == 'l' {
		if text := t.lastBelow(last, width); widest(text) <= width {
			return text
		}
	}
	return t.paragraphs(width)
}

// lastBelow moves the cells of the last column below the others.
func (t *Columns) lastBelow(last, width int) string {
	var rows [][]string
	for _, row := range t.rows {
		rows = append(rows, row[:min(last, len(row))])
	}
	var b strings.Builder
	lines := strings.SplitAfter(set(t.Align[:last], rows), "\n")
	for i, row := range t.rows {
		b.WriteString(lines[i])
		if len(row) > last && row[last] != "" {
			for _, line := range broken(row[last], width-4) {
				b.WriteString("    " + line + "\n")
			}
		}
	}
	return b.String()
}

// paragraphs returns the rows cell by cell, broken between cells, and in the last column
// between words.
func (t *Columns) paragraphs(width int) string {
	var b strings.Builder
	names, last := t.rows[0], len(t.Align)-1
	for _, row := range t.rows[1:] {
		var pieces []string
		for i, cell := range row[1:] {
			if cell = strings.TrimSpace(cell); cell == "" {
				continue
			}
			if n := len(pieces); n > 0 {
				pieces[n-1] += ","
			}
			if text := strings.TrimSpace(names[i+1] + " " + cell); i+1 == last {
				pieces = append(pieces, strings.Fields(text)...)
			} else {
				pieces = append(pieces, text)
			}
		}
		b.WriteString(strings.Join(append([]string{row[0]}, lined(pieces, width-4)...), "\n    ") + "\n")
	}
	return b.String()
}

// widest returns the length of the longest line in characters.
func widest(text string) (n int) {
	for line := range strings.Lines(text) {
		n = max(n, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
	}
	return n
}

// set returns the rows aligned in columns.
func set(align string, rows [][]string) string {
	widths := make([]int, len(align))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if align[i] == 'r' {
				cell, gap = gap+cell, ""
			}
			line.WriteString(cell + gap + "  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
