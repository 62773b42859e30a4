package launch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"zeroth/internal/launch"
	"zeroth/tests/nightly"
)

// env parses an environment as printed by `env`, with \n for a newline in a value.
func env(lines string) launch.Env {
	vars := map[string]string{}
	for _, line := range strings.Fields(lines) {
		name, value, _ := strings.Cut(line, "=")
		vars[name] = strings.ReplaceAll(value, `\n`, "\n")
	}
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

// Environments of one process of a world, as set by launchers.
const (
	torchrun = `LOCAL_RANK=1 RANK=5 GROUP_RANK=1 ROLE_RANK=5 ROLE_NAME=default LOCAL_WORLD_SIZE=4 WORLD_SIZE=8 GROUP_WORLD_SIZE=2
		ROLE_WORLD_SIZE=8 MASTER_ADDR=node0 MASTER_PORT=29500 TORCHELASTIC_RESTART_COUNT=1 TORCHELASTIC_MAX_RESTARTS=3
		TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True OMP_NUM_THREADS=1`
	oldTorchrun = `LOCAL_RANK=1 RANK=1 LOCAL_WORLD_SIZE=2 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=False`
	openMPI     = `OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4
		OMPI_COMM_WORLD_NODE_RANK=2 OMPI_UNIVERSE_SIZE=4 PMIX_RANK=2 PMIX_NAMESPACE=2788622337 OMPI_MCA_orte_hnp_uri=2788622336.0;tcp://10.0.0.4:41241`
	// Open MPI 5 starts processes with PRRTE, whose variables differ from ORTE's.
	openMPI5 = `OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1
		OMPI_UNIVERSE_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=prterun-node0-4711@1 PMIX_VERSION=5.0.1 PMIX_SERVER_URI41=prterun-node0-4711@0.0;tcp4://127.0.0.1:36175
		PRTE_LAUNCHED=1`
	// srun --mpi=pmi2, for MPICH, and --mpi=pmix, for Open MPI: Slurm's variables in addition
	// to the MPI's.
	srunPMI2 = srun + ` PMI_RANK=3 PMI_SIZE=4 PMI_FD=12 PMI_JOBID=4242.0`
	srunPMIx = srun + ` PMIX_RANK=3 PMIX_NAMESPACE=slurm.pmix.4242.0 PMIX_SERVER_URI3=pmix-server.1;tcp4://127.0.0.1:40000`
	hydra    = `PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MPIR_CVAR_CH3_INTERFACE_HOSTNAME=h`
	srun     = `SLURM_JOB_ID=4242 SLURM_JOBID=4242 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_LOCALID=1 SLURM_NODEID=1
		SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=node[007-008] SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_NNODES=2`
	sbatch   = `SLURM_JOB_ID=4242 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NODELIST=node[007-008]`
	kubeflow = `PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job PET_MASTER_PORT=29500`
	indexed  = `JOB_COMPLETION_INDEX=3 ZEROTH_WORLD_SIZE=4 ZEROTH_ADDR=job-0.svc:29400`
	jobSet   = `JOB_COMPLETION_INDEX=2 ZEROTH_WORLD_SIZE=4 ZEROTH_ADDR=zeroth-worker-0-0.zeroth:29400 HOSTNAME=zeroth-worker-0-2`
	// Kubeflow Trainer's pods belong to a JobSet; its older operator sets torch's variables.
	trainer  = kubeflow + ` JOB_COMPLETION_INDEX=1`
	operator = `PYTHONUNBUFFERED=1 MASTER_PORT=23456 PET_MASTER_PORT=23456 MASTER_ADDR=job-master-0 PET_MASTER_ADDR=job-master-0 WORLD_SIZE=3 RANK=2
		PET_NODE_RANK=2 PET_NNODES=3 PET_NPROC_PER_NODE=1`
	// A SkyPilot task on two nodes of eight GPUs, and one on nodes without; the addresses are lines.
	sky    = `SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_IPS=10.0.0.7\n10.0.0.8 SKYPILOT_NUM_GPUS_PER_NODE=8 SKYPILOT_TASK_ID=sky-2026-11-27-10-00-00-123456_train_1`
	skyCPU = `SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_IPS=10.0.0.7\n10.0.0.8\n SKYPILOT_NUM_GPUS_PER_NODE=0 SKYPILOT_TASK_ID=sky-2026-11-27-10-00-00-123456_train_1`
	lws    = `LWS_LEADER_ADDRESS=zeroth-0.zeroth.default LWS_GROUP_SIZE=4 LWS_WORKER_INDEX=2 HOSTNAME=zeroth-0-2`
	zeroth = `ZEROTH_RANK=0 ZEROTH_WORLD_SIZE=2 ZEROTH_LOCAL_RANK=0 ZEROTH_LOCAL_WORLD_SIZE=2 ZEROTH_ADDR=127.0.0.1:40001 ZEROTH_RUN_ID=ab`
)

func TestFind(t *testing.T) {
	for _, c := range []struct {
		env   string
		flags launch.Flags
		want  string // By Rank/World LocalWorld Ranks host:ports restart
	}{
		{"", launch.Flags{}, " 0/1 1 0 :[] 0"},
		{torchrun, launch.Flags{}, "torchrun 5/8 4 0 node0:8 derived 1"},
		{oldTorchrun, launch.Flags{}, "torchrun 1/2 2 0 localhost:[29500] 0"},
		{openMPI, launch.Flags{}, "Open MPI 2/4 4 0 127.0.0.1:8 derived 0"},
		{openMPI5, launch.Flags{}, "Open MPI 1/2 2 0 127.0.0.1:8 derived 0"},
		{srunPMI2, launch.Flags{}, "PMI 3/4 0 0 node007:[61586] 0"},
		{srunPMIx, launch.Flags{}, "Slurm 3/4 0 0 node007:[61586] 0"},
		{jobSet, launch.Flags{}, "Kubernetes 2/4 0 0 zeroth-worker-0-0.zeroth:[29400] 0"},
		{trainer, launch.Flags{}, "Kubeflow 1/2 1 4 job-node-0-0.job:[29500] 0"},
		{operator, launch.Flags{}, "torchrun 2/3 0 0 job-master-0:[23456] 0"},
		{hydra, launch.Flags{}, "PMI 1/2 2 0 127.0.0.1:8 derived 0"},
		{srun, launch.Flags{}, "Slurm 3/4 0 0 node007:[61586] 0"},
		{strings.ReplaceAll(srun, "NUM_NODES=2", "NUM_NODES=1"), launch.Flags{}, "Slurm 3/4 4 0 127.0.0.1:[61586] 0"},
		{sbatch, launch.Flags{}, " 0/1 1 0 :[] 0"},
		{kubeflow, launch.Flags{}, "Kubeflow 1/2 1 4 job-node-0-0.job:[29500] 0"},
		{strings.ReplaceAll(kubeflow, "NODE=4", "NODE=auto"), launch.Flags{}, "Kubeflow 1/2 1 0 job-node-0-0.job:[29500] 0"},
		{indexed, launch.Flags{}, "Kubernetes 3/4 0 0 job-0.svc:[29400] 0"},
		{sky, launch.Flags{}, "SkyPilot 1/2 1 8 10.0.0.7:8 derived 0"},
		{skyCPU, launch.Flags{}, "SkyPilot 0/2 1 0 10.0.0.7:8 derived 0"},
		{sky + " ZEROTH_ADDR=10.0.0.7:29400", launch.Flags{}, "SkyPilot 1/2 1 8 10.0.0.7:[29400] 0"},
		{sky + " " + torchrun, launch.Flags{}, "torchrun 5/8 4 0 node0:8 derived 1"},
		{"SKYPILOT_NODE_RANK=0 SKYPILOT_NODE_IPS=10.0.0.7 SKYPILOT_NUM_GPUS_PER_NODE=4", launch.Flags{}, "SkyPilot 0/1 1 4 10.0.0.7:8 derived 0"},
		{lws, launch.Flags{}, "LeaderWorkerSet 2/4 0 0 zeroth-0.zeroth.default:[29400] 0"},
		{lws + " " + zeroth, launch.Flags{}, "zeroth 0/2 2 0 127.0.0.1:[40001] 0"},
		{zeroth, launch.Flags{}, "zeroth 0/2 2 0 127.0.0.1:[40001] 0"},
		// precedence
		{zeroth + " " + torchrun, launch.Flags{}, "zeroth 0/2 2 0 127.0.0.1:[40001] 0"},
		{zeroth + " " + torchrun, launch.Flags{Rank: 1, World: 3, Addr: "h:1"}, "flags 1/3 0 0 h:[1] 0"},
		{srun + " " + torchrun, launch.Flags{}, "torchrun 5/8 4 0 node0:8 derived 1"},
		{srun + " " + openMPI, launch.Flags{}, "Open MPI 2/4 4 0 127.0.0.1:8 derived 0"},
		{srun + " ZEROTH_ADDR=[fd00::1]:7", launch.Flags{}, "Slurm 3/4 0 0 fd00::1:[7] 0"},
		{"RANK=1", launch.Flags{}, " 0/1 1 0 :[] 0"}, // a generic name
		// a variable of an outer launcher that does not give the number of processes
		{torchrun + " JOB_COMPLETION_INDEX=1", launch.Flags{}, "torchrun 5/8 4 0 node0:8 derived 1"},
		{zeroth + " JOB_COMPLETION_INDEX=1", launch.Flags{}, "zeroth 0/2 2 0 127.0.0.1:[40001] 0"},
		{"JOB_COMPLETION_INDEX=1", launch.Flags{World: 1}, "flags 0/1 0 0 :[] 0"},
		// pods that each train alone
		{"JOB_COMPLETION_INDEX=3 ZEROTH_WORLD_SIZE=1", launch.Flags{}, "Kubernetes 0/1 0 0 :[] 0"},
	} {
		p, err := launch.Find(c.flags, env(c.env))
		if err != nil {
			t.Errorf("%s: %v", c.env, err)
			continue
		}
		ports := fmt.Sprint(p.Ports)
		if len(p.Ports) > 1 {
			ports = fmt.Sprintf("%d derived", len(p.Ports))
		}
		if got := fmt.Sprintf("%s %d/%d %d %d %s:%s %d", p.By, p.Rank, p.World, p.LocalWorld, p.Ranks, p.Host, ports, p.Restart); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.env, got, c.want)
		}
	}
}

func TestFindRefuses(t *testing.T) {
	for _, c := range []struct {
		env   string
		flags launch.Flags
		want  string
	}{
		{openMPI5 + " " + hydra + " PMI_RANK=0", launch.Flags{}, "Open MPI reports process 1 of 2, but PMI 0 of 2: set ZEROTH_RANK"},
		{torchrun + " " + openMPI, launch.Flags{}, "torchrun reports process 5 of 8, but Open MPI 2 of 4: set ZEROTH_RANK"},
		{"ZEROTH_RANK=1", launch.Flags{}, "ZEROTH_RANK and ZEROTH_WORLD_SIZE must be set together"},
		{"ZEROTH_WORLD_SIZE=4", launch.Flags{}, "ZEROTH_RANK and ZEROTH_WORLD_SIZE must be set together"},
		{"ZEROTH_RANK=1 ZEROTH_WORLD_SIZE=2", launch.Flags{}, "ZEROTH_ADDR is not set"},
		{"ZEROTH_RANK=2 ZEROTH_WORLD_SIZE=2 ZEROTH_ADDR=h:1", launch.Flags{}, "want a rank from 0 to world size - 1"},
		{"ZEROTH_RANK=x ZEROTH_WORLD_SIZE=2 ZEROTH_ADDR=h:1", launch.Flags{}, `ZEROTH_RANK="x": want a number`},
		{"ZEROTH_RANK=1 ZEROTH_WORLD_SIZE=99999999999999999999 ZEROTH_ADDR=h:1", launch.Flags{}, `want a number`},
		{"ZEROTH_RANK=1 ZEROTH_WORLD_SIZE=2 ZEROTH_ADDR=h", launch.Flags{}, `ZEROTH_ADDR="h": want host:port`},
		{"RANK=1 WORLD_SIZE=2", launch.Flags{}, "MASTER_ADDR and MASTER_PORT are not: set them"},
		{strings.ReplaceAll(openMPI, "LOCAL_SIZE=4", "LOCAL_SIZE=2"), launch.Flags{}, "Open MPI does not give the address of process 0"},
		{"JOB_COMPLETION_INDEX=1 ZEROTH_WORLD_SIZE=2", launch.Flags{}, "ZEROTH_ADDR is not"},
		{"JOB_COMPLETION_INDEX=0", launch.Flags{}, "ZEROTH_WORLD_SIZE=1"},
		{"JOB_COMPLETION_INDEX=3", launch.Flags{}, "every pod would train by itself"},
		{sbatch + " JOB_COMPLETION_INDEX=3", launch.Flags{}, "every pod would train by itself"},
		{"PET_NNODES=1:3 PET_RDZV_BACKEND=c10d", launch.Flags{}, "PET_NNODES is set and PET_NODE_RANK is not"},
		{"SKYPILOT_NODE_RANK=1", launch.Flags{}, "SKYPILOT_NODE_IPS is not"},
		{"SKYPILOT_NODE_RANK=2 SKYPILOT_NODE_IPS=a\\nb", launch.Flags{}, "want a rank from 0 to world size - 1"},
		{"SKYPILOT_NODE_RANK=0 SKYPILOT_NODE_IPS=", launch.Flags{}, "want a rank from 0 to world size - 1"},
		{strings.ReplaceAll(sky, "NODE=8", "NODE=many"), launch.Flags{}, `SKYPILOT_NUM_GPUS_PER_NODE="many": want a number`},
		{"LWS_GROUP_SIZE=4 LWS_LEADER_ADDRESS=a", launch.Flags{}, "LWS_GROUP_SIZE is set and LWS_WORKER_INDEX is not"},
		{"LWS_GROUP_SIZE=4 LWS_WORKER_INDEX=1", launch.Flags{}, "LeaderWorkerSet does not give the address of process 0"},
		{"OMPI_COMM_WORLD_RANK=1", launch.Flags{}, "OMPI_COMM_WORLD_SIZE is not"},
		{strings.ReplaceAll(srun, "node[007-008]", "["), launch.Flags{}, `SLURM_STEP_NODELIST: "[" contains no host`},
		{"", launch.Flags{Rank: 3, World: 3, Addr: "h:1"}, "--rank 3 in a world of 3 processes; want 0 to 2"},
		{"", launch.Flags{World: 3}, `--addr="": want host:port`},
	} {
		if _, err := launch.Find(c.flags, env(c.env)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", c.env, err, c.want)
		}
	}
}

// TestDerivedPorts checks that processes of a run derive the same ports, likely different from
// those of other runs.
func TestDerivedPorts(t *testing.T) {
	nightly.Long(t)
	find := func(e string, parent int) launch.Process {
		p, err := launch.Find(launch.Flags{Parent: parent}, env(e))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if first, second := find(sky, 0), find(skyCPU, 0); !slices.Equal(first.Ports, second.Ports) || first.Run != second.Run {
		t.Errorf("nodes of one task: %v, %v", first.Ports, second.Ports)
	}
	a, b, c := find(hydra, 7), find(strings.ReplaceAll(hydra, "RANK=1", "RANK=0"), 7), find(hydra, 8)
	if fmt.Sprint(a.Ports) != fmt.Sprint(b.Ports) || fmt.Sprint(a.Ports) == fmt.Sprint(c.Ports) || a.Run != b.Run || a.Run == c.Run {
		t.Errorf("ports %v, %v of one run, %v of another", a.Ports, b.Ports, c.Ports)
	}
	for _, p := range a.Ports {
		if p < 1024 || p > 65535 {
			t.Errorf("port %d", p)
		}
	}
	held := 0
	for run := range 1000 {
		for port := 29490; port < 29510; port++ {
			e := strings.NewReplacer("RUN_ID=none", fmt.Sprint("RUN_ID=", run), "MASTER_PORT=29500", fmt.Sprint("MASTER_PORT=", port)).Replace(torchrun)
			if p := find(e, 0); len(p.Ports) != 8 || slices.Contains(p.Ports, port) {
				held++
			}
		}
	}
	if held > 0 {
		t.Errorf("%d times the port that torchrun's agent holds", held)
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{"a": "a", "a,b": "a", "node[007-010,012],x": "node007", "n[3,5]": "n3", "n[1-2]-ib,z": "n1-ib", "x,n[1-2]": "x"} {
		if got, err := launch.FirstHost(list); got != want || err != nil {
			t.Errorf("%s: %q %v, want %s", list, got, err, want)
		}
	}
	for _, list := range []string{"", "[", "n[]", "n[1-2", ","} {
		if got, err := launch.FirstHost(list); err == nil {
			t.Errorf("%q gives %q", list, got)
		}
	}
}
