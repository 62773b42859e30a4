package watch

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

//go:embed page.html
var livePage string

// pagePolicy lets the page run its own script and style and reach its own server, nothing else.
var pagePolicy = fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
	hashOf(livePage, "<script>", "</script>"), hashOf(livePage, "<style>", "</style>"))

// hashOf returns the hash of the text between two tags.
func hashOf(page, begin, end string) string {
	_, text, _ := strings.Cut(page, begin)
	text, _, _ = strings.Cut(text, end)
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// news is an update of a page.
type news struct {
	Run    Run             `json:"run"`
	Series json.RawMessage `json:"series"`
	Log    []Line          `json:"log"`
}

// WriteReport writes the page with the run's data inline, as one file.
func WriteReport(out io.Writer, s *State) error {
	doc, _ := s.Doc()
	lines, _ := s.Log(0)
	data, err := json.Marshal(news{doc, s.Series(0, 1<<40, mostSeries), lines}) // escapes <, > and &
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	_, err = io.WriteString(out, strings.Replace(livePage, `type="application/json"></script>`, `type="application/json">`+string(data)+`</script>`, 1))
	return err
}

func writeJSON(w http.ResponseWriter, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// follower records how much of a run has been sent to a page.
type follower struct {
	state   *State
	version uint64
	step    int // the last point
	eval    int // step of the last evaluation
	line    int // the next line of the log
	traced  int // step of the last timeline
	begun   bool
}

// next returns an event with everything new, or "".
func (f *follower) next() string {
	doc, version := f.state.Doc()
	if f.begun && version == f.version {
		return ""
	}
	lines, next := f.state.Log(f.line)
	series, eval := f.state.series(f.step, f.eval, 1<<40, 500)
	if f.begun {
		doc.Job = "" // the page already has it
	}
	f.begun, f.version, f.line, f.step, f.eval = true, version, next, max(f.step, doc.Step), eval
	if t := doc.Timeline; t != nil && t.Step == f.traced {
		doc.Timeline = nil
	} else if t != nil {
		f.traced = t.Step
	}
	text, err := json.Marshal(news{doc, series, lines})
	if err != nil {
		return ""
	}
	return "data: " + string(text) + "\n\n"
}
