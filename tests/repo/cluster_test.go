package repo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"zeroth/job/launch"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
)

// The parts of examples/cluster's manifests that tests inspect. An unlisted key is an error: add
// it here to use it. Another test checks manifests against the published schemas.
type (
	k8sMeta struct {
		Name                string
		Labels, Annotations map[string]string
	}
	k8sService struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   k8sMeta
		Spec       struct {
			ClusterIP                string `yaml:"clusterIP"`
			PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
			Selector                 map[string]string
			Ports                    []struct {
				Name string
				Port int
			}
		}
	}
	k8sConfigMap struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   k8sMeta
		Data       map[string]string
	}
	k8sClaim struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   k8sMeta
		Spec       struct {
			AccessModes []string `yaml:"accessModes"`
			Resources   struct{ Requests map[string]string }
		}
	}
	k8sJob struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   k8sMeta
		Spec       k8sJobSpec
	}
	k8sJobSpec struct {
		CompletionMode       string `yaml:"completionMode"`
		Completions          int
		Parallelism          int
		BackoffLimit         int    `yaml:"backoffLimit"`
		PodReplacementPolicy string `yaml:"podReplacementPolicy"`
		PodFailurePolicy     struct {
			Rules []k8sRule
		} `yaml:"podFailurePolicy"`
		Template struct{ Spec k8sPod }
	}
	k8sRule struct {
		Action          string
		OnPodConditions []struct{ Type, Status string } `yaml:"onPodConditions"`
		OnExitCodes     struct {
			ContainerName string `yaml:"containerName"`
			Operator      string
			Values        []int
		} `yaml:"onExitCodes"`
	}
	k8sPod struct {
		SchedulerName                 string `yaml:"schedulerName"`
		Subdomain                     string
		RestartPolicy                 string `yaml:"restartPolicy"`
		TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               struct {
			RunAsNonRoot bool `yaml:"runAsNonRoot"`
			RunAsUser    int  `yaml:"runAsUser"`
			FSGroup      int  `yaml:"fsGroup"`
		} `yaml:"securityContext"`
		Containers []k8sContainer
		Volumes    []struct {
			Name      string
			ConfigMap struct{ Name string } `yaml:"configMap"`
			Claim     struct {
				Name string `yaml:"claimName"`
			} `yaml:"persistentVolumeClaim"`
			EmptyDir map[string]string `yaml:"emptyDir"`
			Secret   struct {
				SecretName  string `yaml:"secretName"`
				DefaultMode int    `yaml:"defaultMode"`
			}
		}
	}
	k8sContainer struct {
		Name, Image string
		Args        []string
		Env         []k8sEnv
		Ports       []struct {
			ContainerPort int `yaml:"containerPort"`
		}
		ReadinessProbe struct {
			HTTPGet struct {
				Path string
				Port int
			} `yaml:"httpGet"`
			PeriodSeconds int `yaml:"periodSeconds"`
		} `yaml:"readinessProbe"`
		Resources    k8sResources
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	k8sResources struct{ Requests, Limits map[string]string }
	k8sEnv       struct {
		Name, Value string
		ValueFrom   struct {
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	jobSet struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   k8sMeta
		Spec       jobSetSpec
	}
	jobSetSpec struct {
		Network struct {
			EnableDNSHostnames       bool `yaml:"enableDNSHostnames"`
			PublishNotReadyAddresses bool `yaml:"publishNotReadyAddresses"`
		}
		FailurePolicy struct {
			MaxRestarts int `yaml:"maxRestarts"`
			Rules       []struct {
				Name, Action        string
				OnJobFailureReasons []string `yaml:"onJobFailureReasons"`
			}
		} `yaml:"failurePolicy"`
		ReplicatedJobs []struct {
			Name     string
			Replicas int
			Template struct {
				Metadata k8sMeta
				Spec     k8sJobSpec
			}
		} `yaml:"replicatedJobs"`
	}
	trainingRuntime struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   k8sMeta
		Spec       struct {
			MLPolicy struct {
				NumNodes int `yaml:"numNodes"`
				Torch    struct{}
			} `yaml:"mlPolicy"`
			PodGroupPolicy struct{ Volcano *struct{} } `yaml:"podGroupPolicy"`
			Template       struct{ Spec jobSetSpec }
		}
	}
	leaderWorkerSet struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   k8sMeta
		Spec       struct {
			Replicas             int
			LeaderWorkerTemplate struct {
				Size           int
				RestartPolicy  string                `yaml:"restartPolicy"`
				WorkerTemplate struct{ Spec k8sPod } `yaml:"workerTemplate"`
			} `yaml:"leaderWorkerTemplate"`
		}
	}
	trainJob struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   k8sMeta
		Spec       struct {
			RuntimeRef struct {
				APIGroup   string `yaml:"apiGroup"`
				Kind, Name string
			} `yaml:"runtimeRef"`
			Trainer struct {
				NumNodes         int `yaml:"numNodes"`
				NumProcPerNode   int `yaml:"numProcPerNode"`
				Args             []string
				ResourcesPerNode k8sResources `yaml:"resourcesPerNode"`
			}
		}
	}
)

// kinds creates the type for a manifest's apiVersion and kind.
var kinds = map[string]func() any{
	"v1 Service":                      func() any { return new(k8sService) },
	"v1 ConfigMap":                    func() any { return new(k8sConfigMap) },
	"v1 PersistentVolumeClaim":        func() any { return new(k8sClaim) },
	"batch/v1 Job":                    func() any { return new(k8sJob) },
	"jobset.x-k8s.io/v1alpha2 JobSet": func() any { return new(jobSet) },
	"trainer.kubeflow.org/v1alpha1 TrainingRuntime": func() any { return new(trainingRuntime) },
	"trainer.kubeflow.org/v1alpha1 TrainJob":        func() any { return new(trainJob) },
	"leaderworkerset.x-k8s.io/v1 LeaderWorkerSet":   func() any { return new(leaderWorkerSet) },
}

// decodeManifests decodes the documents of a file and rejects unknown keys.
func decodeManifests(text []byte) (all []any, err error) {
	for i, doc := range bytes.Split(text, []byte("\n---\n")) {
		var is struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
		}
		if err := yaml.Unmarshal(doc, &is); err != nil {
			return nil, err
		}
		make := kinds[is.APIVersion+" "+is.Kind]
		if make == nil {
			return nil, fmt.Errorf("document %d: no kind %s %s", i, is.APIVersion, is.Kind)
		}
		d, m := yaml.NewDecoder(bytes.NewReader(doc), yaml.Strict()), make()
		if err := d.Decode(m); err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		if err := d.Decode(make()); !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("document %d: more than one", i)
		}
		all = append(all, m)
	}
	return all, nil
}

// manifests returns the manifests in a file of examples/cluster.
func manifests(t *testing.T, name string) []any {
	t.Helper()
	text, err := os.ReadFile("../../examples/cluster/" + name)
	if err != nil {
		t.Fatal(err)
	}
	all, err := decodeManifests(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return all
}

// manifest returns the only manifest of type T.
func manifest[T any](t *testing.T, all []any) *T {
	t.Helper()
	for _, m := range all {
		if x, ok := m.(*T); ok {
			return x
		}
	}
	t.Fatalf("no %T", *new(T))
	return nil
}

// pods describes a job of examples/cluster as its controller starts it.
type pods struct {
	job  k8sJobSpec
	main k8sContainer
	n    int
	set  func(i int) []k8sEnv // variables that the controller sets in pod i
	addr string               // address of pod 0, as named by the controller
	any  bool                 // the controller starts pods again after any exit code
}

// TestManifests checks that manifests use only known keys, start valid commands in an environment
// in which each process finds its rank, and restart where that can help.
func TestManifests(t *testing.T) {
	indexed := func(i int) []k8sEnv { return []k8sEnv{{Name: "JOB_COMPLETION_INDEX", Value: strconv.Itoa(i)}} }
	storage := manifests(t, "storage.yaml")

	all := manifests(t, "indexed-job.yaml")
	job, service := manifest[k8sJob](t, all), manifest[k8sService](t, all)
	if s := service.Spec; s.ClusterIP != "None" || !s.PublishNotReadyAddresses || s.Selector["job-name"] != job.Metadata.Name || job.Spec.Template.Spec.Subdomain != service.Metadata.Name {
		t.Errorf("the service does not name the pods of the job: %+v", service)
	}
	main, metrics := job.Spec.Template.Spec.Containers[0], all[1].(*k8sService)
	if at := main.ReadinessProbe.HTTPGet; at.Path != "/healthz" || at.Port != metrics.Spec.Ports[0].Port || !slices.Contains(main.Args, fmt.Sprint("report.listen=0.0.0.0:", at.Port)) {
		t.Errorf("the run is not published where it is probed: %+v", at)
	}
	checkPods(t, "indexed-job.yaml", storage, pods{job.Spec, main, job.Spec.Completions, indexed,
		fmt.Sprintf("%s-0.%s:%d", job.Metadata.Name, service.Metadata.Name, service.Spec.Ports[0].Port), false})

	set := manifest[jobSet](t, manifests(t, "jobset.yaml"))
	worker := set.Spec.ReplicatedJobs[0]
	checkPods(t, "jobset.yaml", storage, pods{worker.Template.Spec, worker.Template.Spec.Template.Spec.Containers[0], worker.Template.Spec.Completions, indexed,
		fmt.Sprintf("%s-%s-0-0.%[1]s:29400", set.Metadata.Name, worker.Name), false})
	checkGang(t, "jobset.yaml", set.Spec)
	if n := set.Spec.Network; !n.EnableDNSHostnames || !n.PublishNotReadyAddresses || worker.Replicas != 1 {
		t.Errorf("the set does not name its pods: %+v", set.Spec)
	}

	all = manifests(t, "kubeflow.yaml")
	runtime, train := manifest[trainingRuntime](t, all), manifest[trainJob](t, all)
	node := runtime.Spec.Template.Spec.ReplicatedJobs[0]
	checkPods(t, "kubeflow.yaml", storage, kubeflowPods(*runtime, *train))
	checkGang(t, "kubeflow.yaml", runtime.Spec.Template.Spec)
	if ref := train.Spec.RuntimeRef; ref.Name != runtime.Metadata.Name || ref.Kind != runtime.Kind || !strings.HasPrefix(runtime.APIVersion, ref.APIGroup+"/") {
		t.Errorf("the job is of another runtime: %+v", ref)
	}
	if node.Name != "node" || node.Template.Metadata.Labels["trainer.kubeflow.org/trainjob-ancestor-step"] != "trainer" || node.Template.Spec.Template.Spec.Containers[0].Name != "node" {
		t.Error("Trainer sets PET_* in the container node of the step trainer alone")
	}

	group := manifest[leaderWorkerSet](t, manifests(t, "leaderworkerset.yaml"))
	checkPods(t, "leaderworkerset.yaml", storage, groupPods(*group))
	if group.Spec.Replicas != 1 || group.Spec.LeaderWorkerTemplate.RestartPolicy != "RecreateGroupOnPodRestart" {
		t.Errorf("a lost pod does not restart all: %+v", group.Spec)
	}
}

// groupPods returns the pods of a LeaderWorkerSet, with the environment that its webhook sets
// (pkg/utils/pod). It starts them again after any exit code, like a job without a failure policy.
func groupPods(s leaderWorkerSet) pods {
	group := s.Spec.LeaderWorkerTemplate
	pod := group.WorkerTemplate.Spec
	pod.RestartPolicy = "Never" // the group is created again instead
	job := k8sJobSpec{CompletionMode: "Indexed", Parallelism: group.Size, Template: struct{ Spec k8sPod }{pod}}
	host := fmt.Sprintf("%s-0.%[1]s.default", s.Metadata.Name)
	return pods{job, pod.Containers[0], group.Size, func(i int) []k8sEnv {
		return []k8sEnv{{Name: "LWS_LEADER_ADDRESS", Value: host}, {Name: "LWS_GROUP_SIZE", Value: strconv.Itoa(group.Size)}, {Name: "LWS_WORKER_INDEX", Value: strconv.Itoa(i)}}
	}, host + ":29400", true}
}

// kubeflowPods returns the pods that Trainer creates for a runtime and a job, with the
// environment set by its torch policy (pkg/runtime/framework/plugins/torch).
func kubeflowPods(r trainingRuntime, t trainJob) pods {
	job := r.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec
	job.CompletionMode, job.Completions, job.Parallelism = "Indexed", t.Spec.Trainer.NumNodes, t.Spec.Trainer.NumNodes
	main := job.Template.Spec.Containers[0]
	main.Args, main.Resources = t.Spec.Trainer.Args, t.Spec.Trainer.ResourcesPerNode
	host := fmt.Sprintf("%s-node-0-0.%[1]s", t.Metadata.Name)
	return pods{job, main, t.Spec.Trainer.NumNodes, func(i int) []k8sEnv {
		return []k8sEnv{{Name: "JOB_COMPLETION_INDEX", Value: strconv.Itoa(i)}, {Name: "PET_NNODES", Value: strconv.Itoa(t.Spec.Trainer.NumNodes)},
			{Name: "PET_NPROC_PER_NODE", Value: strconv.Itoa(t.Spec.Trainer.NumProcPerNode)}, {Name: "PET_NODE_RANK", Value: strconv.Itoa(i)},
			{Name: "PET_MASTER_ADDR", Value: host}, {Name: "PET_MASTER_PORT", Value: "29500"}}
	}, host + ":29500", false}
}

// checkGang checks that all pods restart together unless there is nothing to resume from.
func checkGang(t *testing.T, file string, s jobSetSpec) {
	t.Helper()
	f := s.FailurePolicy
	if f.MaxRestarts < 1 || len(f.Rules) != 1 || f.Rules[0].Action != "FailJobSet" || !slices.Equal(f.Rules[0].OnJobFailureReasons, []string{"PodFailurePolicy"}) {
		t.Errorf("%s: failure policy %+v", file, f)
	}
}

func checkPods(t *testing.T, file string, storage []any, p pods) {
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
func actionOn(job k8sJobSpec, code int, container string) string {
	for _, r := range job.PodFailurePolicy.Rules {
		if on := r.OnExitCodes; on.Operator == "In" && on.ContainerName == container && slices.Contains(on.Values, code) {
			return r.Action
		}
	}
	return "Count"
}

// checkVolumes checks that the volumes mounted by the pods exist and that the job they train is
// valid.
func checkVolumes(t *testing.T, file string, storage []any, p pods) {
	t.Helper()
	job, claim := manifest[k8sConfigMap](t, storage), manifest[k8sClaim](t, storage)
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

// TestManifestsAreReadStrictly checks that mistakes accepted by a lenient decoder are rejected.
func TestManifestsAreReadStrictly(t *testing.T) {
	text, err := os.ReadFile("../../examples/cluster/indexed-job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for old, wrong := range map[string]string{"backoffLimit:": "backOffLimit:", "kind: Job": "kind: Jobs", "completions: 4": "completions: four", "restartPolicy: Never": "restartPolicy: Never\n      restartPolicy: Never"} {
		changed := strings.Replace(string(text), old, wrong, 1)
		if changed == string(text) {
			t.Fatalf("no %q", old)
		}
		if _, err := decodeManifests([]byte(changed)); err == nil {
			t.Errorf("%q passes", wrong)
		}
	}
}

// flagsOf lists the launchers' flags that scripts use, according to the manuals of Slurm 22.05
// and 25.05, Open MPI 4.1 and 5.0, and torch 2.15.
var flagsOf = map[string][]string{
	"sbatch":   {"--job-name", "--nodes", "--ntasks-per-node", "--cpus-per-task", "--time", "--signal", "--requeue", "--open-mode"},
	"srun":     {"--cpus-per-task", "--kill-on-bad-exit"},
	"mpirun":   {"--hostfile", "--bind-to", "-x"},
	"torchrun": {"--nnodes", "--nproc-per-node", "--max-restarts", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--no-python"},
}

// TestClusterScripts checks that scripts are valid shell, start valid commands with flags that
// their launcher supports, and resume from the last checkpoint.
func TestClusterScripts(t *testing.T) {
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

// TestDockerfile checks that the image builds with the Go version that go.mod requires.
func TestDockerfile(t *testing.T) {
	raw, err := os.ReadFile("../../examples/cluster/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(raw), "\nRUN ", "\n")
	for _, w := range wrongCommands(t, text, map[string]bool{}) {
		t.Error(w)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mod)
	if !strings.Contains(text, "FROM golang:"+string(version[1])+" ") || !strings.Contains(text, "CGO_ENABLED=0 go build") || !strings.Contains(text, `ENTRYPOINT ["/zeroth"]`) {
		t.Errorf("the image is not that of a static zeroth, built by go %s", version[1])
	}
}
