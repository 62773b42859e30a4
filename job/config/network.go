package config

import (
	"errors"
	"fmt"

	"zeroth/data"
	"zeroth/input"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/shard"
)

// WithNetwork returns the job with the caller's network, which all ranks share, so its modules
// must be stateless. The network must fit the model section, which sets the residual width, heads,
// context and vocabulary; blocks with rotary positions need the family llama. Its checkpoints and
// final parameters have no config.json, and only jobs with the same network can read them.
func WithNetwork(c *Config, m *nn.Model) (*Config, error) {
	var errs []error
	wrong := func(key string, has, want int) {
		errs = append(errs, fmt.Errorf("%v: %s is %d, but the custom network has %d", c.Position(key), key, want, has))
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
		errs = append(errs, fmt.Errorf("%v: model.from does not apply to a custom network, which starts with fresh parameters", c.Position("model.from")))
	}
	if c.Parallel.Tensor > 1 {
		errs = append(errs, fmt.Errorf("%v: parallel.tensor: a custom network's matrices cannot be divided; want tensor: 1", c.Position("parallel.tensor")))
	}
	if c.Parallel.Context > 1 {
		errs = append(errs, fmt.Errorf("%v: parallel.context: a custom network's sequences cannot be divided; want context: 1", c.Position("parallel.context")))
	}
	if c.Train.LoRA.Rank > 0 {
		errs = append(errs, fmt.Errorf("%v: train.lora does not apply to a custom network; freeze the parameters that it does not train", c.Position("train.lora.rank")))
	}
	if c.Sample.Tokens > 0 {
		errs = append(errs, fmt.Errorf("%v: sample.tokens: sampling needs a model with a config.json, which a custom network does not have", c.Position("sample.tokens")))
	}
	for i, what := range c.Optimizer.ungrouped(hf.Parameters(m)) {
		if what != [2]string{} {
			key := fmt.Sprintf("optimizer.groups[%d]", i)
			errs = append(errs, fmt.Errorf("%v: %s: %s; %s", c.Position(key), key, what[0], what[1]))
		}
	}
	if len(errs) > 0 {
		return nil, input.BadInput(errors.Join(errs...))
	}
	return Standing(c, m), nil
}

// Standing returns the job with m in place of its network, for example one with fewer of the same
// layers.
func Standing(c *Config, m *nn.Model) *Config {
	x := c.Copy()
	x.network = m
	return x
}

// Given reports whether the network was given by the caller, not built from the model section.
func Given(c *Config) bool { return c.network != nil }

// Network returns the model that the job trains.
func Network(c *Config) *nn.Model { return Part(c, 0, 1) }

// Part returns the rank's part of Network if its matrices are divided into the given number of
// parts.
func Part(c *Config, index, total int) *nn.Model {
	m := c.network
	if m == nil {
		whole := c.Model
		whole.Shape.Cut = nn.Cut{Index: index, Count: total}
		m = whole.Network(Adapters(c))
	}
	if Tunes(c) {
		m = m.Frozen(frozen(c))
		if Coded(c) {
			m = m.Coded(codeOf(c))
		}
	}
	if c.Optimizer.Type == "muon" {
		m = c.Optimizer.ruled(m)
	}
	return m
}

// Fields returns the fields of a sample.
func Fields(c *Config) []data.Field { return data.TokenFields(c.Model.Context, c.Data.Pack) }

// Parameters returns the parameters of the job's network, in the order of its units.
func Parameters(c *Config) []shard.Param { return hf.Parameters(Network(c)) }
