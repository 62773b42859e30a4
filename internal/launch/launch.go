// Package launch starts the processes of a world, and tells a process which of them it is.
//
// A Supervisor starts processes on this machine or, through ssh and an Agent on each host, on
// several, restarts them after failures, and leaves out those that fail again. It sets variables.
// Find reads them, or those of torchrun, Kubeflow, mpirun, hydra, Slurm, SkyPilot, LeaderWorkerSet
// and Kubernetes; launchers is the table of the variables that each launcher sets.
package launch

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
	"strings"
)

// Process is the position of a process in a world of processes.
type Process struct {
	By         string // its launcher, such as "torchrun"; "" if it is alone
	Rank       int    // rank of the process
	World      int    // number of processes
	LocalWorld int    // number of processes on its host; 0 if unknown
	Ranks      int    // ranks per process; 0 if the launcher does not specify it

	Host  string // host of process 0; "" if the launcher does not specify it
	Ports []int  // it listens on the first free one
	Run   string // identifies the run: equal in all its processes

	Back []string // hosts of the run that a process which comes back asks; nil: it does not come back

	Restart int      // number of times the launcher has restarted the world
	Notes   []string // remarks for the user
}

// Alone reports whether there are no other processes.
func (p Process) Alone() bool { return p.World == 1 }

// UnderMPI reports whether mpirun or mpiexec started the process.
func (p Process) UnderMPI() bool { return p.By == openMPI || p.By == pmi }

// Names of launchers.
const openMPI, pmi, kubernetes = "Open MPI", "PMI", "Kubernetes"

// Addrs returns the addresses at which process 0 may listen.
func (p Process) Addrs() []string {
	var all []string
	for _, port := range p.Ports {
		all = append(all, net.JoinHostPort(p.Host, strconv.Itoa(port)))
	}
	return all
}

// String describes the process in one line.
func (p Process) String() string {
	if p.By == "" {
		return "one process"
	}
	s := fmt.Sprintf("process %d of %d, by %s", p.Rank, p.World, p.By)
	if p.Host != "" {
		s += ", process 0 at " + p.Addrs()[0]
	}
	return s
}

// Flags are command-line flags, which take precedence over the environment.
type Flags struct {
	Rank, World int    // World is 0 if not given
	Addr        string // host:port of process 0
	Parent      int    // parent process: distinguishes worlds on one host that the launcher does not name
}

// Env is an environment.
type Env func(name string) (value string, ok bool)

// launcher describes the variables of one launcher.
type launcher struct {
	name string
	// rank and world are the variables that it sets in every process.
	rank, world string
	hosts       bool // world lists the hosts instead of counting the processes
	localWorld  string
	restart     string
	// strict: setting only one of rank and world is an error.
	strict bool
	// loose: only one of rank and world is ignored, because other programs use the name or it
	// is also set outside worlds.
	loose bool
	// outer launchers start other launchers, which take precedence: they may differ.
	outer  bool
	locate func(*reading) // sets host, ports and run
}

// launchers in order of precedence.
var launchers = []launcher{
	{name: "zeroth", rank: "ZEROTH_RANK", world: "ZEROTH_WORLD_SIZE", localWorld: "ZEROTH_LOCAL_WORLD_SIZE",
		restart: "ZEROTH_RESTART_COUNT", strict: true, locate: (*reading).zeroth},
	{name: "torchrun", rank: "RANK", world: "WORLD_SIZE", localWorld: "LOCAL_WORLD_SIZE",
		restart: "TORCHELASTIC_RESTART_COUNT", loose: true, locate: (*reading).torch},
	{name: "Kubeflow", rank: "PET_NODE_RANK", world: "PET_NNODES", outer: true, locate: (*reading).kubeflow},
	{name: openMPI, rank: "OMPI_COMM_WORLD_RANK", world: "OMPI_COMM_WORLD_SIZE",
		localWorld: "OMPI_COMM_WORLD_LOCAL_SIZE", locate: (*reading).openMPI},
	{name: pmi, rank: "PMI_RANK", world: "PMI_SIZE", localWorld: "MPI_LOCALNRANKS", locate: (*reading).hydra},
	{name: "Slurm", rank: "SLURM_PROCID", world: "SLURM_STEP_NUM_TASKS", restart: "SLURM_RESTART_COUNT", loose: true, outer: true, locate: (*reading).slurm},
	{name: "SkyPilot", rank: "SKYPILOT_NODE_RANK", world: "SKYPILOT_NODE_IPS", hosts: true, outer: true, locate: (*reading).skyPilot},
	{name: "LeaderWorkerSet", rank: "LWS_WORKER_INDEX", world: "LWS_GROUP_SIZE", outer: true, locate: (*reading).leaderWorkerSet},
	{name: kubernetes, rank: "JOB_COMPLETION_INDEX", world: "ZEROTH_WORLD_SIZE", outer: true, locate: (*reading).kubernetes},
}

// reading is the state of reading a launcher's environment.
type reading struct {
	launcher
	env     Env
	flags   Flags
	process Process
	wrong   []error
}

// mostWorld limits the number of processes.
const mostWorld = 1 << 20

// Find determines the place of this process. Flags and ZEROTH_* variables take precedence; if
// other launchers contradict each other, the error tells the user which variables to set.
func Find(f Flags, env Env) (Process, error) {
	if f.World > 0 {
		return byFlags(f, env)
	}
	var found []Process
	var wrong, halves []error
	for _, l := range launchers {
		r := &reading{launcher: l, env: env, flags: f}
		ok := r.read()
		wrong, halves = append(wrong, r.wrong...), append(halves, r.incomplete())
		if ok {
			found = append(found, r.process)
		}
		if ok && l.name == "zeroth" {
			break
		}
	}
	if len(wrong) > 0 {
		return Process{}, errors.Join(wrong...)
	}
	if len(found) == 0 {
		if err := errors.Join(halves...); err != nil {
			return Process{}, err
		}
		return Process{Rank: 0, World: 1, LocalWorld: 1}, nil
	}
	return choose(found)
}

func byFlags(f Flags, env Env) (Process, error) {
	if f.Rank < 0 || f.Rank >= f.World {
		return Process{}, fmt.Errorf("--rank %d in a world of %d processes; want 0 to %d", f.Rank, f.World, f.World-1)
	}
	p := Process{By: "flags", Rank: f.Rank, World: f.World}
	if p.World == 1 {
		return p, nil
	}
	if f.Addr == "" {
		f.Addr, _ = env("ZEROTH_ADDR")
	}
	r := &reading{process: p, env: env}
	r.addr("--addr", f.Addr)
	return r.process, errors.Join(r.wrong...)
}

// choose returns the first of several places, if the others agree. An outer launcher, which
// starts an inner one, may differ.
func choose(found []Process) (Process, error) {
	first := found[0]
	for _, other := range found[1:] {
		same := other.Rank == first.Rank && other.World == first.World
		switch {
		case same && first.Host == "": // one starts the processes and another knows the hosts: srun --mpi=pmi2
			first.Host, first.Ports, first.Run = other.Host, other.Ports, other.Run
		case same:
		case isOuter(other.By):
			first.Notes = append(first.Notes, fmt.Sprintf("%s reports process %d of %d; assuming that it started %s, which reports %d of %d", other.By, other.Rank, other.World, first.By, first.Rank, first.World))
		default:
			return Process{}, fmt.Errorf("%s reports process %d of %d, but %s %d of %d: set ZEROTH_RANK, ZEROTH_WORLD_SIZE and ZEROTH_ADDR, or unset the variables of one launcher",
				first.By, first.Rank, first.World, other.By, other.Rank, other.World)
		}
	}
	if first.World > 1 && first.Host == "" {
		return Process{}, fmt.Errorf("%s does not give the address of process 0, and the processes are on several hosts: set ZEROTH_ADDR to host:port of process 0 (mpirun -x ZEROTH_ADDR=node0:29400)", first.By)
	}
	return first, nil
}

func isOuter(name string) bool {
	for _, l := range launchers {
		if l.name == name {
			return l.outer
		}
	}
	return false
}

// read reads the launcher's variables and reports whether they give a place.
func (r *reading) read() bool {
	rank, hasRank := r.env(r.rank)
	world, hasWorld := r.env(r.world)
	if !hasRank || !hasWorld {
		if r.strict && (hasRank || hasWorld && !r.has("JOB_COMPLETION_INDEX")) {
			r.refuse("%s and %s must be set together: one of them is missing", r.rank, r.world)
		}
		return false
	}
	if r.hosts {
		world = strconv.Itoa(len(strings.Fields(world)))
	}
	r.process = Process{By: r.name, Rank: r.number(r.rank, rank), World: r.number(r.world, world)}
	if r.name == kubernetes && r.process.World == 1 {
		r.process.Rank = 0 // each pod of the job trains alone
	}
	if len(r.wrong) == 0 && (r.process.World < 1 || r.process.World > mostWorld || r.process.Rank >= r.process.World) {
		r.refuse("%s=%s and %s=%s: want a rank from 0 to world size - 1, and at most %d processes", r.rank, rank, r.world, world, mostWorld)
	}
	if len(r.wrong) > 0 {
		return false
	}
	r.process.LocalWorld, r.process.Restart = r.optional(r.localWorld), r.optional(r.restart)
	r.locate(r)
	if given, ok := r.env("ZEROTH_ADDR"); ok {
		r.addr("ZEROTH_ADDR", given)
	}
	return len(r.wrong) == 0
}

// incomplete returns an error if the launcher's variables give a rank without a world size, or
// the reverse. Every process would then train alone.
func (r *reading) incomplete() error {
	has, lacks := r.rank, r.world
	if !r.has(has) {
		has, lacks = lacks, has
	}
	switch {
	case r.strict || r.loose || !r.has(has) || r.has(lacks) || has == "ZEROTH_WORLD_SIZE":
		return nil
	case r.name == kubernetes:
		return errors.New("JOB_COMPLETION_INDEX is set and ZEROTH_WORLD_SIZE is not, so every pod would train by itself: in the manifest set ZEROTH_WORLD_SIZE to the number of pods and ZEROTH_ADDR to <job>-0.<headless service>:29400; set ZEROTH_WORLD_SIZE=1 if each pod is to train alone")
	}
	return fmt.Errorf("%s is set and %s is not, so every process would train by itself: set both, or ZEROTH_RANK, ZEROTH_WORLD_SIZE and ZEROTH_ADDR; use --world 1 if this process is to train alone", has, lacks)
}

func (r *reading) has(name string) bool { _, ok := r.env(name); return ok }

func (r *reading) refuse(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Errorf(format, args...))
}

func (r *reading) number(name, value string) int {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		r.refuse("%s=%q: want a number of at least 0", name, value)
	}
	return n
}

func (r *reading) optional(name string) int {
	if v, ok := r.env(name); ok && name != "" {
		return r.number(name, v)
	}
	return 0
}

// get returns a variable, or "" if it is not set.
func (r *reading) get(name string) string { v, _ := r.env(name); return v }

// addr parses host:port.
func (r *reading) addr(name, value string) {
	host, port, err := net.SplitHostPort(value)
	n, bad := strconv.Atoi(port)
	if err != nil || bad != nil || n < 1 || n > 65535 || host == "" {
		r.refuse("%s=%q: want host:port of process 0, such as node0:29400", name, value)
		return
	}
	r.process.Host, r.process.Ports = host, []int{n}
}

// derivePorts computes ports from run, which all processes of a run know. Other runs are
// likely to use different ones.
func (r *reading) derivePorts(run string) {
	r.process.Run = run
	h := fnv.New32a()
	_, _ = h.Write([]byte(run)) // a hash does not fail
	first := int(h.Sum32() % 12000)
	for i := 0; len(r.process.Ports) < 8; i++ {
		port := 20000 + (first+i*1499)%12000
		if strconv.Itoa(port) != r.get("MASTER_PORT") { // where torchrun's agent may listen
			r.process.Ports = append(r.process.Ports, port)
		}
	}
}

// localHost locates process 0 on this host if all processes run there, started by one parent.
func (r *reading) localHost(name string) {
	if r.process.LocalWorld == r.process.World {
		r.process.Host, r.process.Ports = "127.0.0.1", nil
		r.derivePorts(fmt.Sprintf("%s:%d", name, r.flags.Parent))
	}
}

func (r *reading) zeroth() {
	if hosts := r.get("ZEROTH_JOIN"); hosts != "" {
		r.process.Back = strings.Split(hosts, ",")
	}
	r.process.Run = r.get("ZEROTH_RUN_ID")
	switch {
	case r.has("ZEROTH_ADDR") || r.process.World == 1:
	case r.has("ZEROTH_HOST") && r.process.Run != "": // launch on other hosts cannot know a free port
		r.process.Host = r.get("ZEROTH_HOST")
		r.derivePorts(r.process.Run)
	default:
		r.refuse("ZEROTH_ADDR is not set: want host:port of process 0, such as node0:29400")
	}
}

func (r *reading) torch() {
	r.process.Host = r.get("MASTER_ADDR")
	if r.get("TORCHELASTIC_USE_AGENT_STORE") == "True" { // torchrun itself listens there
		r.derivePorts(r.get("TORCHELASTIC_RUN_ID") + ":" + r.get("MASTER_PORT") + ":" + strconv.Itoa(r.process.Restart))
		return
	}
	if port := r.get("MASTER_PORT"); port != "" && r.process.Host != "" {
		r.addr("MASTER_ADDR:MASTER_PORT", net.JoinHostPort(r.process.Host, port))
	} else if r.process.World > 1 && !r.has("ZEROTH_ADDR") {
		lacks := "MASTER_ADDR and MASTER_PORT are not: set them"
		if port != "" {
			lacks = "MASTER_ADDR is not: set it"
		} else if r.process.Host != "" {
			lacks = "MASTER_PORT is not: set it"
		}
		r.refuse("RANK and WORLD_SIZE are set, %s, or ZEROTH_ADDR to host:port of process 0", lacks)
	}
}

// kubeflow reads a Kubeflow trainer's node without torchrun: one process with all ranks of the node.
func (r *reading) kubeflow() {
	if n := r.get("PET_NPROC_PER_NODE"); n != "" && n != "auto" && n != "cpu" && n != "gpu" {
		r.process.Ranks = r.number("PET_NPROC_PER_NODE", n)
	}
	r.process.LocalWorld = 1
	r.addr("PET_MASTER_ADDR:PET_MASTER_PORT", net.JoinHostPort(r.get("PET_MASTER_ADDR"), r.get("PET_MASTER_PORT")))
}

func (r *reading) openMPI() {
	run := r.get("PMIX_NAMESPACE")
	if run == "" {
		run = r.get("OMPI_MCA_ess_base_jobid")
	}
	r.derivePorts("openmpi:" + run)
	r.localHost("openmpi")
}

func (r *reading) hydra() {
	r.derivePorts("pmi")
	r.localHost("pmi")
}

// slurm reads a step of srun. The port is computed as in JAX.
func (r *reading) slurm() {
	first, err := FirstHost(r.get("SLURM_STEP_NODELIST"))
	if err != nil {
		r.refuse("SLURM_STEP_NODELIST: %w", err)
		return
	}
	if r.process.Host = first; r.get("SLURM_STEP_NUM_NODES") == "1" {
		r.process.Host, r.process.LocalWorld = "127.0.0.1", r.process.World
	}
	id := r.number("SLURM_JOB_ID", r.get("SLURM_JOB_ID"))
	r.process.Run = "slurm:" + r.get("SLURM_JOB_ID") + "." + r.get("SLURM_STEP_ID")
	r.process.Ports = []int{61440 + id%4096}
}

// skyPilot reads a node of a SkyPilot task: one process with a rank per GPU of the node.
func (r *reading) skyPilot() {
	r.process.Host = strings.Fields(r.get("SKYPILOT_NODE_IPS"))[0]
	r.process.LocalWorld = 1
	r.process.Ranks = r.optional("SKYPILOT_NUM_GPUS_PER_NODE")
	r.derivePorts("skypilot:" + r.get("SKYPILOT_TASK_ID"))
}

// rendezvousPort is the port of process 0 in a pod of its own.
const rendezvousPort = 29400

// leaderWorkerSet reads a pod of a LeaderWorkerSet group, which provides the name of its first pod.
func (r *reading) leaderWorkerSet() {
	r.process.Host, r.process.Ports, r.process.Run = r.get("LWS_LEADER_ADDRESS"), []int{rendezvousPort}, "lws:"+r.get("LWS_LEADER_ADDRESS")
}

func (r *reading) kubernetes() {
	if !r.has("ZEROTH_ADDR") && r.process.World > 1 {
		r.refuse("JOB_COMPLETION_INDEX is set, ZEROTH_ADDR is not: set it in the manifest, to <job>-0.<headless service>:29400")
	}
}

// FirstHost returns the first host in a Slurm list: node007 in "node[007-010,012],other".
func FirstHost(list string) (string, error) {
	open := strings.IndexAny(list, "[,")
	if open < 0 || list[open] == ',' {
		if host, _, _ := strings.Cut(list, ","); host != "" {
			return host, nil
		}
		return "", fmt.Errorf("%q contains no host", list)
	}
	ranges, rest, ok := strings.Cut(list[open+1:], "]")
	first := strings.FieldsFunc(ranges, func(c rune) bool { return c == ',' || c == '-' })
	if !ok || len(first) == 0 {
		return "", fmt.Errorf("%q contains no host", list)
	}
	if next := strings.IndexByte(rest, ','); next >= 0 {
		rest = rest[:next]
	}
	return list[:open] + first[0] + rest, nil
}
