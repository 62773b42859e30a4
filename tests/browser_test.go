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
	"strings"
	"testing"
	"time"

	"zeroth/job"
)

// chromium finds a browser, or skips the test.
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

// browse opens a page and returns what the browser says.
func browse(t *testing.T, browser, page string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(), "--window-size=1200,1400"}, args...)
	out, err := exec.CommandContext(ctx, browser, append(args, "file://"+page)...).Output()
	if err != nil {
		t.Fatalf("%s: %v", browser, err)
	}
	return string(out)
}

// harness moves the pointer over events and says what the page then shows, and
// in which colors it has drawn them.
const harness = `<script>
addEventListener("load", () => {
	const said = [], canvas = document.getElementById("canvas"), tip = document.getElementById("tip"), box = canvas.getBoundingClientRect();
	const move = (px, py) => canvas.dispatchEvent(new MouseEvent("mousemove", {clientX: box.left + px, clientY: box.top + py, bubbles: true}));
	plan.events.forEach((event, i) => {
		move((130 + 2050 * (i + 0.5) / plan.events.length) / canvas.width * box.width, 50);
		const shown = tip.style.display, tipped = tip.innerText, wide = tip.getBoundingClientRect();
		canvas.dispatchEvent(new MouseEvent("mouseleave"));
		const colors = [];
		let below = 0;
		event.bytes.forEach((bytes, c) => {
			const at = canvas.getContext("2d").getImageData(x(i + 0.25), y(below + bytes / 2), 1, 1).data;
			if (bytes / highest > 0.02) colors.push([plan.categories[c].color, "#" + [...at].slice(0, 3).map(n => n.toString(16).padStart(2, "0")).join("")]);
			below += bytes;
		});
		said.push({tip: tipped, shown, left: tip.style.display, inside: wide.left >= 0 && wide.right <= innerWidth, colors});
	});
	const report = document.createElement("pre");
	report.id = "report";
	report.textContent = JSON.stringify({said, legend: document.getElementById("legend").innerText, wide: document.documentElement.scrollWidth <= innerWidth});
	document.body.append(report);
});
</script>
</html>`

// The page draws every event in its categories' colors, and tells of the event
// under the pointer, inside the window and only while it is there.
func TestPageInABrowser(t *testing.T) {
	browser := chromium(t)
	p := planOf(t, config(t, "zero.recompute=block", "train.accumulate=2"))
	var text strings.Builder
	if err := p.WriteHTML(&text); err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "plan.html")
	if err := os.WriteFile(page, []byte(strings.Replace(text.String(), "</html>", harness, 1)), 0o666); err != nil {
		t.Fatal(err)
	}
	dom := browse(t, browser, page, "--dump-dom")
	_, report, ok := strings.Cut(dom, `<pre id="report">`)
	report, _, _ = strings.Cut(report, "</pre>")
	var got struct {
		Said []struct {
			Tip, Shown, Left string
			Inside           bool
			Colors           [][2]string
		}
		Legend string
		Wide   bool
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(report)), &got); !ok || err != nil {
		t.Fatalf("the page's script did not run: %v\n%.500s", err, dom)
	}
	if len(got.Said) != len(p.Timeline) || !strings.Contains(got.Legend, "saved activations") || !got.Wide {
		t.Fatalf("%d events of %d, legend %q, fits the window: %v", len(got.Said), len(p.Timeline), got.Legend, got.Wide)
	}
	colors := 0
	for i, s := range got.Said {
		m := p.Timeline[i]
		if s.Shown != "block" || s.Left != "none" || !s.Inside || !strings.HasPrefix(s.Tip, m.Name) || !strings.Contains(s.Tip, "in use\t"+inUnits(m.InUse.Total())) {
			t.Errorf("event %d, %s: %+v", i, m.Name, s)
		}
		for _, c := range s.Colors {
			if colors++; c[0] != c[1] {
				t.Errorf("event %d, %s: drawn in %s, want %s", i, m.Name, c[1], c[0])
			}
		}
	}
	if colors < len(p.Timeline) {
		t.Errorf("only %d areas were looked at", colors)
	}
}

// inUnits is a number of bytes as the page writes it.
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

// The drawings are pictures to a browser.
func TestDrawingInABrowser(t *testing.T) {
	browser := chromium(t)
	p := planOf(t, config(t))
	dir := t.TempDir()
	drawing, shot := filepath.Join(dir, "plan.svg"), filepath.Join(dir, "plan.png")
	if err := p.WriteSVG(drawing); err != nil {
		t.Fatal(err)
	}
	browse(t, browser, drawing, "--screenshot="+shot)
	f, err := os.Open(shot)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[[3]uint8]int{}
	for y := picture.Bounds().Min.Y; y < picture.Bounds().Max.Y; y++ {
		for x := picture.Bounds().Min.X; x < picture.Bounds().Max.X; x++ {
			r, g, b, _ := picture.At(x, y).RGBA()
			seen[[3]uint8{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8)}]++
		}
	}
	for what, color := range map[job.Category][3]uint8{job.OptimizerStates: {158, 154, 200}, job.MasterCopy: {84, 39, 143}} {
		if seen[color] < 100 {
			t.Errorf("%d pixels have the color of %v", seen[color], what)
		}
	}
}
