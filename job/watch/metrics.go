package watch

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"zeroth/job/report"
)

// metrics are the metrics for Prometheus. Labels have few values: of the ranks, only the first
// and the last are named.
type metrics struct {
	registry *prometheus.Registry

	steps, tokens, starts, skipped, saves, failedSaves         prometheus.Counter
	changes, changeSeconds                                     prometheus.Counter
	stepSeconds, saveSeconds                                   prometheus.Histogram
	loss, valLoss, lr, gradNorm, rate, mfu, last, lastTime     prometheus.Gauge
	exposed, idle, data, behind, slowest, savedStep, savedTime prometheus.Gauge
	replicas                                                   prometheus.Gauge // absent until replicas change
	waits, planned, held, trained, validated                   *prometheus.GaugeVec

	tokensBefore int64 // tokens before this step; 0: unknown
	skippedLast  int
}

func newMetrics() *metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "zeroth", Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "zeroth", Name: name, Help: help})
		r.MustRegister(g)
		return g
	}
	vector := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "zeroth", Name: name, Help: help}, labels)
		r.MustRegister(g)
		return g
	}
	histogram := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "zeroth", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 20)})
		r.MustRegister(h)
		return h
	}
	m := &metrics{
		registry:      r,
		steps:         counter("steps_total", "Steps done by this process."),
		tokens:        counter("tokens_total", "Tokens trained on by this process."),
		starts:        counter("starts_total", "Starts of the run, this one included: more than 1 after a fault or a stop."),
		changes:       counter("replica_changes_total", "Losses of replicas without which the run went on."),
		changeSeconds: counter("replica_change_seconds_total", "Time in which processes agreed on how to go on."),
		replicas:      prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "zeroth", Name: "replicas", Help: "Replicas that go on after a loss."}),
		skipped:       counter("skipped_steps_total", "Steps skipped because a gradient was not finite."),
		saves:         counter("checkpoints_total", "Checkpoints written by this process."),
		failedSaves:   counter("checkpoint_failures_total", "Checkpoints that could not be written."),
		stepSeconds:   histogram("step_seconds", "Duration of a step."),
		saveSeconds:   histogram("checkpoint_seconds", "Duration of writing a checkpoint."),
		loss:          gauge("loss_nats", "Training loss of the last step, per token."),
		valLoss:       gauge("validation_loss_nats", "Last validation loss, per token."),
		lr:            gauge("learning_rate", "Learning rate of the last step."),
		gradNorm:      gauge("gradient_norm", "Norm of the last gradient, before clipping."),
		rate:          gauge("tokens_per_second", "Tokens per second of all ranks in the last step."),
		mfu:           gauge("mfu_ratio", "Model FLOPs utilization of the last step; 0 if the peak is unknown."),
		last:          gauge("step", "The last step done."),
		lastTime:      gauge("step_timestamp_seconds", "When the last step ended, in Unix time."),
		exposed:       gauge("exposed_communication_seconds", "Communication not hidden by computation, in the last measured step of rank 0."),
		idle:          gauge("idle_seconds", "Time in which rank 0 did nothing in the last measured step; in a pipeline, its bubble."),
		data:          gauge("data_wait_seconds", "Time that rank 0 spent reading its samples in the last step."),
		behind:        gauge("slowest_rank_behind_ratio", "By how much the slowest rank prolonged the step before the last."),
		slowest:       gauge("slowest_rank", "The rank that the others waited for in the step before the last."),
		savedStep:     gauge("checkpoint_step", "Step of the last checkpoint written."),
		savedTime:     gauge("checkpoint_timestamp_seconds", "When the last checkpoint was written, in Unix time; its age is time() less this."),
		waits:         vector("rank_wait_seconds", "Shortest and longest time that a rank waited for others in the step before the last.", "of"),
		planned:       vector("memory_planned_bytes", "Memory planned for the rank with the most, by category.", "category", "place"),
		held:          vector("memory_held_bytes", "Memory held by the rank with the most, by category.", "category", "place"),
		trained:       vector("program_metric", "Metrics of a program's network in the last step: means over the global batch.", "name"),
		validated:     vector("program_validation_metric", "Metrics of a program's network in the last evaluation: means.", "name"),
	}
	m.valLoss.Set(math.NaN()) // no evaluation yet
	return m
}

// step records a step.
func (m *metrics) step(s report.Step) {
	m.steps.Inc()
	m.stepSeconds.Observe(s.StepSeconds)
	if d := s.Tokens - m.tokensBefore; m.tokensBefore > 0 && d > 0 {
		m.tokens.Add(float64(d))
	} else {
		m.tokens.Add(math.Max(0, s.TokensPerSecond*s.StepSeconds))
	}
	m.tokensBefore = s.Tokens
	if d := s.Skipped - m.skippedLast; d > 0 {
		m.skipped.Add(float64(d))
	}
	m.skippedLast = s.Skipped
	m.loss.Set(s.Loss)
	m.lr.Set(s.LR)
	m.gradNorm.Set(s.GradNorm)
	m.rate.Set(s.TokensPerSecond)
	m.mfu.Set(s.MFU)
	m.last.Set(float64(s.Step))
	m.lastTime.Set(s.Time)
	m.data.Set(s.DataSeconds)
	if p := s.Parts; p.Steps > 0 {
		m.exposed.Set(p.Exposed)
		m.idle.Set(p.Idle)
	}
	if w := s.RankWaits; w.Most.Seconds > 0 {
		m.waits.WithLabelValues("min").Set(w.Least.Seconds)
		m.waits.WithLabelValues("max").Set(w.Most.Seconds)
		m.slowest.Set(float64(s.Slowest))
		m.behind.Set(s.Behind)
	}
}

// change counts a change of the replicas.
func (m *metrics) change(c report.Change) {
	m.changes.Inc()
	m.changeSeconds.Add(c.Seconds)
}

// left records the replicas after a change in this start.
func (m *metrics) left(replicas int) {
	_ = m.registry.Register(m.replicas) // again after a second change, which has no effect
	m.replicas.Set(float64(replicas))
}

// saved records a checkpoint.
func (m *metrics) saved(s Save) {
	if s.Error != "" {
		m.failedSaves.Inc()
		return
	}
	m.saves.Inc()
	m.saveSeconds.Observe(s.Seconds)
	m.savedStep.Set(float64(s.Step))
	m.savedTime.Set(s.Time)
}

// memory records the memory of the rank that holds the most.
func (m *metrics) memory(all []Category) {
	for _, c := range all {
		m.planned.WithLabelValues(c.Name, c.Tier).Set(float64(c.Planned))
		m.held.WithLabelValues(c.Name, c.Tier).Set(float64(c.Held))
	}
}
