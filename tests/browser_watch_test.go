//go:build browser

package tests

import (
	"bufio"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"zeroth/job/report"
	"zeroth/job/trace"
	"zeroth/job/watch"
	"zeroth/shard"
)

const oddModel = `<script>document.body.textContent = "broken"</script>`

// shown returns a run of 2,000 steps with everything that a page draws.
func shown() *watch.State {
	s := watch.NewState("runs/<b>a</b>")
	s.Begin(report.Start{Run: "k3v9", Model: oddModel, Ranks: 4, Steps: 4000, Mesh: "shard 4", PeakFlops: 1e12}, "model: {layers: 6}\ndata: {text: [\"<i>\"]}\n", true)
	s.Event(report.Header{Start: report.Start{Model: oddModel, Ranks: 4, Stage: 3, Precision: "bf16", Steps: 4000}, Mesh: shard.Mesh{Shard: 4}, Out: "runs/<b>a</b>"})
	s.Event(&report.Account{Ranks: []report.Held{held()}})
	for i := 1; i <= 2000; i++ {
		x := step(i)
		s.Step(x)
		if i%200 == 0 {
			s.Event(report.Eval{Step: i, ValLoss: 5.6*math.Exp(-float64(i)/800) + 1.3})
			s.Saved(i, 0.4, nil)
			s.Event(report.Note(fmt.Sprintf("checkpoint step-%08d written <img src=x onerror=alert(1)>", i)))
		}
	}
	for rank := range 4 {
		var compute, comm []trace.Stretch
		for i := range 12 {
			at := float64(i) / 24
			compute = append(compute, trace.Stretch{From: at, To: at + 0.035, Task: "matmul", Label: fmt.Sprint("unit h.", i)})
			comm = append(comm, trace.Stretch{From: at + 0.005*float64(rank), To: at + 0.02, Task: []string{"all-gather", "reduce-scatter", "wait for peers"}[i%3], Label: "unit"})
		}
		s.Lanes(2000, rank, 0, []trace.Lane{{Queue: "compute", Spans: compute}, {Queue: "comm", Spans: comm}}, 0.5)
	}
	return s
}

func held() (h report.Held) {
	for use := range h.Planned.Device {
		h.Planned.Device[use] = int64(use+1) << 22
		h.Device.Peak[use] = h.Planned.Device[use]
	}
	return h
}

func step(i int) report.Step {
	x := float64(i)
	s := report.Step{Step: i, Loss: 5.6*math.Exp(-x/800) + 1.2 + 0.1*math.Sin(x*1.7), LR: 6e-4 * math.Min(1, x/200), GradNorm: 1 + 0.2*math.Sin(x/3), Tokens: int64(4096 * i), TokensPerSecond: 8000 + 300*math.Sin(x/50),
		StepSeconds: 0.5 + 0.02*math.Sin(x/9), Time: 1.7e9 + x/2, MFU: 0.41, DataSeconds: 0.001, Waited: 0.03, RankWaits: report.Spread{Least: report.RankValue{Seconds: 0.01, Rank: 2}, Most: report.RankValue{Seconds: 0.04, Rank: 1}}}
	if i%50 == 0 {
		s.Parts = trace.Exposure{Steps: 1, Seconds: 0.5, Compute: 0.41, Exposed: 0.05, Idle: 0.02}
	}
	return s
}

// watchHarness inspects what the page has drawn, zooms with keys, by dragging and back, and hides
// a line.
const watchHarness = `<script>
addEventListener("load", () => setTimeout(() => {
	const drawn = () => charts.map(c => { const g = c.canvas.getContext("2d"), d = g.getImageData(0, 0, c.canvas.width, c.canvas.height).data; let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return n; });
	const first = drawn(), views = [range()], c = charts[0], box = c.canvas.getBoundingClientRect();
	const key = k => { c.canvas.dispatchEvent(new KeyboardEvent("keydown", {key: k, bubbles: true})); views.push(range()); };
	key("+"); key("ArrowRight"); key("-"); key("0");
	const point = (type, px) => c.canvas.dispatchEvent(new PointerEvent(type, {clientX: box.left + px, clientY: box.top + 50, bubbles: true, pointerType: "mouse"}));
	point("pointerdown", 56 + (box.width - 64) / 4); point("pointermove", 56 + (box.width - 64) / 2); point("pointerup", 56 + (box.width - 64) / 2); views.push(range());
	const tip = c.tip.textContent;
	$("whole").click(); views.push(range());
	$("smooth").value = 90; $("smooth").oninput();
	$("log").click();
	const after = drawn();
	point("pointermove", 100);
	const report = document.createElement("pre");
	report.id = "harness";
	report.textContent = JSON.stringify({first, after, views, tip, smoothed: c.tip.textContent, wide: document.documentElement.scrollWidth <= innerWidth, ground: getComputedStyle(document.body).backgroundColor,
		name: $("name").textContent, facts: facts.textContent, log: log.textContent, job: job.textContent, memory: memory.rows.length, lanes: boxes.length, round: [ticks(0, 2000, 5), ticks(1.23, 4.8, 4), ticks(150, 151, 10).filter(Number.isInteger), decades(.3, 30), decades(2, 3)], empty: [mfu, saves.parentElement, log.parentElement, job.parentElement].map(x => (x.box || x).hidden), scripts: document.images.length + document.querySelectorAll("b b, i b").length});
	document.body.append(report);
}, 200));
</script>
</html>`

// TestReportInABrowser checks that a run's page draws every chart on light and dark backgrounds
// and on a phone, zooms with keys and by dragging, smooths, and shows its data as text.
func TestReportInABrowser(t *testing.T) {
	browser := chromium(t)
	var page strings.Builder
	if err := watch.WriteReport(&page, shown()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, []byte(strings.Replace(page.String(), "</html>", watchHarness, 1)), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, on := range append(grounds, ground{400, false}) {
		dom := browse(t, browser, file, on, "--virtual-time-budget=5000", "--dump-dom")
		_, text, ok := strings.Cut(dom, `<pre id="harness">`)
		text, _, _ = strings.Cut(text, "</pre>")
		var got struct {
			First, After                     []int
			Views                            [][2]float64
			Tip, Smoothed, Ground, Name, Log string
			Facts, Job                       string
			Wide                             bool
			Memory, Lanes, Scripts           int
			Round                            [][]float64
			Empty                            []bool
		}
		if err := json.Unmarshal([]byte(html.UnescapeString(text)), &got); !ok || err != nil {
			t.Fatalf("%v: the page's script did not run: %v\n%.500s", on, err, dom)
		}
		for i := range got.First {
			if got.First[i] < 1000 || got.After[i] < 1000 {
				t.Errorf("%v: chart %d has %d pixels, then %d", on, i, got.First[i], got.After[i])
			}
		}
		near := func(at int, from, to float64) {
			if v := got.Views[at]; math.Abs(v[0]-from) > 25 || math.Abs(v[1]-to) > 25 {
				t.Errorf("%v: view %d is %v, want %v to %v", on, at, v, from, to)
			}
		}
		near(0, 0, 2000)
		near(1, 500, 1500)
		near(2, 750, 1750)
		near(3, 0, 2000)
		near(4, 0, 2000)
		near(5, 500, 1000)
		near(6, 0, 2000)
		if !got.Wide || (got.Ground == "rgb(13, 17, 23)") != on.dark || !strings.HasPrefix(got.Name, oddModel) || !strings.Contains(got.Log, "<img src=x") || !strings.Contains(got.Job, `["<i>"]`) || got.Scripts != 0 || got.Memory < 8 || got.Lanes < 96 {
			t.Errorf("%v: %+v", on, got)
		}
		if want := [][]float64{{0, 500, 1000, 1500, 2000}, {2, 3, 4}, {150, 151}, {0.5, 1, 2, 5, 10, 20}, {2, 2.2, 2.4, 2.6, 2.8, 3}}; !reflect.DeepEqual(got.Round, want) {
			t.Errorf("%v: ticks %v, want %v", on, got.Round, want)
		}
		if want := []bool{false, false, false, false}; !slices.Equal(got.Empty, want) {
			t.Errorf("%v: hidden boxes %v, want %v", on, got.Empty, want)
		}
		if !strings.Contains(got.Tip, "training ") || !strings.Contains(got.Smoothed, "(smoothed ") {
			t.Errorf("%v: tips %q and %q", on, got.Tip, got.Smoothed)
		}
	}
	if dir := os.Getenv("ZEROTH_SCREENSHOTS"); dir != "" {
		for name, on := range map[string]ground{"watch-light": {1280, false}, "watch-dark": {1280, true}, "watch-phone": {400, false}} {
			if err := os.WriteFile(file, []byte(page.String()), 0o666); err != nil {
				t.Fatal(err)
			}
			browse(t, browser, file, on, "--virtual-time-budget=2000", "--screenshot="+filepath.Join(dir, name+".png"))
		}
	}
}

// TestLivePageInABrowser checks that a served page shows steps as they arrive, under the policy
// that blocks all other scripts.
func TestLivePageInABrowser(t *testing.T) {
	browser := chromium(t)
	s := shown()
	server, err := watch.Open(watch.Options{Listen: "127.0.0.1:0", Folder: t.TempDir(), Stall: time.Hour, State: s})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	over := make(chan struct{})
	defer close(over)
	go func() {
		for i := 2001; ; i++ {
			select {
			case <-time.After(50 * time.Millisecond):
				x := step(i)
				x.Metrics = map[string]float64{"<b>accuracy</b>": float64(i) / 4000, "recall": 0.5}
				s.Step(x)
				if i == 2005 {
					s.Event(report.Eval{Step: i, ValLoss: 2, Metrics: x.Metrics})
				}
			case <-over:
				return
			}
		}
	}()
	page := drive(t, browser, server.String())
	var got struct {
		Step              int
		State, Name, Rest string
		Titles            []string
		Columns           []int // lengths of those of the steps, and of the metrics' numbers
	}
	for range 100 {
		page.eval(`JSON.stringify({Step: run.step || 0, State: $("state").textContent, Name: $("name").textContent, Rest: document.body.textContent.slice(0, 200), Titles: charts.map(c => c.title), Columns: all ? [all.step.length, ...Object.keys(all).filter(k => k.startsWith("metrics/")).map(k => all[k].length), ...["eval_step", "val_loss", "val_metrics/recall"].map(k => (all[k] || []).length), (all["metrics/recall"] || []).filter(x => x === 0.5).length, (all["val_metrics/recall"] || []).filter(x => x === 0.5).length] : []})`, &got)
		if got.Step > 2010 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if got.Step <= 2010 || got.State != "running" || !strings.HasPrefix(got.Name, oddModel) || !slices.Equal(got.Titles[6:], []string{"<b>accuracy</b>", "recall"}) {
		t.Errorf("the page shows %+v", got)
	}
	if n := got.Columns; len(n) != 8 || n[1] != n[0] || n[2] != n[0] || n[3] != 11 || n[4] != 11 || n[5] != 11 || n[6] < 10 || n[7] != 1 {
		t.Errorf("the numbers of steps, metrics and evaluations are %v", n)
	}
	zoomed := 0 // zooming in requests more points from the server
	page.eval(`(async () => { await zoom(100, 200); return JSON.stringify(seen.step.length); })()`, &zoomed)
	if zoomed != 100 {
		t.Errorf("%d points of 100 steps", zoomed)
	}
	ran := false // an injected script would not run
	page.eval(`(async () => { const s = document.createElement("script"); s.textContent = "window.ran = true"; document.body.append(s); return JSON.stringify(!!window.ran); })()`, &ran)
	if ran {
		t.Error("the page runs other scripts")
	}
}

// driven is a browser page driven over pipes by the DevTools protocol: JSON messages that end
// with a zero byte.
type driven struct {
	t       *testing.T
	in      io.Writer
	out     *bufio.Reader
	id      int
	session string
}

// drive opens a page.
func drive(t *testing.T, browser, page string) *driven {
	t.Helper()
	theirs, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe")
	cmd.ExtraFiles = []*os.File{theirs, theirOut}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		in.Close()
		out.Close()
	})
	theirs.Close()
	theirOut.Close()
	_ = out.SetReadDeadline(time.Now().Add(2 * time.Minute))
	d := &driven{t: t, in: in, out: bufio.NewReader(out)}
	var target struct{ TargetID string }
	d.call("Target.createTarget", map[string]any{"url": page}, &target)
	var session struct{ SessionID string }
	d.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	d.session = session.SessionID
	return d
}

// call sends a message and waits for the answer, skipping events.
func (d *driven) call(method string, params, result any) {
	d.t.Helper()
	d.id++
	m := map[string]any{"id": d.id, "method": method, "params": params}
	if d.session != "" {
		m["sessionId"] = d.session
	}
	text, err := json.Marshal(m)
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.in.Write(append(text, 0)); err != nil {
		d.t.Fatal(err)
	}
	for {
		text, err := d.out.ReadBytes(0)
		if err != nil {
			d.t.Fatalf("%s: %v", method, err)
		}
		var got struct {
			ID     int
			Result json.RawMessage
			Error  json.RawMessage
		}
		if err := json.Unmarshal(text[:len(text)-1], &got); err != nil {
			d.t.Fatal(err)
		}
		if got.ID != d.id {
			continue
		}
		if got.Error != nil {
			d.t.Fatalf("%s: %s", method, got.Error)
		}
		if err := json.Unmarshal(got.Result, result); err != nil {
			d.t.Fatal(err)
		}
		return
	}
}

// eval evaluates an expression or promise with a JSON value and stores it in into. If the page is
// still loading, there may be no value; then it stores nothing.
func (d *driven) eval(js string, into any) {
	d.t.Helper()
	var got struct {
		Result struct{ Value string }
	}
	d.call("Runtime.evaluate", map[string]any{"expression": js, "awaitPromise": true, "returnByValue": true}, &got)
	if got.Result.Value == "" {
		return
	}
	if err := json.Unmarshal([]byte(got.Result.Value), into); err != nil {
		d.t.Fatalf("%s: %v", got.Result.Value, err)
	}
}
