package config

import (
	"fmt"
	"slices"
	"time"

	"zeroth/device"
	"zeroth/job/hf"
	"zeroth/pipe"
)

// Parallel is the arrangement of the ranks. Ranks = Pipeline × Context × Tensor × Replicate ×
// Shard × Expert.
type Parallel struct {
	Ranks      int
	Pipeline   int           // ranks that divide the model's layers
	Shard      int           // ranks that together hold one copy of the state
	Replicate  int           // replicas of each shard group; more than 1 is hybrid sharding
	Expert     int           // ranks that divide the experts of a layer
	Context    int           // ranks that divide the positions of a sequence
	Tensor     int           // ranks that divide the model's matrices
	Master     bool          // only rank 0 holds the optimizer state and updates
	Timeout    time.Duration // how long a rank waits for another before declaring it lost
	GPUs       []int         // driver's numbers of the GPUs to use; empty: all visible ones
	Memory     int64         // device memory limit of a rank in bytes; 0: all ranks share the free memory
	Collective string        // implementation of reductions between GPUs: one of Collectives
	Attention  string        // kernels of attention on GPUs: one of Attentions
	Algorithms string        // file of GPU matrix-product algorithms; "" is none
	Transport  string        // transport of collectives between processes: one of Transports
	TokenFile  string        // file with the secret that authenticates processes; "" is none
	TLS        TLS           // for control messages and TCP between processes; off if its fields are empty
	Bind       string        // address at which other processes reach this one; "" is the one it uses to reach process 0
	Join       time.Duration // how long processes wait for the others to join
	Heartbeat  time.Duration // interval of a process's heartbeats
	DeadAfter  time.Duration // a process without a heartbeat for this long is lost
}

// TLS names the PEM files by which processes authenticate each other: this process's certificate
// and key, and the authority that signed all certificates.
type TLS struct{ Cert, Key, CA string }

// DataRanks returns the number of ranks that read data of their own. Ranks that divide the model
// or a sequence read the same data.
func (p Parallel) DataRanks() int { return p.Ranks / p.Models() }

// Holders returns the number of ranks of all replicas of the shard groups, which Expert multiplies.
func (p Parallel) Holders() int { return p.DataRanks() / max(1, p.Expert) }

// Models returns the number of ranks that divide the model or the positions of a sequence.
func (p Parallel) Models() int { return max(1, p.Pipeline) * max(1, p.Context) * max(1, p.Tensor) }

// DataName returns the name for the number of ranks with their own data.
func (p Parallel) DataName() string {
	return pick(p.Models() > 1, "shard × replicate"+pick(p.Expert > 1, " × expert", ""), "ranks")
}

// AttentionLevel returns the position of a value in Attentions; empty is auto.
func AttentionLevel(value string) int { return max(0, slices.Index(Attentions, value)) }

// parallelKeys returns the keys of ranks and their devices.
func (c *Config) parallelKeys(on string) []field {
	p, z := &c.Parallel, &c.Zero
	return []field{
		{key: "device", value: choice(&c.Device, devices), initial: "auto",
			doc: "auto | cpu | cuda: device of the ranks; auto: GPUs if this binary supports them and " +
				"finds any, else the CPU"},
		{key: "parallel.ranks", value: count(&p.Ranks, 1, MostRanks),
			rule: "4, or pipeline × shard × replicate × expert × context × tensor; on GPUs, one per GPU", like: "4",
			doc: "number of ranks, which share the state and the batch"},
		{key: "parallel.pipeline", value: count(&p.Pipeline, 1, MostRanks), initial: "1",
			doc: "ranks that divide the model's layers (pipeline parallelism); train.accumulate " +
				"micro-batches pass from rank to rank"},
		{key: "parallel.shard", value: shards(&p.Shard), initial: "-1",
			doc: "ranks that together hold one copy of the state; -1 is ranks / replicate / pipeline / " +
				"expert / context / tensor",
			remark: fmt.Sprintf("%d = ranks / replicate%s%s%s%s", p.Shard, pick(p.Pipeline > 1, " / pipeline", ""),
				pick(p.Expert > 1, " / expert", ""), pick(p.Context > 1, " / context", ""), pick(p.Tensor > 1, " / tensor", ""))},
		{key: "parallel.replicate", value: count(&p.Replicate, 1, MostRanks), initial: "1",
			doc:  "copies of the sharded state; above 1: hybrid sharding (HSDP)",
			when: "at zero.stage 1, 2 and 3",
			not: refuse(z.Stage == 0 && p.Replicate > 1,
				fmt.Sprintf("stage 0 shards nothing, so there are no shards to replicate %d times: "+
					"every rank is a full replica already", p.Replicate),
				"want replicate: 1, or stage 1, 2 or 3", "zero.stage")},
		{key: "parallel.expert", value: count(&p.Expert, 1, MostRanks), initial: "1",
			doc: "ranks that divide the experts of each layer (expert parallelism); they exchange the rows of " +
				"their micro-batches, and otherwise have data and state as those of shard; best within a host",
			when: "of models with experts"},
		{key: "parallel.context", value: count(&p.Context, 1, MostRanks), initial: "1",
			doc: "ranks that divide the positions of each sequence (context parallelism); attention " +
				"gathers all keys and values"},
		{key: "parallel.tensor", value: count(&p.Tensor, 1, MostRanks), initial: "1",
			doc: "ranks that divide every layer's heads and hidden units, and the vocabulary (tensor " +
				"parallelism); best within a host"},
		{key: "parallel.master", value: flag(&p.Master), initial: "false",
			doc: "like torch.nn.DataParallel, rank 0 alone sums gradients, updates, and sends the " +
				"parameters to the others: a baseline for measurements, slower than every stage; only at " +
				"zero.stage 0"},
		{key: "parallel.timeout", value: duration(&p.Timeout), initial: "5m",
			doc: "how long to wait for a silent rank before the run fails"},
		{key: "parallel.gpus", value: ordinals(&p.GPUs), initial: "auto", like: "[0, 2]",
			doc: "cuda: list of the GPUs to use, such as [0, 2], by the driver's numbers; auto: all; " +
				"ranks are spread evenly",
			only: onlyIf("with device cuda, or auto on a machine with GPUs", on != "cpu", "device",
				"ranks compute on the CPU")},
		{key: "parallel.memory", value: bound(&p.Memory), initial: "auto", like: "4GiB",
			doc: "device memory that a rank may allocate, such as 512MiB; auto: an equal share of the " +
				"free memory"},
		{key: "parallel.collective", value: choice(&p.Collective, Collectives), initial: "auto",
			doc: "auto | exact | nccl: how ranks on GPUs sum; exact: in rank order, with the same bits as " +
				"one process; nccl: faster, in NCCL's own order; auto: nccl for several processes if each " +
				"rank has its own GPU and NCCL is installed, else exact",
			not: refuse(on != "cuda" && p.Collective == "nccl",
				"NCCL sums on GPUs, but ranks compute on the CPU", "want auto, or device: cuda", "device")},
		{key: "parallel.attention", value: choice(&p.Attention, Attentions), initial: "auto",
			doc: "auto | mma | wgmma: kernels of attention on GPUs; auto: those compared with others on hardware; mma: " +
				"also those on tensor cores for heads wider than 128 and soft caps, in bf16 and fp16; wgmma: also those for " +
				"GPUs of compute capability 9.0, such as H100 and H200",
			not: refuse(AttentionLevel(p.Attention) > 0 && (on != "cuda" || c.Precision == device.F32),
				pick(on != "cuda", "its kernels are for GPUs, but ranks compute on the CPU", "its kernels multiply bf16 and fp16, but precision is fp32"),
				"want auto, or device: cuda and another precision than fp32", "device", "precision")},
		{key: "parallel.algorithms", value: path(&p.Algorithms),
			rule: "cuBLAS chooses", like: "algorithms.json",
			doc: "file written by 'zeroth bench gpu --write-algorithms': algorithms of matrix products " +
				"for this GPU model and cuBLAS version",
			only: onlyIf("with device cuda, or auto on a machine with GPUs", on != "cpu", "device",
				"ranks compute on the CPU")},
		{key: "parallel.transport", value: choice(&p.Transport, Transports), initial: "auto",
			doc: "auto | local | unix | tcp | mpi: transport of collectives between processes; auto: MPI " +
				"if mpirun started a binary built with -tags mpi, else Unix sockets within a host and TCP " +
				"between hosts"},
		{key: "parallel.token_file", value: path(&p.TokenFile),
			rule: "none", like: "/run/secrets/zeroth", own: true,
			doc: "file with the secret with which the job's processes authenticate each other; or set " +
				"ZEROTH_TOKEN_FILE or ZEROTH_TOKEN"},
		{key: "parallel.tls.cert", value: path(&p.TLS.Cert),
			rule: "none", like: "/run/tls/tls.crt", own: true,
			doc: "this process's certificate (PEM), for mutual TLS 1.3 of control messages and TCP data " +
				"between processes",
			when: "with parallel.tls.key and parallel.tls.ca",
			not: refuse(p.TLS != (TLS{}) && (p.TLS.Cert == "" || p.TLS.Key == "" || p.TLS.CA == ""),
				"cert, key and ca are only used together", "want all three, or none",
				"parallel.tls.key", "parallel.tls.ca")},
		{key: "parallel.tls.key", value: path(&p.TLS.Key), rule: "none", like: "/run/tls/tls.key", own: true,
			doc:  "private key of parallel.tls.cert (PEM)",
			when: "with parallel.tls.cert and parallel.tls.ca"},
		{key: "parallel.tls.ca", value: path(&p.TLS.CA), rule: "none", like: "/run/tls/ca.crt", own: true,
			doc: "certificate of the authority that signs the certificates of the job's processes, and no " +
				"others",
			when: "with parallel.tls.cert and parallel.tls.key"},
		{key: "parallel.bind", value: text(&p.Bind),
			rule: "that of the route to process 0", like: "10.0.0.7", own: true,
			doc: "address, interface (eth0) or network (10.0.0.0/16) at which other processes reach this host"},
		{key: "parallel.join", value: duration(&p.Join), initial: "1m",
			doc: "how long to wait for all processes to join, and then for their connections"},
		{key: "parallel.heartbeat", value: duration(&p.Heartbeat), initial: "5s",
			doc: "interval at which each process reports that it is alive"},
		{key: "parallel.dead_after", value: duration(&p.DeadAfter), initial: "15s",
			doc: "a process that is silent for this long counts as lost; at least twice heartbeat",
			not: refuse(p.DeadAfter < 2*p.Heartbeat,
				fmt.Sprintf("a process counts as lost after %v, but reports that it is alive only every %v",
					p.DeadAfter, p.Heartbeat),
				"want dead_after of at least twice heartbeat", "parallel.heartbeat")},
	}
}

// Pipeline is the division of the layers among Parallel.Pipeline ranks and the order in which they
// are run; see package pipe.
type Pipeline struct {
	Schedule string
	Virtual  int   // stages per rank
	Layers   []int // of each stage; none: balanced by cost
}

// pipelineKeys returns the keys of the pipeline.
func (c *Config) pipelineKeys() []field {
	p, l := &c.Parallel, &c.Pipeline
	staged := onlyIf("with parallel.pipeline above 1", p.Pipeline > 1,
		"parallel.pipeline", "parallel.pipeline is 1: there are no stages")
	return []field{
		{key: "pipeline.schedule", value: choice(&l.Schedule, pipe.Schedules), initial: "1F1B",
			doc:  "GPipe | 1F1B | Interleaved1F1B | ZBH1: order in which ranks process micro-batches",
			only: staged},
		{key: "pipeline.virtual", value: count(&l.Virtual, 1, hf.MostLayers),
			rule: "1; 2 with Interleaved1F1B", like: "2",
			doc:  "stages per rank",
			only: staged,
			then: func() { l.Virtual = pick(l.Schedule == string(pipe.Interleaved), 2, 1) }},
		{key: "pipeline.layers", value: counts(&l.Layers), rule: "balanced by cost", like: "[7, 5]",
			doc:  "list of blocks per stage; the first stage also has the embedding, the last the output layer",
			only: staged},
	}
}
