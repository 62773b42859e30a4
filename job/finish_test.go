package job

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/jobtest"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// written trains nothing: it fills a job's ranks and exports their parameters.
func written(t *testing.T, c *spec.Job, folder string) {
	t.Helper()
	j := setup.Local(c)
	ranks, err := setup.Open(j)
	if err != nil {
		t.Fatal(err)
	}
	defer setup.CloseAll(ranks)
	w := &hf.Weights{Seed: c.Train.Seed}
	if err := setup.Together(ranks, func(r *setup.Rank) error { return r.Trainer.Fill(zero.Master, w.Fill) }); err != nil {
		t.Fatal(err)
	}
	if err := export(j, ranks, folder); err != nil {
		t.Fatal(err)
	}
}

// TestExportAndStart checks that the parameters are exported whole, however ranks divided them, and
// that a job that starts from the folder has the bits of one that starts fresh.
func TestExportAndStart(t *testing.T) {
	jobtest.InTinyFolder(t)
	for i, sets := range [][]string{
		{"zero.stage=0", "parallel.ranks=2"},
		{"zero.stage=3", "parallel.ranks=3"},
		{"zero.stage=1", "parallel={ranks: 4, replicate: 2}", "precision=fp32"},
	} {
		c, folder := spectest.MustLoad(t, append(sets, "train.seed=9")...), fmt.Sprintf("hf%d", i)
		written(t, c, folder)
		from, err := openWeights(t.Context(), setup.Planned(spectest.MustLoad(t, "model={from: "+folder+"}", "data.tokenizer=bytes")))
		if err != nil {
			t.Fatal(err)
		}
		fresh := &hf.Weights{Seed: 9}
		for _, p := range hf.Parameters(c.Model.Network(nn.LoRA{})) {
			for _, at := range []shard.Range{{Lo: 0, Hi: p.Numel()}, {Lo: p.Numel() / 3, Hi: p.Numel()/3 + 2}} {
				got, want := make([]float32, at.Len()), make([]float32, at.Len())
				part := zero.Part{Param: p, Kind: zero.Master, At: at}
				if err := from.Fill(part, got); err != nil {
					t.Fatal(err)
				}
				if err := fresh.Fill(part, want); err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%v: %s%v differs", sets, p.Name, at)
				}
			}
		}
		from.Close()
		if m, err := hf.ReadModelConfig(folder); err != nil || !reflect.DeepEqual(m, c.Model) {
			t.Errorf("config.json: %+v %v, want %+v", m, err, c.Model)
		}
	}
}

// TestFolderThatDoesNotFit checks that everything a folder lacks is reported, with the key that
// names the folder.
func TestFolderThatDoesNotFit(t *testing.T) {
	jobtest.InTinyFolder(t)
	if err := os.Mkdir("hf", 0o777); err != nil {
		t.Fatal(err)
	}
	m := hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 1, Heads: 2, Width: 8, Context: 8, Vocab: 256, Eps: 1e-5}}
	jobtest.Write(t, "hf/config.json", string(m.ConfigJSON()))
	var specs []safetensors.Spec
	for _, p := range hf.Parameters(m.Network(nn.LoRA{})) {
		switch {
		case strings.HasSuffix(p.Name, "ln_f.bias"):
			continue
		case strings.HasSuffix(p.Name, "c_fc.weight"):
			p.Shape = []int{p.Shape[1], p.Shape[0]}
		}
		specs = append(specs, safetensors.Spec{Name: strings.TrimPrefix(p.Name, "transformer."), DType: safetensors.F32, Shape: p.Shape})
	}
	w, err := safetensors.Create("hf/model.safetensors", specs, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		n := 1
		for _, d := range s.Shape {
			n *= d
		}
		if err := w.WriteF32(s.Name, 0, make([]float32, n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, "job.yaml", "data: {text: [a.txt]}\nmodel:\n  from: hf\n")
	c := spectest.MustLoad(t, "train.batch=4000", "data.tokenizer=bytes")
	err = Run(t.Context(), c, Options{Out: "run", Observer: &heard{}})
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "job.yaml:1:14: data.text: ") ||
		lines[1] != "job.yaml:3:9: model.from: hf does not contain the model described by its config.json: transformer.h.0.mlp.c_fc.weight has shape [32 8], but config.json implies [8 32]; transformer.ln_f.bias is missing" {
		t.Errorf("got %v", err)
	}
	if !input.IsInput(err) {
		t.Error("not the user's to mend")
	}
}
