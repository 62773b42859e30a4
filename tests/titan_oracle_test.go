package tests

import (
	"errors"
	"slices"

	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/show"
	"zeroth/job/spec"
)

// titanModes lists what torchtitan recomputes: nothing, everything except every second product
// and the attention of a block, or whole blocks.
var titanModes = []string{"none", "selective", "full"}

// titanRow is a category of memory in torchtitan and in our plan.
type titanRow struct {
	Name  string
	Titan int64
	Ours  int64 // in use at our peak
	Why   string
}

// titanSlack is the fraction by which torchtitan's reserved memory exceeds active memory. In its
// published peaks, memory per sharded parameter is 17.1 to 17.6 bytes for 16 bytes of state,
// which is 7 to 10 % more.
const titanSlack = 0.085

// titan returns the memory that torchtitan (pytorch/torchtitan b5bcd76c, FSDP2 in bf16 with
// float32 parameters, AdamW, a loss that is not chunked) reserves at its peak for the plan's
// Llama, batch and shard group, by category, next to ours. With Ψ parameters over N ranks, t
// tokens of width h per micro-batch, keys of width k, a hidden layer of f, a heads, V words, and
// U parameters per block:
//
//	states       4Ψ/N parameters, 4Ψ/N gradients, 8Ψ/N moments, all float32
//	gathered     2·(2Vh + h) of the ends, which stay, and as much again in the
//	             output of their gather; 2U of the last block, which stays
//	saved        a layer and token: 2h (full), 2(4h + k + f) + 4a (selective: input,
//	             first, third, fifth and seventh product, attention), or
//	             12h + 4k + 8f + 4a (none)
//	again        one layer as with none, unless that is the mode
//	logits       12tV: in bf16, float32, and the gradients of both
func titan(p *forecast.Plan, mode string) ([]titanRow, error) {
	m, c := p.Config.Model, p.Config
	if m.Family != "llama" || m.Tied || c.Zero.Stage != 3 || !slices.Contains(titanModes, mode) {
		return nil, input.BadInput(errors.New("torchtitan's settings are known for an untied Llama at stage 3, recomputing " + show.Either(titanModes)))
	}
	const token = 2 // bytes of bf16
	t, h, f, V, L := int64(c.Train.MicroBatch*m.Context), int64(m.Width), int64(m.FFN), int64(m.Vocab), int64(m.Layers)
	k, heads := int64(m.Width/m.Heads*m.KV), int64(m.Heads)
	N, block := int64(spec.Mesh(c).Shard), 2*h*h+2*h*k+3*h*f+2*h
	none := 12*h + 4*k + 8*f + 4*heads
	saved := map[string]int64{"none": none, "selective": token*(4*h+k+f) + 4*heads, "full": token * h}[mode]
	again := none
	if mode == "none" {
		again = 0
	}
	at := &p.Peak.InUse
	rows := []titanRow{
		{"parameters", 4 * p.Parameters / N, at[forecast.Params] + at[forecast.MasterCopy], "float32 both, cast for each gather"},
		{"gradients", 4 * p.Parameters / N, at[forecast.Gradients], "float32 both; of ours only those that have a value at this peak, the rest is below"},
		{"optimizer states", 8 * p.Parameters / N, at[forecast.OptimizerStates], "float32 both"},
		{"whole units", 2*token*(2*V*h+h) + token*block, at[forecast.GatheredUnits] + at[forecast.UnitGradients], "theirs keep both ends and the last block, and gather through a second buffer; ours take turns in two slots, and so do their float32 gradients"},
		{"saved activations", t * L * saved, at[forecast.SavedActivations], "theirs save by the mode; ours by zero.recompute: elementwise for selective, block for full"},
		{"recomputed", t * again, at[forecast.Recomputed] + at[forecast.WorkSpace], "a block"},
		{"logits and loss", 12 * t * V, at[forecast.Logits], "theirs hold all logits, twice, and both gradients; ours a chunk of train.loss_chunk tokens, whose gradient takes its place"},
	}
	var sum, ours int64
	for _, r := range rows {
		sum, ours = sum+r.Titan, ours+r.Ours
	}
	rows = append(rows, titanRow{"allocator", int64(titanSlack * float64(sum)), p.Allocated.Total() - ours,
		"theirs reserves more than is active; of ours, what is not in use at this peak, and ids and norms"})
	return rows, nil
}
