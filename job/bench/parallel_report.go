package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"zeroth/internal/show"
)

// Table writes the comparison as a table, in Markdown if markdown is set.
func (x *Comparison) Table(w io.Writer, markdown bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d ranks, %d sequences of %s tokens a step, %s; medians of steps %d to %d of %d turns\n", x.Ranks, x.Batch, show.Grouped(int64(x.Context)), x.Precision, warmSteps+1, warmSteps+x.Steps, turns)
	b.WriteString(prefixed("predicted seconds: simulated on ", x.Hardware) + prefixed("no predicted seconds: ", x.Unknown))
	if rows := x.rows(); len(rows) > 1 {
		b.WriteString("\n" + table(w, rows, markdown))
	}
	switch most := x.mostDifferent(); {
	case most.Difference > 0:
		fmt.Fprintf(&b, "\nlosses of all ways agree within %.2g; %s differs most from the first\n", most.Difference, most.Way)
	case most.Run != nil:
		b.WriteString("\nlosses of all ways are equal\n")
	}
	refused := "\nnot available:\n"
	for _, y := range x.Ways {
		if y.Refused != "" {
			b.WriteString(refused + fmt.Sprintf("- %s: %s\n", y.Way, strings.ReplaceAll(y.Refused, "\n", "\n  ")))
			refused = ""
		}
	}
	return show.Print(w, b.String())
}

// prefixed returns text with before in front of it, or "" if text is empty.
func prefixed(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text + "\n"
}

// rows returns a row of titles and one for each way that was run.
func (x *Comparison) rows() [][]string {
	rows := [][]string{{"way", "ranks", "tokens/s", "spread", "predicted", "ratio", "memory a rank", "planned", "sent per step", "planned", "waiting", "predicted", "loss differs by"}}
	for _, y := range x.Ways {
		if y.Run == nil {
			continue
		}
		ratio := ""
		if y.Predicted.Tokens > 0 {
			ratio = fmt.Sprintf("%.2f", y.Run.Tokens/y.Predicted.Tokens)
		}
		r, p := y.Run.words(), y.Predicted.words()
		rows = append(rows, []string{y.Way, y.Mesh, r[0], fmt.Sprintf("%.0f %%", 100*y.Run.Spread), p[0], ratio, r[1], p[1], r[2], p[2], r[3], p[3], fmt.Sprintf("%.0e", y.Difference)})
	}
	return rows
}

// words returns the figures as text, "" for unknown ones.
func (f *Figures) words() (w [4]string) {
	w[1] = show.ByteSize(f.Memory)
	if f.Sent >= 0 {
		w[2] = show.ByteSize(f.Sent)
	}
	if f.Tokens > 0 {
		w[0], w[3] = show.Grouped(int64(f.Tokens)), fmt.Sprintf("%.1f %%", 100*f.Waiting)
	}
	return w
}

// mostDifferent returns the way whose losses differ most from those of the first. It has no figures if
// no way was run.
func (x *Comparison) mostDifferent() (most Compared) {
	ran := slices.DeleteFunc(slices.Clone(x.Ways), func(y Compared) bool { return y.Run == nil })
	if len(ran) == 0 {
		return most
	}
	return slices.MaxFunc(ran, func(a, b Compared) int { return cmp.Compare(a.Difference, b.Difference) })
}

// Ran reports whether any way was run.
func (x *Comparison) Ran() bool { return x.mostDifferent().Run != nil }
