package foreign

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"

	"zeroth/checkpoint/torchfile"
	"zeroth/internal/input"
	"zeroth/internal/input/jsonread"
	"zeroth/optim"
)

// unusedFiles lists what Accelerate and the Trainer save next to tensors and zeroth has no use for:
// schedules, random states, and positions in data that is read in another order.
var unusedFiles = []string{"scheduler*.pt", "scheduler*.bin", "rng_state*.pth", "random_states_*.pkl", "sampler*.bin", "dl_state_dict*.bin", "custom_checkpoint_*.pkl"}

// addBeside reads what Accelerate and the Trainer save next to the tensors: the epoch and the loss
// scale.
func (c *Checkpoint) addBeside() error {
	folder := c.Path
	if above := filepath.Dir(filepath.Clean(folder)); !input.Exists(filepath.Join(folder, trainerState)) && input.Exists(filepath.Join(above, trainerState)) {
		folder = above
	}
	for _, pattern := range unusedFiles {
		for _, name := range matching(folder, pattern) {
			c.leave(name)
		}
	}
	if err := c.readTrainerState(filepath.Join(folder, trainerState)); err != nil {
		return err
	}
	if path := filepath.Join(folder, "scaler.pt"); c.Scale == nil && input.Exists(path) {
		return c.readScaler(path)
	}
	return nil
}

const trainerState = "trainer_state.json"

// readTrainerState reads the epoch from the Trainer's state, if there is one.
func (c *Checkpoint) readTrainerState(path string) error {
	if !input.Exists(path) {
		return nil
	}
	raw, err := input.Read(path, 256<<20)
	if err != nil {
		return err
	}
	found := errors.New("found")
	r := jsonread.New(raw)
	err = r.Object(func(key string) error {
		if key != "epoch" {
			_, err := r.Raw()
			return err
		}
		text, err := r.Number()
		if err == nil {
			c.Epoch, err = strconv.ParseFloat(text, 64)
		}
		return cmp.Or(err, found) // what follows may have NaN, which is not JSON
	})
	if !errors.Is(err, found) || c.Epoch < 0 || math.IsInf(c.Epoch, 0) {
		c.Epoch = 0
		c.leave(trainerState)
	}
	return nil
}

// readScaler reads the state of torch's GradScaler, which halves the scale at each overflow.
func (c *Checkpoint) readScaler(path string) error {
	v, err := c.single(path)
	if err != nil {
		return err
	}
	d, _ := v.(*torchfile.Dict)
	at := func(key string) float64 { return number(d.At(key)) }
	s := optim.LossScale{Dynamic: true, Scale: at("scale"), Min: min(1, at("scale")), Window: int(at("growth_interval")), Hysteresis: 1, Left: 1, Clean: int(at("_growth_tracker"))}
	if !(s.Scale > 0) || math.IsInf(s.Scale, 0) || s.Window < 1 || s.Clean < 0 || s.Clean >= s.Window {
		return fmt.Errorf("%s is not the state of a GradScaler: scale %v, growth_interval %d, _growth_tracker %d", path, s.Scale, s.Window, s.Clean)
	}
	c.Scale = &s
	return nil
}
