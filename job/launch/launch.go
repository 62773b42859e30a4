// Package launch finds out from the environment which process of a world this
// one is: by what zeroth launch, torchrun, Kubeflow, mpirun, hydra, Slurm or
// Kubernetes set.
//
// What never enters: the network, the job, and the variables of this process
// themselves: who calls hands them in.
//
// Begin with Find; launchers is the table of what each one sets.
package launch

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
	"strings"
)

// Place is a process in a world of processes.
type Place struct {
	By         string // who launched it: "torchrun"; "" where nobody did and it is alone
	Rank       int    // of the process
	World      int    // processes
	Local      int    // of the process on its host
	LocalWorld int    // processes on its host; 0 where unknown
	Ranks      int    // a process, where the launcher says; 0 where it does not

	Host  string // where process 0 is; "" where the launcher does not say
	Ports []int  // at one of which it listens: the first that is free
	Run   string // what launched processes have in common, and other runs have not

	Restart int      // how often the launcher has started the world again
	Notes   []string // what is worth telling
}

// Alone is whether there are no others.
func (p Place) Alone() bool { return p.World == 1 }

// UnderMPI is whether mpirun or mpiexec brought the process.
func (p Place) UnderMPI() bool { return p.By == openMPI || p.By == pmi }

// Names of launchers.
const openMPI, pmi, kubernetes = "Open MPI", "PMI", "Kubernetes"

// Addrs are where process 0 may listen.
func (p Place) Addrs() []string {
	var all []string
	for _, port := range p.Ports {
		all = append(all, net.JoinHostPort(p.Host, strconv.Itoa(port)))
	}
	return all
}

// String is the place in a line.
func (p Place) String() string {
	if p.By == "" {
		return "one process"
	}
	s := fmt.Sprintf("process %d of %d, by %s", p.Rank, p.World, p.By)
	if p.Host != "" {
		s += ", process 0 at " + p.Addrs()[0]
	}
	return s
}

// Flags are what a user says on the command line; it goes before the
// environment.
type Flags struct {
	Rank, World int    // World 0: not given
	Addr        string // host:port of process 0
	Parent      int    // process that started this one: tells worlds of one host apart whose launcher gives them no name
}

// Env is an environment.
type Env func(name string) (value string, ok bool)

// launcher reads one launcher's variables.
type launcher struct {
	name string
	// rank and world are the variables that it sets always, in every process.
	rank, world       string
	local, localWorld string
	restart           string
	// strict: who sets one of rank and world and not the other has made a mistake.
	strict bool
	// loose: one of rank and world alone means nothing: the name is anybody's, or
	// is set outside of worlds, too.
	loose bool
	// outer launchers start others, whose word counts: they may differ.
	outer bool
	where func(*reading) // sets host, ports and run
}

// launchers by precedence.
var launchers = []launcher{
	{name: "zeroth", rank: "ZEROTH_RANK", world: "ZEROTH_WORLD_SIZE", local: "ZEROTH_LOCAL_RANK", localWorld: "ZEROTH_LOCAL_WORLD_SIZE",
		restart: "ZEROTH_RESTART_COUNT", strict: true, where: (*reading).zeroth},
	{name: "torchrun", rank: "RANK", world: "WORLD_SIZE", local: "LOCAL_RANK", localWorld: "LOCAL_WORLD_SIZE",
		restart: "TORCHELASTIC_RESTART_COUNT", loose: true, where: (*reading).torch},
	{name: "Kubeflow", rank: "PET_NODE_RANK", world: "PET_NNODES", outer: true, where: (*reading).kubeflow},
	{name: openMPI, rank: "OMPI_COMM_WORLD_RANK", world: "OMPI_COMM_WORLD_SIZE", local: "OMPI_COMM_WORLD_LOCAL_RANK",
		localWorld: "OMPI_COMM_WORLD_LOCAL_SIZE", where: (*reading).openMPI},
	{name: pmi, rank: "PMI_RANK", world: "PMI_SIZE", local: "MPI_LOCALRANKID", localWorld: "MPI_LOCALNRANKS", where: (*reading).hydra},
	{name: "Slurm", rank: "SLURM_PROCID", world: "SLURM_STEP_NUM_TASKS", local: "SLURM_LOCALID", restart: "SLURM_RESTART_COUNT", loose: true, outer: true, where: (*reading).slurm},
	{name: kubernetes, rank: "JOB_COMPLETION_INDEX", world: "ZEROTH_WORLD_SIZE", outer: true, where: (*reading).kubernetes},
}

// reading is a launcher's environment on its way to a Place.
type reading struct {
	launcher
	env   Env
	flags Flags
	place Place
	wrong []error
}

// mostWorld bounds what is believed.
const mostWorld = 1 << 20

// Find is where this process stands. Launchers that are given by flags or by
// ZEROTH_* variables are believed; of others that contradict each other it is
// an error that says what to set.
func Find(f Flags, env Env) (Place, error) {
	if f.World > 0 {
		return byFlags(f, env)
	}
	var found []Place
	var wrong, halves []error
	for _, l := range launchers {
		r := &reading{launcher: l, env: env, flags: f}
		ok := r.read()
		wrong, halves = append(wrong, r.wrong...), append(halves, r.half())
		if ok {
			found = append(found, r.place)
		}
		if ok && l.name == "zeroth" {
			break
		}
	}
	if len(wrong) > 0 {
		return Place{}, errors.Join(wrong...)
	}
	if len(found) == 0 {
		if err := errors.Join(halves...); err != nil {
			return Place{}, err
		}
		return Place{Rank: 0, World: 1, LocalWorld: 1}, nil
	}
	return chosen(found)
}

func byFlags(f Flags, env Env) (Place, error) {
	if f.Rank < 0 || f.Rank >= f.World {
		return Place{}, fmt.Errorf("--rank %d in a world of %d processes; want 0 to %d", f.Rank, f.World, f.World-1)
	}
	p := Place{By: "flags", Rank: f.Rank, World: f.World}
	if p.World == 1 {
		return p, nil
	}
	if f.Addr == "" {
		f.Addr, _ = env("ZEROTH_ADDR")
	}
	r := &reading{place: p, env: env}
	r.addr("--addr", f.Addr)
	return r.place, errors.Join(r.wrong...)
}

// chosen is the first of several, if those beside it agree. An outer launcher
// starts an inner one, and may be of another opinion.
func chosen(found []Place) (Place, error) {
	first := found[0]
	for _, other := range found[1:] {
		same := other.Rank == first.Rank && other.World == first.World
		switch {
		case same && first.Host == "": // one starts the processes and another knows the hosts: srun --mpi=pmi2
			first.Host, first.Ports, first.Run = other.Host, other.Ports, other.Run
		case same:
		case isOuter(other.By):
			first.Notes = append(first.Notes, fmt.Sprintf("%s says process %d of %d; it is taken to have started %s, which says %d of %d", other.By, other.Rank, other.World, first.By, first.Rank, first.World))
		default:
			return Place{}, fmt.Errorf("%s says process %d of %d, %s says %d of %d: say which by ZEROTH_RANK, ZEROTH_WORLD_SIZE and ZEROTH_ADDR, or unset one's variables",
				first.By, first.Rank, first.World, other.By, other.Rank, other.World)
		}
	}
	if first.World > 1 && first.Host == "" {
		return Place{}, fmt.Errorf("%s does not say where process 0 is, and the processes are on several hosts: set ZEROTH_ADDR to host:port of process 0 (mpirun -x ZEROTH_ADDR=node0:29400)", first.By)
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

// read is whether the launcher's variables make a place.
func (r *reading) read() bool {
	rank, hasRank := r.env(r.rank)
	world, hasWorld := r.env(r.world)
	if !hasRank || !hasWorld {
		if r.strict && (hasRank || hasWorld && !r.has("JOB_COMPLETION_INDEX")) {
			r.refuse("%s and %s go together: one of them is not set", r.rank, r.world)
		}
		return false
	}
	r.place = Place{By: r.name, Rank: r.number(r.rank, rank), World: r.number(r.world, world)}
	if r.name == kubernetes && r.place.World == 1 {
		r.place.Rank = 0 // pods of one job that each train alone
	}
	if len(r.wrong) == 0 && (r.place.World < 1 || r.place.World > mostWorld || r.place.Rank >= r.place.World) {
		r.refuse("%s=%s and %s=%s: want a rank from 0 to world size - 1, and at most %d processes", r.rank, rank, r.world, world, mostWorld)
	}
	if len(r.wrong) > 0 {
		return false
	}
	r.place.Local, r.place.LocalWorld, r.place.Restart = r.optional(r.local), r.optional(r.localWorld), r.optional(r.restart)
	r.where(r)
	if given, ok := r.env("ZEROTH_ADDR"); ok {
		r.addr("ZEROTH_ADDR", given)
	}
	return len(r.wrong) == 0
}

// half is an error if the launcher's variables give a rank without a world size, or
// a world size without a rank. Every process would then train alone.
func (r *reading) half() error {
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

// get is a variable, empty if it is not set.
func (r *reading) get(name string) string { v, _ := r.env(name); return v }

// addr takes host:port.
func (r *reading) addr(name, value string) {
	host, port, err := net.SplitHostPort(value)
	n, bad := strconv.Atoi(port)
	if err != nil || bad != nil || n < 1 || n > 65535 || host == "" {
		r.refuse("%s=%q: want host:port of process 0, such as node0:29400", name, value)
		return
	}
	r.place.Host, r.place.Ports = host, []int{n}
}

// derived are ports that a run's processes all know, and other runs likely do not
// use.
func (r *reading) derived(run string) {
	r.place.Run = run
	h := fnv.New32a()
	_, _ = h.Write([]byte(run)) // a hash does not fail
	first := int(h.Sum32() % 12000)
	for i := 0; len(r.place.Ports) < 8; i++ {
		port := 20000 + (first+i*1499)%12000
		if strconv.Itoa(port) != r.get("MASTER_PORT") { // where torchrun's agent may listen
			r.place.Ports = append(r.place.Ports, port)
		}
	}
}

// here is process 0 on this host, if all are there, started by one parent.
func (r *reading) here(name string) {
	if r.place.LocalWorld == r.place.World {
		r.place.Host, r.place.Ports = "127.0.0.1", nil
		r.derived(fmt.Sprintf("%s:%d", name, r.flags.Parent))
	}
}

func (r *reading) zeroth() {
	r.place.Run = r.get("ZEROTH_RUN_ID")
	if !r.has("ZEROTH_ADDR") && r.place.World > 1 {
		r.refuse("ZEROTH_ADDR is not set: want host:port of process 0, such as node0:29400")
	}
}

func (r *reading) torch() {
	r.place.Host = r.get("MASTER_ADDR")
	if r.get("TORCHELASTIC_USE_AGENT_STORE") == "True" { // then torchrun itself listens there
		r.derived(r.get("TORCHELASTIC_RUN_ID") + ":" + r.get("MASTER_PORT") + ":" + strconv.Itoa(r.place.Restart))
		return
	}
	if port := r.get("MASTER_PORT"); port != "" && r.place.Host != "" {
		r.addr("MASTER_ADDR:MASTER_PORT", net.JoinHostPort(r.place.Host, port))
	} else if r.place.World > 1 && !r.has("ZEROTH_ADDR") {
		r.refuse("RANK and WORLD_SIZE are set, MASTER_ADDR and MASTER_PORT are not: set them, or ZEROTH_ADDR to host:port of process 0")
	}
}

// kubeflow is a Kubeflow trainer's node without torchrun: one process, with the
// node's ranks in it.
func (r *reading) kubeflow() {
	if n := r.get("PET_NPROC_PER_NODE"); n != "" && n != "auto" && n != "cpu" && n != "gpu" {
		r.place.Ranks = r.number("PET_NPROC_PER_NODE", n)
	}
	r.place.LocalWorld = 1
	r.addr("PET_MASTER_ADDR:PET_MASTER_PORT", net.JoinHostPort(r.get("PET_MASTER_ADDR"), r.get("PET_MASTER_PORT")))
}

func (r *reading) openMPI() {
	run := r.get("PMIX_NAMESPACE")
	if run == "" {
		run = r.get("OMPI_MCA_ess_base_jobid")
	}
	r.derived("openmpi:" + run)
	r.here("openmpi")
}

func (r *reading) hydra() {
	r.derived("pmi")
	r.here("pmi")
}

// slurm is a step of srun. The port is that which JAX takes.
func (r *reading) slurm() {
	first, err := FirstHost(r.get("SLURM_STEP_NODELIST"))
	if err != nil {
		r.refuse("SLURM_STEP_NODELIST: %w", err)
		return
	}
	if r.place.Host = first; r.get("SLURM_STEP_NUM_NODES") == "1" {
		r.place.Host, r.place.LocalWorld = "127.0.0.1", r.place.World
	}
	id := r.number("SLURM_JOB_ID", r.get("SLURM_JOB_ID"))
	r.place.Run = "slurm:" + r.get("SLURM_JOB_ID") + "." + r.get("SLURM_STEP_ID")
	r.place.Ports = []int{61440 + id%4096}
}

func (r *reading) kubernetes() {
	if !r.has("ZEROTH_ADDR") && r.place.World > 1 {
		r.refuse("JOB_COMPLETION_INDEX is set, ZEROTH_ADDR is not: set it in the manifest, to <job>-0.<headless service>:29400")
	}
}

// FirstHost is the first of a Slurm list of hosts: node007 of
// "node[007-010,012],other".
func FirstHost(list string) (string, error) {
	open := strings.IndexAny(list, "[,")
	if open < 0 || list[open] == ',' {
		if host, _, _ := strings.Cut(list, ","); host != "" {
			return host, nil
		}
		return "", fmt.Errorf("%q names no host", list)
	}
	ranges, rest, ok := strings.Cut(list[open+1:], "]")
	first := strings.FieldsFunc(ranges, func(c rune) bool { return c == ',' || c == '-' })
	if !ok || len(first) == 0 {
		return "", fmt.Errorf("%q names no host", list)
	}
	if next := strings.IndexByte(rest, ','); next >= 0 {
		rest = rest[:next]
	}
	return list[:open] + first[0] + rest, nil
}
