package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"zeroth/checkpoint"
	"zeroth/internal/input"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/optim"
)

// Format is the format number of state.json. Files without a number were written
// before there was one; see Legacy.
const Format = 1

// Progress is the state of a run besides its tensors: state.json of a checkpoint.
type Progress struct {
	Format  int             `json:"format"`  // see Format
	Step    int             `json:"step"`    // steps done
	Updates int             `json:"updates"` // of them, those that were not skipped
	Skipped int             `json:"skipped"`
	Samples int64           `json:"samples"` // of the training order, read so far
	Tokens  int64           `json:"tokens"`
	Scale   optim.LossScale `json:"loss_scale"`
	Early   *Early          `json:"early_stop,omitempty"` // nil where no evaluation counts
	Owed    bool            `json:"owed,omitempty"`       // the evaluation after Step was left out or interrupted
	Seed    uint64          `json:"seed"`
	Data    string          `json:"data"`             // fingerprint; empty in an imported model
	Context int             `json:"context"`          // tokens of a sample
	Config  string          `json:"config"`           // the job, in YAML
	Model   json.RawMessage `json:"model,omitempty"`  // config.json
	Base    string          `json:"base,omitempty"`   // digest of the parameters of the folder that training, or the import, began with; see hf.ModelTensors.Check
	Origin  string          `json:"origin,omitempty"` // the program that trained so far, where that is another: its data is unknown
	Epoch   float64         `json:"epoch,omitempty"`  // passes of Origin over its data; 0 if unknown
	Version string          `json:"version"`          // of the program
}

// Early counts evaluations for an early stop, and finds the best one.
type Early struct {
	Metric string  `json:"metric,omitempty"` // empty: the validation loss
	Max    bool    `json:"max,omitempty"`    // a higher one is better
	Best   float64 `json:"best"`             // of the metric; nats a token
	Step   int     `json:"step"`             // of the best
	Stale  int     `json:"stale"`            // evaluations since one was better than the best before by more than the job's min_delta
}

// Add counts an evaluation and reports whether it is the best so far. NaN does not count as an
// improvement, nor does one of at most delta.
func (e *Early) Add(step int, x, delta float64) (best bool) {
	gain := e.Best - x
	if e.Max {
		gain = -gain
	}
	finite := !math.IsNaN(x) && !math.IsInf(x, 0)
	first := finite && e.Step == 0
	best = first || finite && gain > 0
	switch {
	case first || best && gain > delta:
		e.Stale = 0
	case e.Step > 0:
		e.Stale++
	}
	if best {
		e.Best, e.Step = x, step
	}
	return best
}

// Describe returns the best value in words.
func (e *Early) Describe() string {
	return fmt.Sprintf("validation %s of %.4f", cmp.Or(e.Metric, "loss"), e.Best)
}

// What a state.json can have at most.
const (
	MaxState    = 4 << 20 // bytes
	maxStep     = 1 << 40
	MaxPosition = 1 << 60 // samples and tokens: far from overflow also in the steps to come
)

// Trained reports whether the state comes from training; an imported model starts at step 0.
func (p *Progress) Trained() bool { return p.Data != "" || p.Origin != "" }

// ReadProgress reads state.json, which a checkpoint of another program may lack. It does not
// check the numbers; see Check.
func ReadProgress(ck *checkpoint.Checkpoint) (p Progress, err error) {
	if len(ck.State) == 0 {
		return p, nil
	}
	if p, err = parseProgress(ck.State); err != nil {
		return p, fmt.Errorf("%s: state.json: %w", ck.Path, err)
	}
	return p, nil
}

// GoesOnFrom returns an error if a run cannot continue from the checkpoint with this
// state.json.
func (p *Progress) GoesOnFrom(ck *checkpoint.Checkpoint) error {
	if len(ck.State) == 0 && ck.Step > 0 {
		return errors.New("it is empty, so the position in the data is unknown; start a new run from the parameters with `zeroth ckpt export` and model.from")
	}
	if err := p.Check(); err != nil {
		return err
	}
	if int64(p.Step) != ck.Step {
		return fmt.Errorf("it has step %d, but the manifest has step %d", p.Step, ck.Step)
	}
	if !p.Trained() && hasStates(ck) {
		return errors.New("it describes no training, but there is optimizer state")
	}
	return nil
}

// hasStates reports whether a checkpoint contains optimizer state.
func hasStates(ck *checkpoint.Checkpoint) bool {
	kinds := append(optim.AdamW{}.States(), optim.SGD{Momentum: 1}.States()...)
	return slices.ContainsFunc(ck.Tensors, func(t checkpoint.Tensor) bool { return slices.Contains(kinds, t.Kind) })
}

// parseProgress parses a JSON object that has numbers where numbers are expected.
func parseProgress(raw []byte) (p Progress, err error) {
	if len(raw) > MaxState {
		return p, fmt.Errorf("%d bytes, at most %d expected", len(raw), MaxState)
	}
	if !isObject(raw) {
		return p, fmt.Errorf("%.40q is not a JSON object", raw)
	}
	err = json.Unmarshal(raw, &p) // after a value of another type it reads on
	if p.Format < 0 || p.Format > Format {
		return p, input.BadInput(fmt.Errorf("it has format %d, but this version of zeroth reads formats up to %d: use the version that wrote it (%s) or a newer one", p.Format, Format, show.Brief(p.Version)))
	}
	if err == nil && p.Legacy() {
		p.Model = hf.WithoutDropout(p.Model)
	}
	return p, err
}

// Legacy reports whether a version without dropout wrote the file. Such
// versions wrote config.json without the keys of GPT-2's dropout, which are 0.1
// where a Hugging Face folder does not have them. They also trained the embedding
// of a folder's pad_token_id, and their train.eval_batches counted the
// micro-batches of a rank.
//
// They are distinguished from later ones by model.attention_dropout, which later jobs
// always have, and by the digest of an imported model's parameters.
func (p *Progress) Legacy() bool {
	if p.Format > 0 {
		return false
	}
	if p.Trained() {
		return !spec.HasKey(p.Config, "model.attention_dropout")
	}
	return p.Base == ""
}

// JSON returns state.json in the current format.
func (p Progress) JSON() []byte {
	p.Format = Format
	return hf.MustJSON(p)
}

// isObject reports whether raw is a JSON object; null is not.
func isObject(raw []byte) bool {
	var all map[string]json.RawMessage
	return json.Unmarshal(raw, &all) == nil && all != nil
}

// Check returns an error unless a run or an import can have written these numbers, so that
// they need no further checks.
func (p *Progress) Check() error {
	for _, x := range []struct {
		name    string
		is, top int64
	}{
		{"step", int64(p.Step), maxStep}, {"updates", int64(p.Updates), int64(p.Step)}, {"skipped", int64(p.Skipped), int64(p.Step)},
		{"samples", p.Samples, MaxPosition}, {"tokens", p.Tokens, MaxPosition}, {"context", int64(p.Context), hf.Most},
	} {
		if x.is < 0 || x.is > x.top {
			return fmt.Errorf("%s is %d; want 0 to %d", x.name, x.is, x.top)
		}
	}
	switch e := p.Early; {
	case e != nil && (e.Step < 1 || e.Step > p.Step || e.Stale < 0 || e.Stale > p.Step):
		return fmt.Errorf("%d evaluations after the best one, at step %d, in %d steps", e.Stale, e.Step, p.Step)
	case p.Updates+p.Skipped != p.Step:
		return fmt.Errorf("%d updates and %d skipped steps are not %d steps", p.Updates, p.Skipped, p.Step)
	case p.Samples < int64(p.Step) || p.Tokens < p.Samples:
		return fmt.Errorf("%d samples and %d tokens in %d steps", p.Samples, p.Tokens, p.Step)
	case !(p.Epoch >= 0 && p.Epoch < maxStep):
		return fmt.Errorf("%v epochs", p.Epoch)
	case !p.Trained() && p.Tokens > 0:
		return fmt.Errorf("%d tokens, but no data", p.Tokens)
	case p.Data != "" && p.Context == 0:
		return errors.New("samples without tokens")
	case len(p.Model) > 0 && !isObject(p.Model):
		return fmt.Errorf("model is %.40q; want an object", p.Model)
	case p.Trained():
		return checkScale(p.Scale)
	}
	return nil
}

// checkScale returns an error for an invalid loss scale.
func checkScale(s optim.LossScale) error {
	dynamic := s.Min > 0 && s.Scale >= s.Min && s.Window > 0 && 0 < s.Left && s.Left <= s.Hysteresis && 0 <= s.Clean && s.Clean < s.Window
	if !(s.Scale > 0) || math.IsInf(s.Scale, 0) || s.Dynamic && !dynamic {
		return fmt.Errorf("a loss scale of %+v", s)
	}
	return nil
}
