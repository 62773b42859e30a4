package tests

// deepSpeedRow is the result of DeepSpeed's own estimators for one set of options. They count
// only model states: no activations, buckets, gathered units or context.
type deepSpeedRow struct {
	Stage     int // 2 or 3; other stages have no estimator
	Param     string
	Optimizer string
	ZeroInit  int   // 1: parameters are sharded when they are created; stage 3
	CPU       int64 // bytes of host memory per node
	GPU       int64 // bytes per GPU
}

// deepSpeed reproduces estimate_zero2_model_states_mem_needs and
// estimate_zero3_model_states_mem_needs (deepspeedai/DeepSpeed edaa7221,
// runtime/zero/stage_1_and_2.py and stage3.py) for a model with params parameters, largest of
// them in its largest layer, on nodes with gpus GPUs each and the default
// additional_buffer_factor of 1.5. With P parameters, L in the largest layer, N GPUs in total and
// g per node:
//
//	stage 2, optimizer on cpu:  GPU 2P           CPU 1.5 P max(4N, 16)
//	         none:              GPU 2P + 18P/N   CPU 1.5 · 4Pg
//	stage 3, both on cpu:       GPU 4L           CPU 1.5 · 18P/nodes
//	         optimizer on cpu:  GPU 4L + 2P/N    CPU 1.5 · 16P/nodes
//	         none:              GPU 4L + 18P/N   CPU 1.5 · 4Lg
//
// For stage 3 without zero.Init the CPU needs 1.5 P max(4g, the factor above), or 1.5 · 4Pg
// without offload. Rows are in the order in which they are printed.
func deepSpeed(stage int, params, largest int64, gpus, nodes int) []deepSpeedRow {
	const factor = 1.5
	P, L, g, n := float64(params), float64(largest), float64(gpus), float64(nodes)
	N := g * n
	row := func(param, optimizer string, zeroInit int, cpu, gpu float64) deepSpeedRow {
		return deepSpeedRow{stage, param, optimizer, zeroInit, int64(cpu * factor), int64(gpu)}
	}
	if stage < 3 {
		return []deepSpeedRow{
			row("", "cpu", 0, P*max(4*N, 16), 2*P),
			row("", "none", 0, 4*P*g, 2*P+18*P/N),
		}
	}
	return []deepSpeedRow{
		row("cpu", "cpu", 1, 18*P/n, 4*L),
		row("cpu", "cpu", 0, P*max(4*g, 18/n), 4*L),
		row("none", "cpu", 1, 16*P/n, 4*L+2*P/N),
		row("none", "cpu", 0, P*max(4*g, 16/n), 4*L+2*P/N),
		row("none", "none", 1, 4*L*g, 4*L+18*P/N),
		row("none", "none", 0, 4*P*g, 4*L+18*P/N),
	}
}
