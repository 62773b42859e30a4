package plan

import (
	"fmt"
	"io"
	"strings"

	"zeroth/job/build"
	"zeroth/job/hf"
	"zeroth/job/show"
	"zeroth/nn"
)

// DeepSpeedRow is what DeepSpeed's own estimators answer for one set of
// options. They count model states alone: no activations, no buckets, no
// gathered units, no context.
type DeepSpeedRow struct {
	Stage     int    `json:"stage"` // 2 or 3; there is no estimator for the others
	Param     string `json:"offload_param,omitempty"`
	Optimizer string `json:"offload_optimizer"`
	ZeroInit  int    `json:"zero_init"`  // 1: parameters are sharded as they are made; stage 3
	CPU       int64  `json:"cpu_a_node"` // bytes of host memory a node
	GPU       int64  `json:"gpu"`        // bytes a GPU
}

// DeepSpeed reproduces estimate_zero2_model_states_mem_needs and
// estimate_zero3_model_states_mem_needs (deepspeedai/DeepSpeed edaa7221,
// runtime/zero/stage_1_and_2.py and stage3.py) for a model of so many
// parameters, of which the largest layer has largest, on nodes of gpus each,
// with the default additional_buffer_factor of 1.5. With P parameters, L in the
// largest layer, N GPUs in all and g a node:
//
//	stage 2, optimizer on cpu:  GPU 2P           CPU 1.5 P max(4N, 16)
//	         none:              GPU 2P + 18P/N   CPU 1.5 · 4Pg
//	stage 3, both on cpu:       GPU 4L           CPU 1.5 · 18P/nodes
//	         optimizer on cpu:  GPU 4L + 2P/N    CPU 1.5 · 16P/nodes
//	         none:              GPU 4L + 18P/N   CPU 1.5 · 4Lg
//
// and for stage 3 without zero.Init a CPU of 1.5 P max(4g, the factor above),
// or 1.5 · 4Pg without offload. Rows are in the order they are printed in.
func DeepSpeed(stage int, params, largest int64, gpus, nodes int) []DeepSpeedRow {
	const factor = 1.5
	P, L, g, n := float64(params), float64(largest), float64(gpus), float64(nodes)
	N := g * n
	row := func(param, optimizer string, zeroInit int, cpu, gpu float64) DeepSpeedRow {
		return DeepSpeedRow{stage, param, optimizer, zeroInit, int64(cpu * factor), int64(gpu)}
	}
	if stage < 3 {
		return []DeepSpeedRow{
			row("", "cpu", 0, P*max(4*N, 16), 2*P),
			row("", "none", 0, 4*P*g, 2*P+18*P/N),
		}
	}
	return []DeepSpeedRow{
		row("cpu", "cpu", 1, 18*P/n, 4*L),
		row("cpu", "cpu", 0, P*max(4*g, 18/n), 4*L),
		row("none", "cpu", 1, 16*P/n, 4*L+2*P/N),
		row("none", "cpu", 0, P*max(4*g, 16/n), 4*L+2*P/N),
		row("none", "none", 1, 4*L*g, 4*L+18*P/N),
		row("none", "none", 0, 4*P*g, 4*L+18*P/N),
	}
}

// largestLayer is the parameters of the largest layer in DeepSpeed's sense: one
// module of PyTorch with the parameters that are its own, a weight and a bias.
func largestLayer(m *nn.Model) (most int64) {
	layers := map[string]int64{}
	for _, p := range hf.Parameters(m) {
		name := p.Name[:max(0, strings.LastIndex(p.Name, "."))]
		layers[name] += int64(p.Numel())
		most = max(most, layers[name])
	}
	return most
}

// DeepSpeed is what DeepSpeed would estimate for the job, on nodes of at most
// gpus each; nil where it has no estimator.
func (p *Plan) DeepSpeed(gpus int) []DeepSpeedRow {
	c, ranks := p.Config, p.Config.Parallel.Ranks
	if c.Zero.Stage < 2 {
		return nil
	}
	gpus = min(gpus, ranks)
	return DeepSpeed(c.Zero.Stage, p.Parameters, largestLayer(build.Trainer(c).Model), gpus, (ranks+gpus-1)/gpus)
}

// PrintDeepSpeed writes DeepSpeed's estimates beside the plan. DeepSpeed writes
// GB for what are GiB.
func (p *Plan) PrintDeepSpeed(out io.Writer, gpus int) error {
	rows := p.DeepSpeed(gpus)
	if rows == nil {
		_, err := fmt.Fprintf(out, "\nDeepSpeed has estimators for stages 2 and 3 alone, none for stage %d.\n", p.Config.Zero.Stage)
		return err
	}
	t := show.Columns{Align: "lrr"}
	t.Add("", "host memory a node", "GPU")
	for _, r := range rows {
		options := "offload_optimizer=" + r.Optimizer
		if r.Stage == 3 {
			options = fmt.Sprintf("offload_param=%-4s offload_optimizer=%-4s zero_init=%d", r.Param, r.Optimizer, r.ZeroInit)
		}
		t.Add("DeepSpeed, "+options, show.ByteSize(r.CPU), show.ByteSize(r.GPU))
	}
	t.Add("this plan, model states at rest", "", show.ByteSize(p.AtRest[Params]+p.AtRest[MasterCopy]+p.AtRest[OptimizerStates]))
	t.Add("this plan, all that is allocated", "", show.ByteSize(p.Allocated.Total()))
	_, err := fmt.Fprintf(out, `
DeepSpeed's own estimate of model states, which has no activations, gathered
units, buckets or context (fp16 or bf16 with Adam):

%v`, &t)
	return err
}
