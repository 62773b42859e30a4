package config

import (
	"net/url"
	"slices"
	"time"

	"zeroth/job/hf"
)

// Sampling describes the text generated at the end of training.
type Sampling struct {
	Prompt      string
	Tokens      int     // to generate; 0 is no sample
	Temperature float64 // 0 always chooses the most likely token
	TopK        int     // choose among the k most likely tokens; 0 is all
	TopP        float64 // choose among the most likely tokens with this total probability; 1 is all
	Stop        []string
	Seed        uint64
}

// sampleKeys returns the keys of the sample.
func (c *Config) sampleKeys() []field {
	w, t := &c.Sample, &c.Train
	return []field{
		{key: "sample.prompt", value: text(&w.Prompt), rule: "a line feed", like: `"Once upon a time"`,
			doc: "text to continue after training"},
		{key: "sample.tokens", value: count(&w.Tokens, 0, hf.Most),
			rule: "200 with a prompt, else 0", like: "200",
			doc:  "tokens to generate; 0: no sample",
			then: func() { w.Tokens = pick(w.Prompt != "", 200, 0) }},
		{key: "sample.temperature", value: least0(&w.Temperature), initial: "0.8",
			doc: "randomness of the choices; 0 always chooses the likeliest token"},
		{key: "sample.top_k", value: count(&w.TopK, 0, hf.Most), initial: "0",
			doc: "choose among the k likeliest tokens; 0: all"},
		{key: "sample.top_p", value: real(&w.TopP, probable, "a number above 0 and at most 1"),
			initial: "1.0",
			doc:     "choose among the likeliest tokens with this total probability, after top_k; 1: all"},
		{key: "sample.stop", value: texts(&w.Stop), rule: "none", like: `["\n\n"]`,
			doc: "end the sample before the first of these texts",
			not: refuse(slices.Contains(w.Stop, ""), "a stop text is empty", "want at least one character in each")},
		{key: "sample.seed", value: seed(&w.Seed), rule: "train.seed", like: "1",
			doc:  "seed of the random choices",
			then: func() { w.Seed = t.Seed }},
	}
}

// Reporting selects what is measured and published during a run.
type Reporting struct {
	Every       int           // steps between detailed measurements; 0 is never
	TensorBoard bool          // also write TensorBoard events
	MLflow      string        // address of a tracking server; empty: none
	Experiment  string        // name of the experiment there
	Listen      string        // address at which the run is published; empty: none
	TokenFile   string        // with the secret for Listen; empty: one in the run folder
	Stall       time.Duration // a run without a step for this long is unhealthy
	Machine     string        // machine that defines peak FLOPS, a preset or a file; "" is the GPU's preset, if it has one
}

// reportKeys returns the keys of reports.
func (c *Config) reportKeys() []field {
	r := &c.Report
	return []field{
		{key: "report.every", value: count(&r.Every, 0, MostSteps), initial: "50",
			doc: "steps between measurements of computing, exposed communication and idle time; 0: never"},
		{key: "report.tensorboard", value: flag(&r.TensorBoard), initial: "false",
			doc: "also write TensorBoard events to the run folder"},
		{key: "report.mlflow", value: text(&r.MLflow), rule: "nothing", like: "http://127.0.0.1:5000",
			doc: "address of an MLflow tracking server that gets the numbers of each step; credentials " +
				"come from MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD",
			not: refuse(r.MLflow != "" && wrongServer(r.MLflow) != "", wrongServer(r.MLflow),
				"want for example http://127.0.0.1:5000, with credentials in MLFLOW_TRACKING_TOKEN "+
					"or MLFLOW_TRACKING_USERNAME and _PASSWORD")},
		{key: "report.experiment", value: text(&r.Experiment), initial: "zeroth",
			doc:  "experiment of report.mlflow, created if missing",
			only: onlyIf("with report.mlflow", r.MLflow != "", "report.mlflow", "there is no report.mlflow")},
		{key: "report.listen", value: text(&r.Listen), rule: "nothing", like: "127.0.0.1:9400",
			doc: "address for the live page, Prometheus and health checks: HOST:PORT, or unix:PATH; from " +
				"other machines, everything except /healthz needs the token"},
		{key: "report.token_file", value: path(&r.TokenFile),
			rule: "watch.token in the run folder", like: "/run/secrets/watch",
			doc: "file with the token of report.listen, mode 0600; created if missing"},
		{key: "report.stall", value: duration(&r.Stall), initial: "10m",
			doc: "/healthz fails if no step, evaluation or checkpoint completes for this long"},
		{key: "report.machine", value: path(&r.Machine),
			rule: "the GPU, if --machine knows it", like: "machine.json",
			doc: "a machine that plan --machine knows, or a file like examples/machine.json: the peak rate for MFU"},
	}
}

// wrongServer describes why a text is not the address of an MLflow server; "" if it is.
func wrongServer(text string) string {
	switch u, err := url.Parse(text); {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return "it is not the address of a server"
	case u.User != nil:
		return "it contains a password, which would be written to job.yaml"
	}
	return ""
}
