//go:build browser

package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// chromium returns the path of a browser, or skips the test.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("there is no chromium here")
	return ""
}

// ground describes a reader's screen.
type ground struct {
	width int // pixels
	dark  bool
}

var grounds = []ground{{1280, false}, {800, true}, {390, false}, {390, true}}

// browse opens a page and returns the browser's output.
func browse(t *testing.T, browser, page string, on ground, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	scheme := "1"
	if on.dark {
		scheme = "0"
	}
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(), fmt.Sprintf("--window-size=%d,1400", on.width), "--blink-settings=preferredColorScheme=" + scheme}, args...)
	out, err := exec.CommandContext(ctx, browser, append(args, "file://"+page)...).Output()
	if err != nil {
		t.Fatalf("%s: %v", browser, err)
	}
	return string(out)
}

// harness moves the pointer over events and reports what the page shows and in which colors it
// has drawn them. Then it hides a series and zooms with keys and by dragging.
const harness = `<script>
addEventListener("load", () => setTimeout(() => {
	const said = [], box = canvas.getBoundingClientRect(), ratio = canvas.width / box.width;
	const point = (type, px, more) => canvas.dispatchEvent(new PointerEvent(type, {clientX: box.left + px, clientY: box.top + 50, bubbles: true, pointerType: "mouse", ...more}));
	const color = (px, py) => "#" + [...g.getImageData(Math.round(px * ratio), Math.round(py * ratio), 1, 1).data].slice(0, 3).map(n => n.toString(16).padStart(2, "0")).join("");
	const colors = (event, i) => {
		const list = [];
		let below = 0;
		areas.forEach(a => {
			const bytes = a.on ? a.bytes(event) : 0;
			if (bytes / at.highest > 0.02) list.push([shade(a.color), color(x(i + 0.3), y(below + bytes / 2))]);
			below += bytes;
		});
		return list;
	};
	plan.events.forEach((event, i) => {
		point("pointermove", x(i + 0.5));
		const shown = !tip.hidden, tipped = tip.innerText, wide = tip.getBoundingClientRect();
		point("pointerleave", 0);
		said.push({tip: tipped, shown, rests: tip.hidden, inside: wide.left >= 0 && wide.right <= innerWidth, colors: x(i + 1) - x(i) > 2 ? colors(event, i) : []});
	});
	const height = at.highest;
	for (const b of document.querySelectorAll("#legend button")) if (/optimizer|allocated|device/.test(b.innerText)) b.click();
	const lower = at.highest < height, hidden = colors(plan.events[0], 0);
	const key = (key, more) => chart.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, ...more})), seen = () => [view.from, view.to];
	const views = [seen()];
	key("+"); views.push(seen());
	key("ArrowRight", {shiftKey: true}); views.push(seen());
	key("0"); views.push(seen());
	canvas.setPointerCapture = () => {};
	const from = x(3.5), to = x(8.5);
	point("pointerdown", from); point("pointermove", to); point("pointerup", to); views.push(seen());
	document.getElementById("whole").click(); views.push(seen());
	const report = document.createElement("pre");
	report.id = "report";
	report.textContent = JSON.stringify({said, legend: document.getElementById("legend").innerText, wide: document.documentElement.scrollWidth <= innerWidth, lower, hidden, views, ground: getComputedStyle(document.body).backgroundColor});
	document.body.append(report);
}, 100));
</script>
</html>`

// told is the report of the harness.
type told struct {
	Said []struct {
		Tip                  string
		Shown, Rests, Inside bool
		Colors               [][2]string
	}
	Legend, Ground string
	Wide, Lower    bool
	Hidden         [][2]string
	Views          [][2]float64
}

// tell opens a page with the harness inserted and returns its report.
func tell(t *testing.T, browser, page string, on ground) (got told) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plan.html")
	if err := os.WriteFile(file, []byte(strings.Replace(page, "</html>", harness, 1)), 0o666); err != nil {
		t.Fatal(err)
	}
	dom := browse(t, browser, file, on, "--virtual-time-budget=5000", "--dump-dom")
	_, report, ok := strings.Cut(dom, `<pre id="report">`)
	report, _, _ = strings.Cut(report, "</pre>")
	if err := json.Unmarshal([]byte(html.UnescapeString(report)), &got); !ok || err != nil {
		t.Fatalf("the page's script did not run: %v\n%.500s", err, dom)
	}
	return got
}

// TestPageInABrowser checks that the page draws every event in the colors of its categories and
// shows a tooltip for the event under the pointer, within the window. On large screens the
// tooltip disappears with the pointer. Zooming works, and series hidden in the legend are not
// drawn.
func TestPageInABrowser(t *testing.T) {
	browser := chromium(t)
	p := planOf(t, cfg(t, "zero.recompute=block", "train.accumulate=2"))
	p.Machine.Memory = 2 * p.Allocated.Total()
	var text strings.Builder
	if err := p.WriteHTML(&text); err != nil {
		t.Fatal(err)
	}
	for _, on := range grounds {
		got := tell(t, browser, text.String(), on)
		if len(got.Said) != len(p.Timeline) || !strings.Contains(got.Legend, "saved activations") || !strings.Contains(got.Legend, "device has "+inUnits(p.Machine.Memory)) || !got.Wide {
			t.Fatalf("%v: %d events of %d, legend %q, fits the window: %v", on, len(got.Said), len(p.Timeline), got.Legend, got.Wide)
		}
		if (got.Ground == "rgb(13, 17, 23)") != on.dark {
			t.Errorf("%v: the ground is %s", on, got.Ground)
		}
		colors := 0
		for i, s := range got.Said {
			m := p.Timeline[i]
			if !s.Shown || s.Rests != (on.width > 640) || !s.Inside || !strings.HasPrefix(s.Tip, m.Name) || !strings.Contains(s.Tip, "in use\t"+inUnits(m.InUse.Total())) {
				t.Errorf("%v: event %d, %s: %+v", on, i, m.Name, s)
			}
			for _, c := range s.Colors {
				if colors++; c[0] != c[1] {
					t.Errorf("%v: event %d, %s: drawn in %s, want %s", on, i, m.Name, c[1], c[0])
				}
			}
		}
		if colors < len(p.Timeline) {
			t.Errorf("%v: only %d areas were looked at", on, colors)
		}
		for _, c := range got.Hidden {
			if c[0] != c[1] {
				t.Errorf("%v: with a series hidden: drawn in %s, want %s", on, c[1], c[0])
			}
		}
		n := float64(len(p.Timeline))
		if want := [][2]float64{{0, n}, {n / 4, 3 * n / 4}, {3 * n / 8, 7 * n / 8}, {0, n}, {3, 9}, {0, n}}; !got.Lower || !reflect.DeepEqual(got.Views, want) {
			t.Errorf("%v: what is seen goes %v, want %v; the axis shrinks: %v", on, got.Views, want, got.Lower)
		}
	}
}

// inUnits formats a number of bytes like the page.
func inUnits(n int64) string {
	x, i := float64(n), 0
	for ; x >= 1024; i++ {
		x /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", x, []string{"B", "KiB", "MiB", "GiB"}[i])
}

// TestDrawingInABrowser checks that a browser renders the drawings, in colors that suit the
// background.
func TestDrawingInABrowser(t *testing.T) {
	browser := chromium(t)
	var drawing strings.Builder
	if err := planOf(t, cfg(t)).WriteSVG(&drawing); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, shot := filepath.Join(dir, "plan.svg"), filepath.Join(dir, "plan.png")
	if err := os.WriteFile(file, []byte(drawing.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		on     ground
		colors map[string][3]uint8
	}{
		{ground{1280, false}, map[string][3]uint8{"the ground": {255, 255, 255}, "optimizer states": {0xa7, 0x9b, 0xd6}, "the master copy": {0x5e, 0x3a, 0x9e}}},
		{ground{800, true}, map[string][3]uint8{"the ground": {0x0d, 0x11, 0x17}, "optimizer states": {0xc4, 0xb8, 0xf0}, "the master copy": {0x8a, 0x63, 0xd2}}},
	} {
		browse(t, browser, file, c.on, "--screenshot="+shot)
		seen := pixels(t, shot)
		for what, color := range c.colors {
			if seen[color] < 100 {
				t.Errorf("%v: %d pixels have the color of %v", c.on, seen[color], what)
			}
		}
	}
}

// pixels returns the number of pixels of each color in a picture.
func pixels(t *testing.T, file string) map[[3]uint8]int {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	seen, box := map[[3]uint8]int{}, picture.Bounds()
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			r, g, b, _ := picture.At(x, y).RGBA()
			seen[[3]uint8{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8)}]++
		}
	}
	return seen
}
