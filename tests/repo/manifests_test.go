package repo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// schema is a published schema in the form used by tests/repo/testdata/manifests.json.
type schema struct {
	Type        string
	Properties  map[string]*schema
	Required    []string
	Items       *schema
	Values      *schema `json:"additionalProperties"`
	Enum        []any
	IntOrString bool `json:"x-kubernetes-int-or-string"`
	Cut         bool
}

// published returns the schemas of tests/repo/testdata/manifests.json by apiVersion and kind.
func published(t *testing.T) map[string]struct{ Schema *schema } {
	t.Helper()
	text, err := os.ReadFile("testdata/manifests.json")
	if err != nil {
		t.Fatal(err)
	}
	var kinds map[string]struct{ Schema *schema }
	if err := json.Unmarshal(text, &kinds); err != nil {
		t.Fatal(err)
	}
	return kinds
}

// wrongIn returns all errors in the documents of a manifest.
func wrongIn(t *testing.T, text []byte) (wrong []string) {
	t.Helper()
	kinds := published(t)
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var m map[string]any
		if err := yaml.Unmarshal(doc, &m); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint(m["apiVersion"], " ", m["kind"])
		if kinds[name].Schema == nil {
			wrong = append(wrong, "no kind "+name)
			continue
		}
		wrong = append(wrong, kinds[name].Schema.wrong(name, m)...)
	}
	return wrong
}

// wrong returns all errors in the value at a path.
func (s *schema) wrong(at string, v any) (all []string) {
	if s.Cut {
		return []string{at + ": the schema here was left out; run tests/cluster/testdata/schemas again"}
	}
	is := map[bool]string{true: "integer or string"}[s.IntOrString]
	switch v := v.(type) {
	case map[string]any:
		return s.wrongObject(at, v)
	case []any:
		if s.Type != "array" {
			return []string{at + ": an array"}
		}
		for i, x := range v {
			all = append(all, s.Items.wrong(fmt.Sprintf("%s[%d]", at, i), x)...)
		}
		return all
	case string:
		if s.Type == "string" {
			is = s.Type
		}
	case bool:
		if is = ""; s.Type == "boolean" {
			is = s.Type
		}
	case uint64, int64:
		if s.Type == "integer" {
			is = s.Type
		}
	default:
		is = fmt.Sprintf("%T", v)
	}
	if is == "" || s.Type != "" && is != s.Type {
		return []string{fmt.Sprintf("%s: %v, of type %T", at, v, v)}
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		return []string{fmt.Sprintf("%s: %v, none of %v", at, v, s.Enum)}
	}
	return nil
}

func (s *schema) wrongObject(at string, v map[string]any) (all []string) {
	if s.Type != "object" {
		return []string{at + ": an object"}
	}
	for key, x := range v {
		of := s.Properties[key]
		if of == nil {
			of = s.Values
		}
		if of == nil {
			all = append(all, at+": no key "+key)
			continue
		}
		all = append(all, of.wrong(at+"."+key, x)...)
	}
	for _, key := range s.Required {
		if _, ok := v[key]; !ok {
			all = append(all, at+": "+key+" is missing")
		}
	}
	slices.Sort(all)
	return all
}

// TestManifestsAreOfPublishedSchemas checks every key and value of the manifests against the
// published schemas.
func TestManifestsAreOfPublishedSchemas(t *testing.T) {
	files, err := filepath.Glob("../../examples/cluster/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v: %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(file) == "skypilot.yaml" {
			continue
		}
		for _, scheduler := range []string{"", "kueue", "volcano"} {
			if wrong := wrongIn(t, scheduledBy(scheduler, text)); wrong != nil {
				t.Errorf("%s %s: %s", file, scheduler, strings.Join(wrong, "\n"))
			}
		}
	}
}

// scheduledBy returns a manifest with the lines that a scheduler needs, as the sed command in its
// comment does; "" returns it unchanged.
func scheduledBy(scheduler string, text []byte) []byte {
	if scheduler == "" {
		return text
	}
	return bytes.ReplaceAll(text, []byte("# "+scheduler+": "), nil)
}

// TestWrongManifestsAreFound checks that misspelled, misplaced and missing keys, values of the
// wrong type and values that are not allowed are found.
func TestWrongManifestsAreFound(t *testing.T) {
	for _, test := range []struct{ file, old, new, want string }{
		{"indexed-job.yaml", "backoffLimit:", "backofLimit:", "batch/v1 Job.spec: no key backofLimit"},
		{"indexed-job.yaml", "completions: 4", "completions: four", "batch/v1 Job.spec.completions: four, of type string"},
		{"indexed-job.yaml", "runAsNonRoot: true", `runAsNonRoot: "true"`, "batch/v1 Job.spec.template.spec.securityContext.runAsNonRoot: true, of type string"},
		{"indexed-job.yaml", "  clusterIP: None", "  clusterIPs: None", "v1 Service.spec.clusterIPs: the schema here was left out; run tests/cluster/testdata/schemas again"},
		{"jobset.yaml", "              operator: In\n", "", "jobset.x-k8s.io/v1alpha2 JobSet.spec.replicatedJobs[0].template.spec.podFailurePolicy.rules[0].onExitCodes: operator is missing"},
		{"leaderworkerset.yaml", "RecreateGroupOnPodRestart", "RestartGroup", "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet.spec.leaderWorkerTemplate.restartPolicy: RestartGroup, none of"},
		{"kubeflow.yaml", "kind: TrainJob", "kind: TrainJobs", "no kind trainer.kubeflow.org/v1alpha1 TrainJobs"},
	} {
		text, err := os.ReadFile("../../examples/cluster/" + test.file)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Replace(text, []byte(test.old), []byte(test.new), 1)
		if bytes.Equal(changed, text) {
			t.Errorf("%s has no %q", test.file, test.old)
		}
		if wrong := wrongIn(t, changed); len(wrong) != 1 || !strings.HasPrefix(wrong[0], test.want) {
			t.Errorf("%s, %q for %q: %q, want %q", test.file, test.new, test.old, wrong, test.want)
		}
	}
}
