package watch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// served starts a server for a run with some steps. saves counts the requests to save.
func served(t *testing.T, listen string) (s *Server, base, token string, saves *int) {
	t.Helper()
	saves = new(int)
	dir, state := t.TempDir(), NewState("run")
	state.Begin(report.Start{Run: "r", Model: `<script>alert(1)</script>`, Steps: 10}, "model: {}\n", true)
	for i := 1; i <= 5; i++ {
		state.Step(report.Step{Step: i, Loss: float64(i), Tokens: int64(100 * i), StepSeconds: 0.1, TokensPerSecond: 1000})
	}
	s, err := Open(Options{Listen: listen, Folder: dir, Stall: time.Hour, State: state, Save: func() error { *saves++; return nil },
		Trace: func(context.Context, int) (Traced, error) { return nil, errors.New("training has not begun") }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	text, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(s.at.Addr().String(), "[::]"), ":")
	return s, "http://127.0.0.1:" + port, strings.TrimSpace(string(text)), saves
}

// fetch sends a request with headers of the form "Name: value", which may include Host.
func fetch(t *testing.T, client *http.Client, method, at string, headers ...string) (code int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if r.Header.Set(name, value); name == "Host" {
			r.Host = value
		}
	}
	got, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	text, _ := io.ReadAll(got.Body)
	return got.StatusCode, string(text)
}

// TestAccessOnLoopback checks that on a loopback address anyone may read, unless the Host header
// is foreign, and that changes need the token and are refused from pages of other sites.
func TestAccessOnLoopback(t *testing.T) {
	s, base, token, saves := served(t, "127.0.0.1:0")
	if info, err := os.Stat(s.token.file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file: %v %v", info.Mode(), err)
	}
	if strings.Contains(s.String(), token) {
		t.Error("the token is printed")
	}
	bearer := "Authorization: Bearer " + token
	for _, c := range []struct {
		method, path string
		headers      []string
		want         int
	}{
		{"GET", "/", nil, 200},
		{"GET", "/healthz", nil, 200},
		{"GET", "/metrics", nil, 200},
		{"GET", "/api/run", []string{"Host: localhost:9"}, 200},
		{"GET", "/api/run", []string{"Host: [::1]:9"}, 200},
		{"GET", "/api/run", []string{"Host: evil.example"}, 403},
		{"GET", "/", []string{"Host: evil.example", bearer}, 403},
		{"GET", "/api/series?points=x", nil, 400},
		{"GET", "/api/series?from=1&to=0", nil, 400},
		{"GET", "/api/events?after=x", nil, 400},
		{"GET", "/nowhere", nil, 404},
		{"GET", "/debug/pprof/goroutine", nil, 401},
		{"GET", "/debug/pprof/goroutine?debug=1", []string{bearer}, 200},
		{"GET", "/debug/pprof/cmdline", []string{bearer}, 404},
		{"POST", "/api/checkpoint", nil, 401},
		{"POST", "/api/checkpoint", []string{"Authorization: Bearer " + token + "x"}, 401},
		{"POST", "/api/checkpoint", []string{bearer, "Origin: http://evil.example"}, 403},
		{"POST", "/api/checkpoint", []string{bearer, "Sec-Fetch-Site: cross-site"}, 403},
		{"POST", "/api/checkpoint", []string{bearer}, 202},
		{"POST", "/api/trace?steps=0", []string{bearer}, 400},
		{"POST", "/api/trace?steps=3", []string{bearer}, 409},
		{"POST", "/login", nil, 401},
		{"DELETE", "/api/run", nil, 405},
	} {
		if code, body := fetch(t, http.DefaultClient, c.method, base+c.path, c.headers...); code != c.want || strings.Contains(body, token) {
			t.Errorf("%s %s %q: %d, want %d: %.200s", c.method, c.path, c.headers, code, c.want, body)
		}
	}
	if *saves != 1 {
		t.Errorf("%d checkpoints were asked for", *saves)
	}
	s.Close()
	if _, err := os.Stat(s.token.file); err == nil {
		t.Error("the token is left behind")
	}
}

// TestAccessFromElsewhere checks that on other addresses every request but /healthz needs the
// token or the cookie that a browser gets for it.
func TestAccessFromElsewhere(t *testing.T) {
	s, base, token, saves := served(t, "0.0.0.0:0")
	for path, want := range map[string]int{"/": 401, "/metrics": 401, "/api/run": 401, "/api/events": 401, "/healthz": 200} {
		code, body := fetch(t, http.DefaultClient, "GET", base+path, "Host: node7.example")
		if code != want || strings.Contains(body, "script") || path == "/" && !strings.Contains(body, `name="token"`) {
			t.Errorf("%s: %d, want %d: %.200s", path, code, want, body)
		}
	}
	if code, _ := fetch(t, http.DefaultClient, "GET", base+"/metrics", "Authorization: Bearer "+token); code != 200 {
		t.Errorf("with the token: %d", code)
	}
	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar}
	if got, err := browser.PostForm(base+"/login", url.Values{"token": {token}}); err != nil || got.StatusCode != 200 {
		t.Fatal(got, err)
	}
	if code, body := fetch(t, browser, "GET", base+"/"); code != 200 || !strings.Contains(body, "<canvas") && !strings.Contains(body, "canvas") {
		t.Errorf("with the cookie: %d", code)
	}
	at, _ := url.Parse(base)
	for _, c := range jar.Cookies(at) {
		if strings.Contains(c.Value, token) {
			t.Error("the cookie is the token")
		}
	}
	if code, _ := fetch(t, browser, "POST", base+"/api/checkpoint"); code != 202 || *saves != 1 {
		t.Errorf("a checkpoint by cookie: %d", code)
	}
	if !strings.Contains(s.String(), s.token.file) {
		t.Errorf("where the token is: %s", s)
	}
}

// TestTokenFiles checks that a token file is refused if others can read it or if it is short, and
// is not removed.
func TestTokenFiles(t *testing.T) {
	for _, c := range []struct {
		mode    os.FileMode
		text    string
		refused string
	}{{0o600, "0123456789abcdef\n", ""}, {0o440, "0123456789abcdef", ""}, {0o644, "0123456789abcdef", "others can read it"}, {0o600, "short", "shorter than 16 bytes"}} {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Options{Listen: "127.0.0.1:0", TokenFile: file, State: NewState("")})
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%v %q: %v", c.mode, c.text, err)
		}
		if s.Close(); err == nil {
			if _, err := os.Stat(file); err != nil {
				t.Error("a token of the user's was removed")
			}
		}
	}
}

// TestTokenIsMade checks that each start creates its own token, even if a killed process left an
// incomplete file, and that a file named by the job is created once and reused.
func TestTokenIsMade(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, TokenFile)
	if err := os.WriteFile(left, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	named := filepath.Join(dir, "named")
	texts := map[string]int{}
	for _, file := range []string{"", "", named, named} {
		s, err := Open(Options{Listen: "127.0.0.1:0", Folder: dir, TokenFile: file, State: NewState("")})
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(s.token.file)
		if info, _ := os.Stat(s.token.file); err != nil || info.Mode().Perm() != 0o600 || !s.token.is(strings.TrimSpace(string(text))) {
			t.Errorf("%s: %v %v", s.token.file, info.Mode(), err)
		}
		texts[string(text)]++
		s.Close()
	}
	if len(texts) != 3 {
		t.Errorf("%d different tokens of two starts and a file, want 3", len(texts))
	}
	if _, err := os.Stat(named); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("the token of a start is left behind")
	}
}

// TestSocket checks that only this user can connect to a socket, and that a socket in use is not
// replaced.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for range 2 {
		s, err := Open(Options{Listen: "unix:" + path, Folder: t.TempDir(), State: NewState("")})
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 || s.open {
			t.Error(info, err)
		}
		if _, err := Open(Options{Listen: "unix:" + path, Folder: t.TempDir(), State: NewState("")}); err == nil || !strings.Contains(err.Error(), "is in use by another process") {
			t.Errorf("a second server: %v", err)
		}
		s.Close()
	}
}

// TestHealth checks that a run in which no step ends is reported as stalled.
func TestHealth(t *testing.T) {
	s, base, _, _ := served(t, "127.0.0.1:0")
	s.o.Stall = 0
	if code, body := fetch(t, http.DefaultClient, "GET", base+"/healthz"); code != 503 || body != "stalled\n" {
		t.Errorf("%d %s", code, body)
	}
	s.o.Stall = time.Hour
	s.o.State.moved = s.o.State.moved.Add(-2 * time.Hour)
	s.o.State.Event(report.Note("rank 3 waits"))
	if code, _ := fetch(t, http.DefaultClient, "GET", base+"/healthz"); code != 503 {
		t.Errorf("%d though a note is all that has happened", code)
	}
	s.o.State.Event(report.Eval{Step: 5, ValLoss: 2})
	if code, _ := fetch(t, http.DefaultClient, "GET", base+"/healthz"); code != 200 {
		t.Error(code)
	}
}

// TestEvents checks that a page gets each step once, that too many pages are refused, and that
// Close does not wait for clients to read.
func TestEvents(t *testing.T) {
	nightly.Long(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s, base, _, _ := served(t, "127.0.0.1:0")
	client := &http.Client{Transport: &http.Transport{}}
	var open []*http.Response
	for range mostPages {
		got, err := client.Get(base + "/api/events?after=3")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, got)
	}
	if code, _ := fetch(t, client, "GET", base+"/api/events"); code != 503 {
		t.Errorf("one page too many: %d", code)
	}
	lines := bufio.NewScanner(open[0].Body)
	lines.Buffer(nil, 1<<20)
	var evals []int // of the last event
	next := func() (steps []int, doc Run) {
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var e struct {
					Run    Run
					Series struct {
						Step []int
						Eval []int `json:"eval_step"`
					}
				}
				if err := json.Unmarshal([]byte(text), &e); err != nil {
					t.Fatal(err)
				}
				evals = e.Series.Eval
				return e.Series.Step, e.Run
			}
		}
		t.Fatal(lines.Err())
		return
	}
	if steps, doc := next(); len(steps) != 2 || steps[0] != 4 || doc.Job == "" || doc.Start.Steps != 10 {
		t.Errorf("first %v", steps)
	}
	s.o.State.Step(report.Step{Step: 6, Loss: math.NaN()})
	s.o.State.Event(report.Note("a note"))
	if steps, doc := next(); len(steps) != 1 || steps[0] != 6 || doc.Step != 6 {
		t.Errorf("then %v", steps)
	}
	s.o.State.Event(report.Eval{Step: 6, ValLoss: 2}) // after its step has been sent
	if steps, _ := next(); len(steps) != 0 || !slices.Equal(evals, []int{6}) {
		t.Errorf("steps %v and evaluations %v, want an evaluation of step 6", steps, evals)
	}
	s.o.State.Step(report.Step{Step: 7})
	if steps, _ := next(); len(steps) != 1 || len(evals) != 0 {
		t.Errorf("steps %v and evaluations %v, want step 7 alone", steps, evals)
	}
	s.o.State.Event(report.End{State: "done"})
	s.Close()
	if _, doc := next(); doc.State != "done" || doc.Job != "" {
		t.Errorf("at the end: state %q, the job again: %q", doc.State, doc.Job)
	}
	for _, r := range open {
		r.Body.Close()
	}
	client.CloseIdleConnections()
}

// TestRequestsAreFew checks that requests beyond the limits are refused, that requests without
// the token do not use up the budget of those with it, and that health checks are always
// answered.
func TestRequestsAreFew(t *testing.T) {
	for _, at := range []string{"0.0.0.0:0", "127.0.0.1:0"} {
		t.Run(at, func(t *testing.T) { requestsAreFew(t, at) })
	}
}

func requestsAreFew(t *testing.T, at string) {
	s, base, token, _ := served(t, at)
	now := time.Now()
	s.mu.Lock()
	s.now = func() time.Time { return now }
	s.mu.Unlock()
	count := func(path string, headers ...string) (refused int) {
		for range 4 * mostRequests {
			if code, _ := fetch(t, http.DefaultClient, "GET", base+path, headers...); code == 429 {
				refused++
			}
		}
		return refused
	}
	series, bearer := "/api/series?points=1", "Authorization: Bearer "+token
	if n := count(series); n < 2*mostRequests {
		t.Errorf("%d of %d requests of strangers are refused", n, 4*mostRequests)
	}
	if code, _ := fetch(t, http.DefaultClient, "GET", base+series, bearer); code != 200 {
		t.Errorf("with the token: %d", code)
	}
	if n := count(series, bearer); n < 2*mostRequests {
		t.Errorf("%d of %d requests with the token are refused", n, 4*mostRequests)
	}
	if n := count("/healthz"); n != 0 {
		t.Errorf("%d health checks are refused", n)
	}
}

// TestSilentConnections checks that clients that connect and send nothing replace each other, and
// neither shut out a new request nor end a page that follows the run.
func TestSilentConnections(t *testing.T) {
	for _, at := range []string{"0.0.0.0:0", "127.0.0.1:0"} {
		t.Run(at, func(t *testing.T) { silentConnections(t, at) })
	}
}

// TestSilentReaders checks that clients on this machine that follow the run without the token, and read nothing,
// do not shut out those with it.
func TestSilentReaders(t *testing.T) {
	s, base, token, _ := served(t, "127.0.0.1:0")
	for _, path := range []string{"/api/events", "/api/run"} {
		for range 2 * mostConnections {
			c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
			if _, err := c.Read(make([]byte, 1)); err != nil { // so that the request has been accepted
				t.Fatal(err)
			}
			s.mu.Lock()
			s.strangers.left = mostRequests
			s.mu.Unlock()
		}
		if code, _ := fetch(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "GET", base+"/api/run", "Authorization: Bearer "+token); code != 200 {
			t.Errorf("beside readers of %s: %d", path, code)
		}
		if follows(t, base, token) != 200 {
			t.Errorf("no page follows beside readers of %s", path)
		}
	}
}

// follows returns the status of a page that begins to follow the run.
func follows(t *testing.T, base, token string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", base+"/api/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	page, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = page.Body.Close()
	return page.StatusCode
}

// TestParameters checks that every request answers odd parameters, and none ends in a panic.
func TestParameters(t *testing.T) {
	s, base, token, _ := served(t, "127.0.0.1:0")
	values := []string{"", "0", "1", "-1", "3", "5", "6", "20", "21", "1099511627776", "1099511627777", "9223372036854775807", "-9223372036854775808", "1e3", "x", "%00", "NaN"}
	try := func(method, path, query string) {
		s.mu.Lock()
		s.known.left = mostRequests
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, base+path+"?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil { // as the connection of a handler that panics
			t.Errorf("%s?%s: %v", path, query, err)
			return
		}
		_ = answer.Body.Close()
	}
	for _, a := range values {
		for _, b := range values {
			try("GET", "/api/series", "from="+a+"&to="+b)
			try("GET", "/api/series", "to="+a+"&points="+b)
		}
		try("GET", "/api/events", "after="+a)
		try("POST", "/api/trace", "steps="+a)
	}
}

func silentConnections(t *testing.T, at string) {
	s, base, token, _ := served(t, at)
	r, err := http.NewRequestWithContext(t.Context(), "GET", base+"/api/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{}}
	page, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Body.Close()
	for range 3 * mostConnections {
		c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	other := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if code, _ := fetch(t, other, "GET", base+"/api/run", "Authorization: Bearer "+token); code != 200 {
		t.Errorf("a new request: %d", code)
	}
	go s.Close() // ends the page after a last event
	if text, err := io.ReadAll(page.Body); err != nil || !strings.Contains(string(text), `"step":5`) {
		t.Errorf("the page got %q, %v", text, err)
	}
}

// TestLongRun checks that a long run is kept and returned as a bounded number of points with
// means and extremes.
func TestLongRun(t *testing.T) {
	nightly.Long(t)
	s := NewState("")
	const steps = 3 * mostPoints
	for i := 1; i <= steps; i++ {
		loss := 2.0
		if i == 70000 {
			loss = 9
		}
		s.Step(report.Step{Step: i, Loss: loss})
	}
	if len(s.points) > mostPoints {
		t.Errorf("%d points are kept", len(s.points))
	}
	var got struct {
		Step       []int
		Loss, High []float64
	}
	if err := json.Unmarshal(s.Series(0, 1<<40, 1000), &got); err != nil {
		t.Fatal(err)
	}
	high, sum := 0.0, 0.0
	for i, x := range got.High {
		high, sum = max(high, x), sum+got.Loss[i]
	}
	if n := len(got.Step); n > 1000 || n < 500 || got.Step[n-1] != steps || high != 9 || math.Abs(sum/float64(n)-2) > 0.01 {
		t.Errorf("%d points to step %d, highest loss %v, mean %v", n, got.Step[n-1], high, sum/float64(n))
	}
	if err := json.Unmarshal(s.Series(69000, 71000, 1000), &got); err != nil || got.Step[0] <= 69000 || got.Step[len(got.Step)-1] > 71000 {
		t.Error(got.Step, err)
	}
}

// TestMetricsOfAProgram checks that the metrics of a program's network are in the series, on
// /api/run and in /metrics from the step on that has them, by any name, and that a file cannot add
// more than a program may have.
func TestMetricsOfAProgram(t *testing.T) {
	s, base, _, _ := served(t, "127.0.0.1:0") // five steps without
	odd := "a \"b\"\\\n</script>"
	s.o.State.Step(report.Step{Step: 6, Metrics: map[string]float64{"recall": 0.25, odd: 2}})
	s.o.State.Step(report.Step{Step: 7, Metrics: map[string]float64{"recall": 0.75, odd: math.NaN()}})
	s.o.State.Event(report.Eval{Step: 7, ValLoss: 1, Metrics: map[string]float64{"recall": 0.5}})
	var got map[string][]*float64
	if err := json.Unmarshal(s.o.State.Series(4, 1<<40, 100), &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"step": "5 6 7", "metrics/recall": "null 0.25 0.75", "metrics/" + odd: "null 2 null", "val_metrics/recall": "0.5", "val_metrics/" + odd: "null"} {
		var texts []string
		for _, x := range got[name] {
			text := "null"
			if x != nil {
				text = fmt.Sprint(*x)
			}
			texts = append(texts, text)
		}
		if all := strings.Join(texts, " "); all != want && !strings.HasSuffix(all, " "+want) {
			t.Errorf("%q is %s, want %s", name, all, want)
		}
	}
	if err := json.Unmarshal(s.o.State.Series(4, 1<<40, 1), &got); err != nil || *got["metrics/recall"][0] != 0.5 {
		t.Errorf("the mean of few points: %v %v", got["metrics/recall"], err)
	}
	_, text := fetch(t, http.DefaultClient, "GET", base+"/metrics")
	for _, line := range []string{`zeroth_program_metric{name="recall"} 0.75`, `zeroth_program_validation_metric{name="recall"} 0.5`, `zeroth_program_metric{name="a \"b\"\\\n</script>"} NaN`} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
	if doc, _ := s.o.State.Doc(); doc.Now.Metrics["recall"] != 0.75 {
		t.Errorf("now: %v", doc.Now.Metrics)
	}
	many := map[string]float64{}
	for i := range 2 * mostOwn {
		many[fmt.Sprint("m", i)] = 1
	}
	if ended := Ended("", &report.Log{Steps: []report.Step{{Step: 1, Metrics: many}}}, "", nil); len(ended.own) != mostOwn {
		t.Errorf("%d metrics of a file", len(ended.own))
	}
}

// TestReport checks that the report of a run is a single page with its data inline and escaped.
func TestReport(t *testing.T) {
	s := Ended("a</script>b", &report.Log{Steps: []report.Step{{Step: 1, Loss: 3}}, Starts: []report.Start{{Model: "<script>alert(1)</script>"}}, Changes: []report.Change{{Step: 1, Replicas: 3, Lost: []int{2}}}, End: &report.End{State: "failed", Why: "<b>"}, Memory: []byte(`{"step":1,"memory":{"planned":{"device":{"grads":7}}}}`)}, "x: </script>\n", nil)
	var b strings.Builder
	if err := WriteReport(&b, s); err != nil {
		t.Fatal(err)
	}
	if strings.Count(b.String(), "</script>") != strings.Count(livePage, "</script>") || strings.Contains(b.String(), "<b>") || !strings.Contains(b.String(), `alert(1)`) || !strings.Contains(b.String(), `"name":"grads","place":"device","planned":7,"held":7`) ||
		!strings.Contains(b.String(), `after step 1: lost rank 2, going on with 3 replicas`) || !strings.Contains(b.String(), `"replicas":3`) {
		t.Error("what the run has is not escaped")
	}
}

// TestCountersAfterResume checks that counters count only what happened since this start.
func TestCountersAfterResume(t *testing.T) {
	s := NewState("")
	s.Earlier(&report.Log{Steps: []report.Step{{Step: 9, Tokens: 900, Skipped: 7}}, Starts: []report.Start{{}}, Changes: []report.Change{{Step: 5, Replicas: 3, Seconds: 2}}})
	s.Begin(report.Start{Step: 9}, "", false)
	s.Step(report.Step{Step: 10, Tokens: 1000, Skipped: 8})
	all, err := s.hist.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, m := range all {
		got[m.GetName()] = m.GetMetric()[0].GetCounter().GetValue()
	}
	for name, want := range map[string]float64{"zeroth_steps_total": 1, "zeroth_tokens_total": 100, "zeroth_skipped_steps_total": 1, "zeroth_starts_total": 2,
		"zeroth_replica_changes_total": 1, "zeroth_replica_change_seconds_total": 2} {
		if got[name] != want {
			t.Errorf("%s %v, want %v", name, got[name], want)
		}
	}
	if _, ok := got["zeroth_replicas"]; ok || s.run.Replicas != 0 || len(s.run.Changes) != 1 {
		t.Errorf("a start with all replicas has %d of them, after changes %v", s.run.Replicas, s.run.Changes)
	}
}
