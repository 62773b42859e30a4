package repo

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"zeroth/internal/launch"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
)

// A manifest holds the parts of examples/cluster's manifests that tests inspect, of every kind:
// published schemas hold which key is where.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Name                string
		Labels, Annotations map[string]string
	}
	Data map[string]string
	Spec manifestSpec
}

type manifestSpec struct {
	// Services and volumes.
	ClusterIP                string `yaml:"clusterIP"`
	PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
	Selector                 map[string]string
	Ports                    []struct{ Port int }
	AccessModes              []string `yaml:"accessModes"`

	// Jobs.
	CompletionMode   string `yaml:"completionMode"`
	Completions      int
	Parallelism      int
	PodFailurePolicy struct {
		Rules []struct {
			Action      string
			OnExitCodes struct {
				ContainerName string `yaml:"containerName"`
				Operator      string
				Values        []int
			} `yaml:"onExitCodes"`
		}
	} `yaml:"podFailurePolicy"`
	Template *manifest

	// Pods.
	SchedulerName                 string `yaml:"schedulerName"`
	Subdomain                     string
	RestartPolicy                 string `yaml:"restartPolicy"`
	TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
	Containers                    []container
	Volumes                       []struct {
		Name      string
		ConfigMap struct{ Name string } `yaml:"configMap"`
		Claim     struct {
			Name string `yaml:"claimName"`
		} `yaml:"persistentVolumeClaim"`
	}

	// JobSets, and the runtimes and jobs of Kubeflow Trainer.
	Network struct {
		EnableDNSHostnames       bool `yaml:"enableDNSHostnames"`
		PublishNotReadyAddresses bool `yaml:"publishNotReadyAddresses"`
	}
	FailurePolicy struct {
		MaxRestarts int `yaml:"maxRestarts"`
		Rules       []struct {
			Action              string
			OnJobFailureReasons []string `yaml:"onJobFailureReasons"`
		}
	} `yaml:"failurePolicy"`
	ReplicatedJobs []struct {
		Name     string
		Replicas int
		Template manifest
	} `yaml:"replicatedJobs"`
	PodGroupPolicy struct{ Volcano *struct{} } `yaml:"podGroupPolicy"`
	RuntimeRef     struct {
		APIGroup   string `yaml:"apiGroup"`
		Kind, Name string
	} `yaml:"runtimeRef"`
	Trainer struct {
		NumNodes       int `yaml:"numNodes"`
		NumProcPerNode int `yaml:"numProcPerNode"`
		Args           []string
	}

	// LeaderWorkerSets.
	Replicas             int
	LeaderWorkerTemplate struct {
		Size           int
		RestartPolicy  string    `yaml:"restartPolicy"`
		WorkerTemplate *manifest `yaml:"workerTemplate"`
	} `yaml:"leaderWorkerTemplate"`
}

type container struct {
	Name           string
	Args           []string
	Env            []variable
	ReadinessProbe struct {
		HTTPGet struct {
			Path string
			Port int
		} `yaml:"httpGet"`
	} `yaml:"readinessProbe"`
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type variable struct {
	Name, Value string
	ValueFrom   struct {
		SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
	} `yaml:"valueFrom"`
}

// manifests returns the manifests in a file of examples/cluster, with the lines of a scheduler or
// "", by kind. The file's first of a kind counts.
func manifests(t *testing.T, name, scheduler string) map[string]manifest {
	t.Helper()
	text, err := os.ReadFile("../../examples/cluster/" + name)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]manifest{}
	for _, doc := range bytes.Split(scheduledBy(scheduler, text), []byte("\n---\n")) {
		var m manifest
		if err := yaml.Unmarshal(doc, &m); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, ok := all[m.Kind]; ok {
			m.Kind += " again"
		}
		all[m.Kind] = m
	}
	return all
}

// pods describes a job of examples/cluster as its controller starts it.
type pods struct {
	job  manifestSpec
	main container
	n    int
	set  func(i int) []variable // variables that the controller sets in pod i
	addr string                 // address of pod 0, as named by the controller
	any  bool                   // the controller starts pods again after any exit code
}

// TestManifests checks that manifests start valid commands in an environment
// in which each process finds its rank, and restart where that can help.
func TestManifests(t *testing.T) {
	nightly.Long(t)
	indexed := func(i int) []variable {
		return []variable{{Name: "JOB_COMPLETION_INDEX", Value: strconv.Itoa(i)}}
	}
	storage := manifests(t, "storage.yaml", "")

	all := manifests(t, "indexed-job.yaml", "")
	job, service := all["Job"], all["Service"]
	if s := service.Spec; s.ClusterIP != "None" || !s.PublishNotReadyAddresses || s.Selector["job-name"] != job.Metadata.Name || job.Spec.Template.Spec.Subdomain != service.Metadata.Name {
		t.Errorf("the service does not name the pods of the job: %+v", service)
	}
	main, metrics := job.Spec.Template.Spec.Containers[0], all["Service again"]
	if at := main.ReadinessProbe.HTTPGet; at.Path != "/healthz" || at.Port != metrics.Spec.Ports[0].Port || !slices.Contains(main.Args, fmt.Sprint("report.listen=0.0.0.0:", at.Port)) {
		t.Errorf("the run is not published where it is probed: %+v", at)
	}
	checkPods(t, "indexed-job.yaml", storage, pods{job.Spec, main, job.Spec.Completions, indexed,
		fmt.Sprintf("%s-0.%s:%d", job.Metadata.Name, service.Metadata.Name, service.Spec.Ports[0].Port), false})

	set := manifests(t, "jobset.yaml", "")["JobSet"]
	worker := set.Spec.ReplicatedJobs[0]
	checkPods(t, "jobset.yaml", storage, pods{worker.Template.Spec, worker.Template.Spec.Template.Spec.Containers[0], worker.Template.Spec.Completions, indexed,
		fmt.Sprintf("%s-%s-0-0.%[1]s:29400", set.Metadata.Name, worker.Name), false})
	checkGang(t, "jobset.yaml", set.Spec)
	if n := set.Spec.Network; !n.EnableDNSHostnames || !n.PublishNotReadyAddresses || worker.Replicas != 1 {
		t.Errorf("the set does not name its pods: %+v", set.Spec)
	}

	all = manifests(t, "kubeflow.yaml", "")
	runtime, train := all["TrainingRuntime"], all["TrainJob"]
	node := runtime.Spec.Template.Spec.ReplicatedJobs[0]
	checkPods(t, "kubeflow.yaml", storage, kubeflowPods(runtime, train))
	checkGang(t, "kubeflow.yaml", runtime.Spec.Template.Spec)
	if ref := train.Spec.RuntimeRef; ref.Name != runtime.Metadata.Name || ref.Kind != runtime.Kind || !strings.HasPrefix(runtime.APIVersion, ref.APIGroup+"/") {
		t.Errorf("the job is of another runtime: %+v", ref)
	}
	if node.Name != "node" || node.Template.Metadata.Labels["trainer.kubeflow.org/trainjob-ancestor-step"] != "trainer" || node.Template.Spec.Template.Spec.Containers[0].Name != "node" {
		t.Error("Trainer sets PET_* in the container node of the step trainer alone")
	}

	group := manifests(t, "leaderworkerset.yaml", "")["LeaderWorkerSet"]
	checkPods(t, "leaderworkerset.yaml", storage, groupPods(group))
	if group.Spec.Replicas != 1 || group.Spec.LeaderWorkerTemplate.RestartPolicy != "RecreateGroupOnPodRestart" {
		t.Errorf("a lost pod does not restart all: %+v", group.Spec)
	}
}

// groupPods returns the pods of a LeaderWorkerSet, with the environment that its webhook sets
// (pkg/utils/pod). It starts them again after any exit code, like a job without a failure policy.
func groupPods(s manifest) pods {
	group := s.Spec.LeaderWorkerTemplate
	pod := *group.WorkerTemplate
	pod.Spec.RestartPolicy = "Never" // the group is created again instead
	job := manifestSpec{CompletionMode: "Indexed", Parallelism: group.Size, Template: &pod}
	host := fmt.Sprintf("%s-0.%[1]s.default", s.Metadata.Name)
	return pods{job, pod.Spec.Containers[0], group.Size, func(i int) []variable {
		return []variable{{Name: "LWS_LEADER_ADDRESS", Value: host}, {Name: "LWS_GROUP_SIZE", Value: strconv.Itoa(group.Size)}, {Name: "LWS_WORKER_INDEX", Value: strconv.Itoa(i)}}
	}, host + ":29400", true}
}

// kubeflowPods returns the pods that Trainer creates for a runtime and a job, with the
// environment set by its torch policy (pkg/runtime/framework/plugins/torch).
func kubeflowPods(r, t manifest) pods {
	job := r.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec
	job.CompletionMode, job.Completions, job.Parallelism = "Indexed", t.Spec.Trainer.NumNodes, t.Spec.Trainer.NumNodes
	main := job.Template.Spec.Containers[0]
	main.Args = t.Spec.Trainer.Args
	host := fmt.Sprintf("%s-node-0-0.%[1]s", t.Metadata.Name)
	return pods{job, main, t.Spec.Trainer.NumNodes, func(i int) []variable {
		return []variable{{Name: "JOB_COMPLETION_INDEX", Value: strconv.Itoa(i)}, {Name: "PET_NNODES", Value: strconv.Itoa(t.Spec.Trainer.NumNodes)},
			{Name: "PET_NPROC_PER_NODE", Value: strconv.Itoa(t.Spec.Trainer.NumProcPerNode)}, {Name: "PET_NODE_RANK", Value: strconv.Itoa(i)},
			{Name: "PET_MASTER_ADDR", Value: host}, {Name: "PET_MASTER_PORT", Value: "29500"}}
	}, host + ":29500", false}
}

// checkGang checks that all pods restart together unless there is nothing to resume from.
func checkGang(t *testing.T, file string, s manifestSpec) {
	t.Helper()
	f := s.FailurePolicy
	if f.MaxRestarts < 1 || len(f.Rules) != 1 || f.Rules[0].Action != "FailJobSet" || !slices.Equal(f.Rules[0].OnJobFailureReasons, []string{"PodFailurePolicy"}) {
		t.Errorf("%s: failure policy %+v", file, f)
	}
}

func checkPods(t *testing.T, file string, storage map[string]manifest, p pods) {
	t.Helper()
	pod := p.job.Template.Spec
	if p.job.CompletionMode != "Indexed" || p.n < 2 || p.job.Parallelism != p.n || pod.RestartPolicy != "Never" || pod.TerminationGracePeriodSeconds < 60 {
		t.Errorf("%s: %+v", file, p.job)
	}
	for code, want := range map[int]string{1: "FailJob", 2: "FailJob", 75: "Count"} {
		if got := actionOn(p.job, code, p.main.Name); got != want && !p.any {
			t.Errorf("%s: exit code %d: %s, want %s", file, code, got, want)
		}
	}
	checkVolumes(t, file, storage, p)
	for _, w := range wrongZeroth(t, p.main.Args) {
		t.Errorf("%s: args: %s", file, w)
	}
	if !strings.Contains(strings.Join(p.main.Args, " "), "--resume latest") || !slices.Contains(p.main.Args, "--out") {
		t.Errorf("%s: started again, %q does not go on", file, p.main.Args)
	}
	checkPlaces(t, file, p)
}

// actionOn returns the job's reaction to a container that exits with code.
func actionOn(job manifestSpec, code int, container string) string {
	for _, r := range job.PodFailurePolicy.Rules {
		if on := r.OnExitCodes; on.Operator == "In" && on.ContainerName == container && slices.Contains(on.Values, code) {
			return r.Action
		}
	}
	return "Count"
}

// checkVolumes checks that the volumes mounted by the pods exist and that the job they train is
// valid.
func checkVolumes(t *testing.T, file string, storage map[string]manifest, p pods) {
	t.Helper()
	job, claim := storage["ConfigMap"], storage["PersistentVolumeClaim"]
	mounts := map[string]string{}
	for _, m := range p.main.VolumeMounts {
		mounts[m.Name] = m.MountPath
	}
	for _, v := range p.job.Template.Spec.Volumes {
		if v.ConfigMap.Name != "" && v.ConfigMap.Name != job.Metadata.Name || v.Claim.Name != "" && v.Claim.Name != claim.Metadata.Name || mounts[v.Name] == "" {
			t.Errorf("%s: volume %+v is not in storage.yaml, or not mounted", file, v)
		}
		delete(mounts, v.Name)
	}
	if len(mounts) > 0 || !slices.Equal(claim.Spec.AccessModes, []string{"ReadWriteMany"}) {
		t.Errorf("%s: %v are no volumes, or not all pods see them", file, mounts)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"job.yaml": job.Data["job.yaml"], "a.md": strings.Repeat("words ", 2000)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	c, err := spec.Environment{Processes: p.n}.Load(filepath.Join(dir, "job.yaml"), []string{"data.text=[" + dir + "/*.md]"})
	if err != nil || c.Parallel.Ranks != p.n || c.Checkpoint.Every == 0 {
		t.Errorf("%s: the job in storage.yaml: %v, %+v", file, err, c)
	}
}

// checkPlaces checks that zeroth finds its rank and pod 0's address in each pod's environment.
func checkPlaces(t *testing.T, file string, p pods) {
	t.Helper()
	for i := range p.n {
		vars, secret := map[string]string{}, false
		for _, e := range slices.Concat(p.main.Env, p.set(i)) {
			if from := e.ValueFrom.SecretKeyRef; from.Name != "" {
				secret = secret || e.Name == "ZEROTH_TOKEN" && from.Name == "zeroth-token" && from.Key == "token"
				continue
			}
			vars[e.Name] = e.Value
		}
		at, err := launch.Find(launch.Flags{}, func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
		if err != nil || at.Rank != i || at.World != p.n || at.Addrs()[0] != p.addr || !secret {
			t.Errorf("%s: pod %d finds %+v (%v), want rank %d of %d at %s; token: %v", file, i, at, err, i, p.n, p.addr, secret)
		}
	}
}

// flagsOf lists the launchers' flags that scripts use, according to the manuals of Slurm 22.05
// and 25.05, Open MPI 4.1 and 5.0, and torch 2.15.
var flagsOf = map[string][]string{
	"sbatch":   {"--job-name", "--nodes", "--ntasks-per-node", "--cpus-per-task", "--time", "--signal", "--requeue", "--open-mode", "--gpus-per-node"},
	"srun":     {"--cpus-per-task", "--kill-on-bad-exit"},
	"mpirun":   {"--hostfile", "--bind-to", "-x"},
	"torchrun": {"--nnodes", "--nproc-per-node", "--max-restarts", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--no-python"},
}

// TestClusterScripts checks that scripts are valid shell, start valid commands with flags that
// their launcher supports, and resume from the last checkpoint.
func TestClusterScripts(t *testing.T) {
	nightly.Long(t)
	nightly.Needs(t, "bash")
	for file, launcher := range map[string]string{"slurm.sh": "srun", "mpirun.sh": "mpirun", "torchrun.sh": "torchrun"} {
		name := "../../examples/cluster/" + file
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if msg, err := exec.Command("bash", "-n", name).CombinedOutput(); err != nil {
			t.Errorf("%s: %v %s", file, err, msg)
		}
		found := false
		for _, words := range shellCommands(string(raw)) {
			words = slices.DeleteFunc(words, func(w string) bool { return w == "exec" })
			at := slices.Index(words, "zeroth")
			if words[0] != launcher || at < 0 {
				continue
			}
			found = true
			for _, w := range append(unknownFlags(launcher, words[1:at]), wrongZeroth(t, words[at+1:])...) {
				t.Errorf("%s: %s", file, w)
			}
			if !strings.Contains(strings.Join(words, " "), "--resume latest") {
				t.Errorf("%s: started again, %q does not go on", file, words)
			}
		}
		if !found {
			t.Errorf("%s does not start zeroth by %s", file, launcher)
		}
		for _, m := range regexp.MustCompile(`(?m)^#SBATCH (\S+)$`).FindAllStringSubmatch(string(raw), -1) {
			for _, w := range unknownFlags("sbatch", m[1:]) {
				t.Errorf("%s: %s", file, w)
			}
		}
	}
}

func unknownFlags(of string, words []string) (wrong []string) {
	for _, w := range words {
		if name, _, _ := strings.Cut(w, "="); strings.HasPrefix(w, "-") && !slices.Contains(flagsOf[of], name) {
			wrong = append(wrong, of+" has no flag "+w)
		}
	}
	return wrong
}

// TestDockerfile checks that the images build with the Go version that go.mod requires, the first a static program,
// the second one with the libraries that the CUDA backend loads.
func TestDockerfile(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mod)
	for file, has := range map[string][]string{
		"Dockerfile":      {"CGO_ENABLED=0 go build", `ENTRYPOINT ["/zeroth"]`},
		"Dockerfile.cuda": {"scripts/build-cuda ", "libcublas.so.12 ", "libcublasLt.so.12 ", "libnccl.so.2 ", `ENTRYPOINT ["/usr/local/bin/zeroth"]`},
	} {
		raw, err := os.ReadFile("../../examples/cluster/" + file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(raw), "\nRUN ", "\n")
		for _, w := range wrongCommands(t, text, map[string]bool{}) {
			t.Errorf("%s: %s", file, w)
		}
		for _, x := range append(has, "FROM golang:"+string(version[1])+" ") {
			if !strings.Contains(text, x) {
				t.Errorf("%s: no %s", file, x)
			}
		}
	}
}
