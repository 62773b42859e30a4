package hf

import (
	"fmt"
	"slices"

	"zeroth/checkpoint"
	"zeroth/device"
	"zeroth/nn"
)

// Adapted reports whether a checkpoint contains adapters.
func Adapted(ck *checkpoint.Checkpoint) bool { return AdapterTensors(ck) > 0 }

// AdapterTensors returns the number of adapter parameters in a checkpoint.
func AdapterTensors(ck *checkpoint.Checkpoint) (n int) {
	for _, t := range ck.Tensors {
		if t.Kind == checkpoint.Master && nn.IsAdapter(t.Name) {
			n++
		}
	}
	return n
}

// Describes returns the model of a config.json, after checking that it matches the parameters in a
// checkpoint.
func Describes(config []byte, ck *checkpoint.Checkpoint) (Model, error) {
	m, _, err := ReadModel(config)
	if err != nil {
		return m, err
	}
	masters := 0
	for _, t := range ck.Tensors {
		if t.Kind != checkpoint.Master && codeOf(t.Kind) == device.Floats || nn.IsAdapter(t.Name) {
			continue
		}
		masters++
		if t.Kind == checkpoint.Master && !t.DType.Float() {
			return m, fmt.Errorf("%v is %s, which is not a parameter type", t, t.DType)
		}
	}
	if m.Layers > masters {
		return m, fmt.Errorf("it has %d layers, but there are only %d parameters", m.Layers, masters)
	}
	params := Parameters(m.Network(nn.LoRA{}))
	for _, p := range params {
		t, ok := held(ck, p)
		if !ok || !slices.Equal(t.Shape, p.Shape) {
			return m, fmt.Errorf("it has a parameter %s of shape %v, but the checkpoint has shape %v", p.Name, p.Shape, t.Shape)
		}
	}
	if len(params) != masters {
		return m, fmt.Errorf("it has %d parameters, but the checkpoint has %d", len(params), masters)
	}
	return m, nil
}
