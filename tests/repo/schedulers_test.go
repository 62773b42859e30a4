package repo

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"zeroth/internal/launch"
	"zeroth/tests/nightly"
)

// TestSchedulers checks that manifests for Kueue name a queue, and that those for Volcano start
// all pods of a job or none.
func TestSchedulers(t *testing.T) {
	with := func(scheduler, file string) map[string]manifest {
		text, err := os.ReadFile("../../examples/cluster/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, fmt.Appendf(nil, "sed 's/# %s: //' examples/cluster/%s |", scheduler, file)) {
			t.Errorf("%s has no command for %s", file, scheduler)
		}
		return manifests(t, file, scheduler)
	}
	for file, kind := range map[string]string{"indexed-job.yaml": "Job", "jobset.yaml": "JobSet", "kubeflow.yaml": "TrainJob", "leaderworkerset.yaml": "LeaderWorkerSet"} {
		if meta := with("kueue", file)[kind].Metadata; meta.Labels["kueue.x-k8s.io/queue-name"] == "" {
			t.Errorf("%s: no queue in %+v", file, meta)
		}
	}
	job := with("volcano", "indexed-job.yaml")["Job"]
	worker := with("volcano", "jobset.yaml")["JobSet"].Spec.ReplicatedJobs[0].Template
	runtime := with("volcano", "kubeflow.yaml")["TrainingRuntime"].Spec
	for file, c := range map[string]struct {
		job   manifestSpec
		least string // pods to start at once
	}{
		"indexed-job.yaml": {job.Spec, job.Metadata.Annotations["scheduling.volcano.sh/group-min-member"]},
		"jobset.yaml":      {worker.Spec, worker.Metadata.Annotations["scheduling.volcano.sh/group-min-member"]},
		"kubeflow.yaml":    {runtime.Template.Spec.ReplicatedJobs[0].Template.Spec, "0"}, // Trainer counts them itself
	} {
		if c.job.Template.Spec.SchedulerName != "volcano" || c.least != strconv.Itoa(c.job.Parallelism) {
			t.Errorf("%s: scheduler %q, %s of %d pods at once", file, c.job.Template.Spec.SchedulerName, c.least, c.job.Parallelism)
		}
	}
	if runtime.PodGroupPolicy.Volcano == nil {
		t.Error("Trainer creates no group of pods")
	}
}

// TestGPUsInPods checks that manifests with their lines for GPUs and RDMA ask for both, and mount shared memory.
func TestGPUsInPods(t *testing.T) {
	for _, file := range []string{"indexed-job.yaml", "jobset.yaml", "kubeflow.yaml", "leaderworkerset.yaml"} {
		raw, err := os.ReadFile("../../examples/cluster/" + file)
		if err != nil {
			t.Fatal(err)
		}
		text := scheduledBy("rdma", scheduledBy("gpu", raw))
		for _, w := range wrongIn(t, text) {
			t.Errorf("%s: %s", file, w)
		}
		for _, line := range []string{"nvidia.com/gpu: 8", "rdma/hca: 1", "- {name: shm, mountPath: /dev/shm}", "- {name: shm, emptyDir: {medium: Memory, "} {
			if !regexp.MustCompile(`(?m)^ +` + regexp.QuoteMeta(line)).Match(text) {
				t.Errorf("%s: no line %s", file, line)
			}
		}
	}
}

// TestSkyPilot checks that SkyPilot's task starts a valid command, in an environment in which each
// node finds its rank, and starts it again where that can help.
func TestSkyPilot(t *testing.T) {
	nightly.Long(t)
	text, err := os.ReadFile("../../examples/cluster/skypilot.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var task struct {
		Name      string
		NumNodes  int `yaml:"num_nodes"`
		Resources struct {
			Accelerators string
			JobRecovery  struct {
				Codes []int `yaml:"recover_on_exit_codes"`
			} `yaml:"job_recovery"`
		}
		Workdir, Run string
		Secrets      map[string]any
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&task); err != nil {
		t.Fatal(err)
	}
	for _, w := range wrongCommands(t, task.Run, map[string]bool{}) {
		t.Error(w)
	}
	_, token := task.Secrets["ZEROTH_TOKEN"]
	if !strings.Contains(task.Run, "./zeroth train") || !strings.Contains(task.Run, "--resume latest") || !slices.Equal(task.Resources.JobRecovery.Codes, []int{75}) || !token {
		t.Errorf("%+v", task)
	}
	_, gpus, _ := strings.Cut(task.Resources.Accelerators, ":")
	for rank := range task.NumNodes {
		vars := map[string]string{"SKYPILOT_NODE_RANK": strconv.Itoa(rank), "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8", "SKYPILOT_NUM_GPUS_PER_NODE": gpus, "SKYPILOT_TASK_ID": "sky-1"}
		at, err := launch.Find(launch.Flags{}, func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
		if err != nil || at.Rank != rank || at.World != 2 || at.Ranks != 8 || at.Host != "10.0.0.7" {
			t.Errorf("node %d: %+v, %v", rank, at, err)
		}
	}
}
