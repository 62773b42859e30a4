package config

import (
	"errors"
	"fmt"

	"zeroth/input"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/shard"
)

// WithNetwork is the job with a network of the caller's, which every rank uses:
// modules keep nothing between calls. It must fit the job's model section, from
// which come the width of the residual stream, its heads, the context and the
// vocabulary; blocks that turn queries and keys want the family llama. No config.json
// describes it: checkpoints and the final parameters have none, and are read by
// jobs with the same network.
func WithNetwork(c *Config, m *nn.Model) (*Config, error) {
	var errs []error
	wrong := func(key string, has, want int) {
		errs = append(errs, fmt.Errorf("%v: %s is %d, of the given network %d", c.Place(key), key, want, has))
	}
	if m.Width != c.Model.Width {
		wrong("model.width", m.Width, c.Model.Width)
	}
	if m.Vocab != c.Model.Vocab {
		wrong("model.vocab", m.Vocab, c.Model.Vocab)
	}
	if m.Context < c.Model.Context {
		wrong("model.context", m.Context, c.Model.Context)
	}
	if c.Model.From != "" {
		errs = append(errs, fmt.Errorf("%v: model.from: the parameters of a given network begin fresh", c.Place("model.from")))
	}
	if c.Parallel.Tensor > 1 {
		errs = append(errs, fmt.Errorf("%v: parallel.tensor: the matrices of a given network are whole; want tensor: 1", c.Place("parallel.tensor")))
	}
	if c.Parallel.Context > 1 {
		errs = append(errs, fmt.Errorf("%v: parallel.context: a given network has whole sequences; want context: 1", c.Place("parallel.context")))
	}
	if c.Train.LoRA.Rank > 0 {
		errs = append(errs, fmt.Errorf("%v: train.lora: a given network has the layers it has; freeze what it does not train", c.Place("train.lora.rank")))
	}
	if c.Sample.Tokens > 0 {
		errs = append(errs, fmt.Errorf("%v: sample.tokens: samples are of models with a config.json, a given network has none", c.Place("sample.tokens")))
	}
	for i, what := range c.Optimizer.ungrouped(hf.Parameters(m)) {
		if what != [2]string{} {
			key := fmt.Sprintf("optimizer.groups[%d]", i)
			errs = append(errs, fmt.Errorf("%v: %s: %s; %s", c.Place(key), key, what[0], what[1]))
		}
	}
	if len(errs) > 0 {
		return nil, input.BadInput(errors.Join(errs...))
	}
	return Standing(c, m), nil
}

// Standing is the job with a network that stands for its own, such as one with fewer
// of the same layers.
func Standing(c *Config, m *nn.Model) *Config {
	x := c.Copy()
	x.network = m
	return x
}

// Given says whether the network is the caller's, not the model section's.
func Given(c *Config) bool { return c.network != nil }

// Network is what the job trains.
func Network(c *Config) *nn.Model { return Part(c, 0, 1) }

// Part is the part of Network that a rank has, of so many that divide its matrices.
func Part(c *Config, index, of int) *nn.Model {
	m := c.network
	if m == nil {
		whole := c.Model
		whole.Shape.Cut = nn.Cut{Index: index, Of: of}
		m = whole.Network(Adapters(c))
	}
	if Tunes(c) {
		m = m.Frozen(frozen(c))
	}
	if c.Optimizer.Type == "muon" {
		m = c.Optimizer.ruled(m)
	}
	return m
}

// Parameters are all that the job trains, in the order of the network's units.
func Parameters(c *Config) []shard.Param { return hf.Parameters(Network(c)) }
