package job

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/generate"
	"zeroth/nn"
)

// Predict applies the network of a program, with the parameters that a run has saved, to all samples of o.Data in
// order, on the CPU. The job file and sets are those of the run. The parameters are the final ones or those of the
// newest checkpoint, if that is newer; step chooses a checkpoint. each gets a sample's number and its predictions,
// (Context, Predictions) of the network's last module, which must be an nn.Predictor; it must not keep them. Fields
// that the last module compares predictions with may have any valid value.
func Predict(ctx context.Context, file string, sets []string, o Options, run, step string, each func(sample int64, y []float32) error) error {
	if o.Model == nil || o.Data == nil || len(o.Model.Modules) == 0 {
		return input.BadInput(errors.New("to predict, Options need a Model and Data"))
	}
	net, last := *o.Model, len(o.Model.Modules)-1
	of, ok := net.Modules[last].(nn.Predictor)
	if !ok {
		return input.BadInput(fmt.Errorf("the network's last module, %T, cannot predict: want an nn.Predictor", net.Modules[last]))
	}
	p := &predicting{Predictor: of, each: each, samples: o.Data.Len()}
	net.Modules = slices.Clone(net.Modules)
	net.Modules[last] = p
	o.Model, o.Validation = &net, o.Data // which is read in order
	c, err := setup.ThisMachine(1, 1).Load(file, slices.Concat(sets, []string{"parallel=null", "zero=null", "train.accumulate=null", "device=cpu"}))
	if err == nil {
		c, err = o.Complete(c)
	}
	if err != nil {
		return err
	}
	none := func(string) {}
	src, err := generate.OpenOwn(run, step, c.Own.Model, none)
	if err != nil {
		return err
	}
	defer src.Close()
	_, err = Evaluate(ctx, c, Evaluating{Model: src}, none)
	if errors.Is(err, errNoLoss) {
		return nil
	}
	return err
}

// predicting is a last module that also passes its predictions on. It is called for one micro-batch after another.
type predicting struct {
	nn.Predictor
	each          func(sample int64, y []float32) error
	done, samples int64
}

// Forward implements nn.Module.
func (p *predicting) Forward(q nn.Ops, mem nn.Scratch, w []device.Buffer, bt *nn.Batch, x, y device.Buffer, s *nn.Saved) {
	p.Predictor.Forward(q, mem, w, bt, x, y, s)
	if s != nil {
		return
	}
	defer mem.Release(mem.Mark())
	all := mem.Take(device.F32, bt.Rows()*p.Predictions())
	p.Predict(q, mem, w, bt, x, all)
	B, size := bt.B, bt.T*p.Predictions()
	nn.OnHost(q, "predictions", func() error {
		for i := range B {
			if p.done == p.samples { // the last micro-batch is filled up
				return nil
			}
			if err := p.each(p.done, all.Slice(i*size, (i+1)*size).F32()); err != nil {
				return err
			}
			p.done++
		}
		return nil
	}, all)
}
