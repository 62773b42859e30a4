package report

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/tests/nightly"
)

// tracker is a server with the part of MLflow's REST API that we use, which fails now and then.
type tracker struct {
	mu      sync.Mutex
	calls   int
	failing func(call int) bool
	numbers map[int]map[string]any // by step
	params  map[string]string
	status  string
}

func (s *tracker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	var in struct {
		RunID   string         `json:"run_id"`
		Metrics []mlflowMetric `json:"metrics"`
		Params  []mlflowPair   `json:"params"`
		Status  string         `json:"status"`
	}
	answer := func(code int, text string) { w.WriteHeader(code); _, _ = w.Write([]byte(text)) }
	if s.failing(s.calls) {
		answer(500, "the database is locked")
		return
	}
	if r.Header.Get("Authorization") != "Bearer secret" {
		answer(401, "")
		return
	}
	_ = json.NewDecoder(r.Body).Decode(&in)
	switch call := strings.TrimPrefix(r.URL.Path, "/api/2.0/mlflow/"); call {
	case "experiments/get-by-name":
		answer(404, `{"error_code":"RESOURCE_DOES_NOT_EXIST","message":"no"}`)
	case "experiments/create":
		answer(200, `{"experiment_id":"7"}`)
	case "runs/create":
		answer(200, `{"run":{"info":{"run_id":"r1"}}}`)
	case "runs/log-batch":
		for _, m := range in.Metrics {
			if s.numbers[m.Step] == nil {
				s.numbers[m.Step] = map[string]any{}
			}
			s.numbers[m.Step][m.Key] = m.Value
		}
		for _, p := range in.Params {
			s.params[p.Key] = p.Value
		}
		if in.RunID != "r1" || len(in.Metrics) > 1000 || len(in.Params) > 100 {
			answer(400, "")
		}
	case "runs/update":
		s.status = in.Status
	default:
		answer(404, call)
	}
}

// TestMLflow checks that a server that fails now and then receives every number, and that an
// absent one is reported once and does not delay steps.
func TestMLflow(t *testing.T) {
	nightly.Long(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Setenv("MLFLOW_TRACKING_TOKEN", "secret")
	s := &tracker{numbers: map[int]map[string]any{}, params: map[string]string{}, failing: func(call int) bool { return call%3 == 1 }}
	server := httptest.NewServer(s)
	params := make([][2]string, 150)
	for i := range params {
		params[i] = [2]string{"key" + string(rune('a'+i)), strings.Repeat("x", i)}
	}
	m := OpenMLflow(server.URL+"/", "lab", "runs/a", Start{Run: "r", Time: Now()}, params)
	const steps = 500
	for i := 1; i <= steps; i++ {
		m.Step(Step{Step: i, Loss: float64(i) / 3, GradNorm: math.Inf(1), LR: math.NaN(), Time: Now()})
	}
	m.Event(Eval{Step: steps, ValLoss: 1.5})
	if err := m.Close(End{State: "stopped", Time: Now()}); err != nil {
		t.Fatal(err)
	}
	server.Close()
	server.CloseClientConnections()
	http.DefaultClient.CloseIdleConnections()
	if len(s.numbers) != steps || len(s.params) != 150 || s.status != "KILLED" {
		t.Errorf("%d steps, %d parameters, status %q", len(s.numbers), len(s.params), s.status)
	}
	for i, got := range s.numbers {
		if got["loss"] != float64(i)/3 || got["grad_norm"] != "Infinity" || got["lr"] != "NaN" || (i == steps) != (got["val_loss"] == 1.5) {
			t.Fatalf("step %d: %v", i, got)
		}
	}
}

func TestMLflowIsNotThere(t *testing.T) {
	nightly.Long(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	m := OpenMLflow(server.URL, "lab", "runs/a", Start{}, nil)
	told := 0
	for i := 1; told == 0; i++ {
		m.Step(Step{Step: i})
		if m.Trouble() != "" {
			told++
		}
		time.Sleep(10 * time.Millisecond)
	}
	m.cancel() // as after ten seconds
	if err := m.Close(End{State: "done"}); err == nil || m.Trouble() != "" || !strings.Contains(err.Error(), "numbers are missing") {
		t.Error(err)
	}
}
