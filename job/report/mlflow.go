package report

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"zeroth/internal/show"
)

// Limits of MLflow's REST API for one log-batch request, and of the queue.
const (
	mostMetrics = 1000
	mostParams  = 100
	mostParam   = 500     // characters of a parameter
	mostQueued  = 1 << 18 // metrics; older ones are dropped
	mostReply   = 1 << 20 // bytes
)

// MLflow is an Observer that sends the numbers of steps and evaluations, under the names of
// metrics.jsonl, to an MLflow tracking server. Each start of a run becomes a run there. A goroutine
// of its own sends them, so that a slow or failed server neither delays nor ends training.
type MLflow struct {
	server, experiment, name string
	begun                    Start
	params                   []mlflowPair // not sent yet
	id                       string       // of the experiment; empty until it is known
	run                      string       // the server's id of the run; "" until it is created
	ended                    bool         // the server knows that the run has ended

	mu     sync.Mutex
	queue  []mlflowMetric
	lost   int
	err    error // error of the last request
	told   bool  // Trouble has reported err
	end    *End
	wake   chan struct{} // closed when end is set
	served chan struct{} // closed when everything is sent, or given up
	cancel context.CancelFunc
}

type mlflowMetric struct {
	Key       string `json:"key"`
	Value     any    `json:"value"` // a number, or "NaN", "Infinity", "-Infinity"
	Timestamp int64  `json:"timestamp"`
	Step      int    `json:"step"`
}

// mlflowPair is a parameter or a tag.
type mlflowPair struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// OpenMLflow starts sending. The parameters are the keys of the job. The environment variables
// MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, authenticate
// to the server.
func OpenMLflow(server, experiment, name string, begun Start, params [][2]string) *MLflow {
	ctx, cancel := context.WithCancel(context.Background())
	m := &MLflow{server: strings.TrimRight(server, "/"), experiment: experiment, name: name, begun: begun,
		wake: make(chan struct{}), served: make(chan struct{}), cancel: cancel}
	for _, p := range params {
		m.params = append(m.params, mlflowPair{p[0], show.Cut(p[1], mostParam)})
	}
	go m.serve(ctx)
	return m
}

// serve sends the queue every second, or less often while the server fails.
func (m *MLflow) serve(ctx context.Context) {
	defer close(m.served)
	wake, wait := m.wake, time.Second
	for {
		select {
		case <-wake:
			wake = nil
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		err := m.send(ctx)
		if ctx.Err() != nil {
			return
		}
		m.mu.Lock()
		m.err = err
		m.mu.Unlock()
		if m.ended {
			return
		}
		switch wait = min(2*wait, time.Minute); {
		case wake == nil:
			wait = time.Second / 4
		case err == nil:
			wait = time.Second
		}
	}
}

// send creates the run if necessary, and sends the queue. After an error the next call continues.
func (m *MLflow) send(ctx context.Context) error {
	if err := m.create(ctx); err != nil {
		return err
	}
	for len(m.params) > 0 {
		n := min(len(m.params), mostParams)
		if err := m.call(ctx, "runs/log-batch", map[string]any{"run_id": m.run, "params": m.params[:n]}, nil); err != nil {
			return err
		}
		m.params = m.params[n:]
	}
	for {
		m.mu.Lock()
		batch := m.queue[:min(len(m.queue), mostMetrics)]
		end, lost := m.end, m.lost
		m.mu.Unlock()
		if len(batch) == 0 && end == nil {
			return nil
		}
		if len(batch) == 0 {
			status := map[string]string{"done": "FINISHED", "failed": "FAILED"}[end.State]
			err := m.call(ctx, "runs/update", map[string]any{"run_id": m.run, "status": cmp.Or(status, "KILLED"), "end_time": int64(1000 * end.Time)}, nil)
			m.ended = err == nil
			return err
		}
		if err := m.call(ctx, "runs/log-batch", map[string]any{"run_id": m.run, "metrics": batch}, nil); err != nil {
			return err
		}
		m.mu.Lock()
		m.queue = m.queue[max(0, len(batch)-(m.lost-lost)):] // some of the batch may have been dropped meanwhile
		m.mu.Unlock()
	}
}

// create finds or creates the experiment, and creates the run, if that is not done yet.
func (m *MLflow) create(ctx context.Context) error {
	if m.id == "" {
		var found struct {
			Experiment struct {
				ID string `json:"experiment_id"`
			}
			ID string `json:"experiment_id"`
		}
		err := m.call(ctx, "experiments/get-by-name?experiment_name="+url.QueryEscape(m.experiment), nil, &found)
		if no := (*mlflowError)(nil); errors.As(err, &no) && no.Code == "RESOURCE_DOES_NOT_EXIST" {
			err = m.call(ctx, "experiments/create", map[string]any{"name": m.experiment}, &found)
		}
		if err != nil {
			return err
		}
		m.id = cmp.Or(found.Experiment.ID, found.ID)
	}
	if m.run != "" {
		return nil
	}
	var made struct {
		Run struct {
			Info struct {
				ID string `json:"run_id"`
			}
		}
	}
	tags := []mlflowPair{{"zeroth.run", m.begun.Run}, {"zeroth.after_step", fmt.Sprint(m.begun.Step)}}
	for _, row := range m.begun.Rows() {
		tags = append(tags, mlflowPair{"zeroth." + row[0], row[1]})
	}
	err := m.call(ctx, "runs/create", map[string]any{"experiment_id": m.id, "run_name": m.name, "start_time": int64(1000 * m.begun.Time), "tags": tags}, &made)
	if err == nil && made.Run.Info.ID == "" {
		err = errors.New("the answer of runs/create has no run_id; is this an MLflow server?")
	}
	m.run = made.Run.Info.ID
	return err
}

// mlflowError is the answer of a server that refuses a request.
type mlflowError struct {
	Code    string `json:"error_code"`
	Message string
	status  string
}

func (e *mlflowError) Error() string {
	return show.Cut(show.Printable(strings.TrimSpace(e.status+" "+e.Message)), 200)
}

// call sends a request: a POST with a body, or a GET without one.
func (m *MLflow) call(ctx context.Context, path string, body, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	method, text := http.MethodGet, []byte(nil)
	if body != nil {
		method = http.MethodPost
		text, _ = json.Marshal(body) // cannot fail for numbers and texts
	}
	r, err := http.NewRequestWithContext(ctx, method, m.server+"/api/2.0/mlflow/"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if token := os.Getenv("MLFLOW_TRACKING_TOKEN"); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	} else if user := os.Getenv("MLFLOW_TRACKING_USERNAME"); user != "" {
		r.SetBasicAuth(user, os.Getenv("MLFLOW_TRACKING_PASSWORD"))
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }} // a redirected POST would lose its body
	got, err := client.Do(r)
	if err != nil {
		return err
	}
	defer got.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(got.Body, mostReply))
	if err != nil {
		return err
	}
	if got.StatusCode != http.StatusOK {
		no := &mlflowError{}
		_ = json.Unmarshal(answer, no) // a proxy may send something else
		no.status = got.Status
		return no
	}
	if reply != nil {
		return json.Unmarshal(answer, reply)
	}
	return nil
}

// Trouble returns a notice if the server has started to fail or to answer again since the last
// call, else "".
func (m *MLflow) Trouble() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil && !m.told:
		m.told = true
		return fmt.Sprintf("MLflow: %v: training continues, and missing numbers are sent when the server answers", m.err)
	case m.err == nil && m.told:
		m.told = false
		return "MLflow answers again"
	}
	return ""
}

// Step queues the numbers of a step.
func (m *MLflow) Step(s Step) {
	scalars(s, func(name string, x float64) { m.add(name, x, s.Time, s.Step) })
}

// Event queues an evaluation.
func (m *MLflow) Event(e Event) {
	if e, ok := e.(Eval); ok {
		at := Now()
		m.add("val_loss", e.ValLoss, at, e.Step)
		own("val_metrics/", e.Metrics, func(name string, x float64) { m.add(name, x, at, e.Step) })
	}
}

func (m *MLflow) add(name string, x, at float64, step int) {
	var value any = x
	switch {
	case math.IsNaN(x):
		value = "NaN"
	case math.IsInf(x, 1):
		value = "Infinity"
	case math.IsInf(x, -1):
		value = "-Infinity"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = append(m.queue, mlflowMetric{name, value, int64(1000 * at), step})
	if len(m.queue) > mostQueued {
		m.queue = m.queue[1:]
		m.lost++
	}
}

// Close sends the remaining numbers, for at most ten seconds, and how the run ended. The error
// describes what the server has not received.
func (m *MLflow) Close(end End) error {
	m.mu.Lock()
	m.end = &end
	m.mu.Unlock()
	close(m.wake)
	late := false
	select {
	case <-m.served:
	case <-time.After(10 * time.Second):
		late = true
	}
	m.cancel()
	<-m.served
	m.mu.Lock()
	defer m.mu.Unlock()
	if missing := m.lost + len(m.queue); late || missing > 0 {
		return fmt.Errorf("MLflow: %d numbers are missing on the server: %w", missing, cmp.Or(m.err, errors.New("it did not answer in time")))
	}
	return nil
}
