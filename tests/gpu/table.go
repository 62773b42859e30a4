package main

import (
	"fmt"
	"strings"
)

// table is what there is to tell.
type table struct {
	part   string // that is running
	rows   []row
	failed int // rows whose verdict is that
}

// row is a line: what was measured, what it is beside, and what that comes to.
type row struct{ part, what, measured, beside, verdict string }

// failed is the verdict of a line that something is wrong in.
func failed(why string) string { return "FAILED: " + why }

func (t *table) add(what, measured, beside, verdict string) {
	if strings.HasPrefix(verdict, "FAILED") {
		t.failed++
	}
	t.rows = append(t.rows, row{t.part, what, measured, beside, verdict})
}

// check adds a line that has to hold.
func (t *table) check(what, measured, beside string, holds bool, why string) {
	verdict := "ok"
	if !holds {
		verdict = failed(why)
	}
	t.add(what, measured, beside, verdict)
}

// markdown is the table, its columns as wide as they need.
func (t *table) markdown() string {
	rows := append([]row{{"part", "what", "measured", "beside it", "verdict"}}, t.rows...)
	cells := func(r row) []string { return []string{r.part, r.what, r.measured, r.beside, r.verdict} }
	var wide [5]int
	for i := range rows {
		if i > 1 && rows[i].part == t.rows[i-2].part { // of t.rows, which keep theirs
			rows[i].part = ""
		}
		for j, c := range cells(rows[i]) {
			wide[j] = max(wide[j], len([]rune(escaped(c))))
		}
	}
	var b strings.Builder
	for i, r := range rows {
		for j, c := range cells(r) {
			c = escaped(c)
			fmt.Fprintf(&b, "| %s%s ", c, strings.Repeat(" ", wide[j]-len([]rune(c))))
		}
		b.WriteString("|\n")
		if i == 0 {
			for _, n := range wide {
				b.WriteString("|" + strings.Repeat("-", n+2))
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}

// escaped is text of one line that ends no cell.
func escaped(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}
