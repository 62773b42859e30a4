// Package foreign reads checkpoints of DeepSpeed and PyTorch, tensor by tensor.
//
// Open recognizes
//
//	DeepSpeed ZeRO            a folder global_stepN, or the folder above it with the file latest
//	DeepSpeed universal       a folder with zero/NAME/fp32.pt
//	DCP                       a folder with .metadata, of torch.distributed.checkpoint; also
//	                          pytorch_model_fsdp_0 and optimizer_0 of Accelerate
//	DCP in safetensors        files shard-0000R-model-0000I-of-0000N.safetensors
//	DTensor files             model_world_size_W_rank_R.pt and optim_world_size_W_rank_R.pt
//	torch.save                pytorch_model.bin, or parts and their index
//
// and describes each as tensors consisting of pieces: boxes of elements, each in a file. Elements
// are read when they are needed. A parameter has kind checkpoint.Master; moments keep PyTorch's
// names, exp_avg and exp_avg_sq, which zeroth uses, too.
//
// Pieces must cover every tensor exactly once, and all parts of a checkpoint must agree on names,
// shapes, steps and numbers of ranks. Otherwise the error names the parameter.
package foreign
