package tests

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"zeroth/tests/nightly"
)

// padded contains PyTorch's results if config.json has pad_token_id: unchanged except for the
// gradient of that token's embedding.
type padded struct {
	computed
	Padding []float64 // gradient of the padding token's row
}

// eachPadded runs a test on copies of the Llama family's folders whose config.json sets a padding
// token that occurs in their texts.
func eachPadded(t *testing.T, f func(t *testing.T, folder string, token int, e padded)) {
	raw, err := os.ReadFile(filepath.Join(hfLlama, "pad.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Token  int
		Models map[string]padded
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"llama", "qwen2"} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			rewrite(t, filepath.Join(hfLlama, name), folder, "")
			changeConfig(t, filepath.Join(hfLlama, name), folder, "pad_token_id", fmt.Sprint(all.Token))
			f(t, folder, all.Token, all.Models[name])
		})
	}
}

// TestPaddingsGradientIsPyTorchs checks that the row gets no gradient for Llama, and only the
// output layer's for Qwen2, which is tied here.
func TestPaddingsGradientIsPyTorchs(t *testing.T) {
	eachPadded(t, func(t *testing.T, folder string, token int, e padded) {
		sameGradients(t, folder, "../hf-llama/tokens.bin", e.computed)
		c := mustHFConfig(t, folder, "../hf-llama/tokens.bin", "parallel.ranks=1", "optimizer.type=sgd", "optimizer.weight_decay=0", "train.clip=0")
		_, grads := gradients(t, c)
		row := grads["momentum_buffer model.embed_tokens.weight"][token*c.Model.Width:][:c.Model.Width]
		for i, w := range e.Padding {
			if d := math.Abs(float64(row[i]) - w); !(d <= 1e-7) {
				t.Errorf("element %d of the padding's gradient is %g, PyTorch's is %g", i, row[i], w)
			}
		}
	})
}

func TestPaddedTrajectoryIsPyTorchs(t *testing.T) {
	nightly.Parallel(t)
	eachPadded(t, func(t *testing.T, folder string, _ int, e padded) {
		sameTrajectory(t, folder, "../hf-llama/tokens.bin", e.computed)
	})
}

// TestPaddedStagesAgreeToTheBit checks that sharding does not change the bits of a model with
// padding, which differ from those of one without.
func TestPaddedStagesAgreeToTheBit(t *testing.T) {
	nightly.Parallel(t)
	eachPadded(t, func(t *testing.T, folder string, _ int, _ padded) {
		train := func(sets ...string) []float32 {
			_, end := runJob(t, mustHFConfig(t, folder, "../hf-llama/tokens.bin", append(sets, "parallel.ranks=3", "train.steps=3")...))
			return end["model.embed_tokens.weight"]
		}
		want := train("zero.stage=0")
		for _, sets := range [][]string{{"zero.stage=1"}, {"zero.stage=2", "zero.recompute=block"}, {"zero.stage=3"}, {"zero.stage=3", "zero.offload.optimizer=host"}} {
			if !slices.Equal(train(sets...), want) {
				t.Errorf("%v: other bits than stage 0", sets)
			}
		}
		changeConfig(t, folder, folder, "pad_token_id", "null")
		if slices.Equal(train("zero.stage=0"), want) {
			t.Error("padding changes nothing")
		}
	})
}
