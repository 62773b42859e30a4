package show

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func labels(a Axis) string {
	var out []string
	for _, v := range a.Ticks() {
		out = append(out, tickLabel(v))
	}
	return strings.Join(out, " ")
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		a    Axis
		want string
	}{
		{Axis{Lo: 0, Hi: 1}, "0 0.2 0.4 0.6 0.8 1"},
		{Axis{Lo: 1, Hi: 400}, "50 100 150 200 250 300 350 400"},
		{Axis{Lo: 1.65, Hi: 5.6}, "2 2.5 3 3.5 4 4.5 5 5.5"},
		{Axis{Lo: -0.5, Hi: 5}, "0 1 2 3 4 5"},
		{Axis{Lo: 1, Hi: 20}, "2 4 6 8 10 12 14 16 18 20"},
		{Axis{Lo: 0, Hi: 1e6}, "0 200,000 400,000 600,000 800,000 1M"},
		{Axis{Lo: 0, Hi: 5e-5}, "0 1e-05 2e-05 3e-05 4e-05 5e-05"},
		{Axis{Lo: 0.9, Hi: 120, Log: true}, "1 2 5 10 20 50 100"},
		{Axis{Lo: 0.0005, Hi: 90, Log: true}, "0.001 0.01 0.1 1 10"},
		{Axis{Lo: 4, Hi: 9, Log: true}, "4 5 6 7 8 9"},
	} {
		if got := labels(c.a); got != c.want {
			t.Errorf("ticks of %+v are %s, want %s", c.a, got, c.want)
		}
	}
}

func TestAxisFits(t *testing.T) {
	var a Axis
	if a.Fit(); a.Lo != 0 || a.Hi != 1 {
		t.Errorf("without values: %+v", a)
	}
	if a.Fit(3, 3); a.Lo != 2 || a.Hi != 4 {
		t.Errorf("of one value: %+v", a)
	}
	if a.FitWide(1, 7.9); a.Log || a.at(1) <= 0 || a.at(7.9) >= 1 {
		t.Errorf("of near values: %+v", a)
	}
	if a.FitWide(0, 80); a.Log {
		t.Errorf("a logarithm of zero: %+v", a)
	}
	if a.FitWide(1, 100); !a.Log || a.Label != ", logarithmic" || a.at(10) < 0.49 || a.at(10) > 0.51 {
		t.Errorf("of values that are far apart: %+v", a)
	}
}

// TestRungs checks that the marks of an axis do not overlap.
func TestRungs(t *testing.T) {
	c := Chart{Y: Axis{Hi: 0.7}, Height: 100}
	var got []string
	for _, v := range c.rungs() {
		got = append(got, tickLabel(v))
	}
	if s := strings.Join(got, " "); s != "0 0.4" {
		t.Errorf("at 100 units of height: %s", s)
	}
	c.Y.Bands = []Band{{0, 1, "lane", "", 0}}
	if c.rungs() != nil {
		t.Error("numbers beside names")
	}
}

// texts returns the texts of a drawing and checks that it is well-formed XML.
func texts(t *testing.T, drawing string) (out []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(drawing))
	in := ""
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, drawing)
		}
		switch x := token.(type) {
		case xml.StartElement:
			in = x.Name.Local
		case xml.CharData:
			if in == "text" && strings.TrimSpace(string(x)) != "" {
				out = append(out, string(x))
			}
		}
	}
}

// TestSVG checks that a drawing contains the given texts in reading order, with special
// characters escaped.
func TestSVG(t *testing.T) {
	box := []XY{{0, 0}, {0, 1}, {1, 1}, {1, 0}}
	c := &Chart{Title: "a <b> & \x1b[31m", Notes: []string{"note"}, X: Axis{Label: "x", Hi: 2, Bands: []Band{{0, 1, "one", "", 0}, {1, 1.1, "too long", "2", 0}, {1.1, 1.11, "no", "room", 0}}}, Y: Axis{Label: "y (m)", Hi: 4},
		Series: []Series{{Name: "low", Fill: true, Points: box}, {Name: "high", Fill: true, Points: box, Color: Color{"#112233", "#ddeeff"}}, {Name: "high", Fill: true, Points: box},
			{Name: "line", Points: box, Width: 1, Dots: true}, {Name: "nothing"}, {Points: box}},
		Marks: []Mark{{XY{1, 1}, "here"}}}
	drawing := SVG(c)
	got := strings.Join(texts(t, drawing), "|")
	want := `a <b> & \x1b[31m|note|y (m)|0|0.5|1|1.5|2|2.5|3|3.5|4|one|2|x|here|line|high|low`
	if got != want {
		t.Errorf("the drawing says %s\nwant %s", got, want)
	}
	for _, part := range []string{"#112233", "#ddeeff", "prefers-color-scheme:dark", "<circle"} {
		if !strings.Contains(drawing, part) {
			t.Errorf("no %s in the drawing", part)
		}
	}
	for _, outside := range []string{"href", "url(", "<script"} {
		if strings.Contains(drawing, outside) {
			t.Errorf("the drawing has %s", outside)
		}
	}
	two := SVG(c, &Chart{Title: "below", X: Axis{Hi: 1}, Y: Axis{Hi: 1}})
	if got := strings.Join(texts(t, two), "|"); !strings.HasPrefix(got, want+"|below|") {
		t.Errorf("two drawings say %s", got)
	}
}

func TestBroken(t *testing.T) {
	if got := strings.Join(broken("  one two three, four ", 9), "|"); got != "one two|three,|four" {
		t.Errorf("broken into %s", got)
	}
}
