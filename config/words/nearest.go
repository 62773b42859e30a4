package words

import (
	"slices"
	"strings"
)

// decorations lists prefixes and suffixes that other programs add to names.
var decorations = struct{ before, behind []string }{
	[]string{"n_", "num_", "max_", "total_", "cpu_", "mixed_"}, []string{"_size", "_name", "_rate", "_steps", "ping", "ing", "set"},
}

// Nearest returns the name that word most likely misspells, or "".
func Nearest(word string, names []string) string {
	if len(word) > 40 {
		return "" // comparing would take long
	}
	word, _, _ = strings.Cut(strings.ReplaceAll(strings.ToLower(word), "-", "_"), ":") // gpu:0
	if ours, known := meaning(word, names); known {
		return ours
	}
	best, at := "", 99
	for _, w := range plainly(word) {
		slips := max(1, len(w)/4) // wrong letters allowed: two would be too many for "gpu"
		for _, name := range names {
			if d := Distance(w, name); d <= slips && d < at && d < len(name) {
				best, at = name, d
			}
		}
	}
	return best
}

// meaning returns the name that a word of other programs stands for; known and "" if it has no equivalent,
// whatever the spelling suggests.
func meaning(word string, names []string) (ours string, known bool) {
	for _, w := range All() {
		if w.Program != "words" {
			if ours := w.Values[word]; ours != "" && slices.Contains(names, ours) && word != "true" && word != "false" {
				return ours, true
			}
			continue
		}
		if w.Key != word {
			continue
		}
		for _, name := range names {
			if name == w.Ours || name == word {
				return name, true
			}
		}
		if w.Ours == "" {
			return "", true
		}
	}
	return "", false
}

// plainly returns a word, and the word without each possible prefix or suffix.
func plainly(word string) []string {
	words := []string{word}
	for _, d := range decorations.before {
		if w, ok := strings.CutPrefix(word, d); ok {
			words = append(words, w)
		}
	}
	for _, d := range decorations.behind {
		if w, ok := strings.CutSuffix(word, d); ok {
			words = append(words, w)
		}
	}
	return words
}

// Distance returns the number of insertions, deletions, replacements and swaps of neighbouring
// letters that turn a into b (optimal string alignment).
func Distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
