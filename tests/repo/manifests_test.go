package repo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// schemas are the types in testdata/manifests.yaml, by name.
type schemas map[string]any

// wrongIn returns all errors in the documents of a manifest.
func wrongIn(t *testing.T, text []byte) (wrong []string) {
	t.Helper()
	published, err := os.ReadFile("testdata/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var s schemas
	if err := yaml.Unmarshal(published, &s); err != nil {
		t.Fatal(err)
	}
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var m map[string]any
		if err := yaml.Unmarshal(doc, &m); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint(m["apiVersion"], " ", m["kind"])
		if s[name] == nil {
			wrong = append(wrong, "no kind "+name)
			continue
		}
		wrong = append(wrong, s.wrong(name, s[name], m)...)
	}
	return wrong
}

// wrong returns all errors in the value at a path, which has a type.
func (s schemas) wrong(at string, typ, v any) (all []string) {
	switch typ := typ.(type) {
	case map[string]any:
		m, ok := v.(map[string]any)
		if !ok {
			return []string{at + ": not an object"}
		}
		for key, x := range m {
			of := typ[key]
			for _, other := range []string{key + "!", "*"} {
				if of == nil {
					of = typ[other]
				}
			}
			if of == nil {
				all = append(all, at+": no key "+key)
				continue
			}
			all = append(all, s.wrong(at+"."+key, of, x)...)
		}
		for key := range typ {
			if name, required := strings.CutSuffix(key, "!"); required && m[name] == nil {
				all = append(all, at+": "+name+" is missing")
			}
		}
	case []any:
		items, ok := v.([]any)
		if !ok {
			return []string{at + ": not an array"}
		}
		for i, x := range items {
			all = append(all, s.wrong(fmt.Sprintf("%s[%d]", at, i), typ[0], x)...)
		}
	case string:
		if s[typ] != nil {
			return s.wrong(at, s[typ], v)
		}
		is := map[string]string{"uint64": "integer", "int64": "integer", "bool": "boolean"}[fmt.Sprintf("%T", v)]
		if text, ok := v.(string); ok {
			if is = "string"; slices.Contains(strings.Split(typ, "|"), text) {
				is = typ
			}
		}
		if is != typ && (typ != "integer or string" || is != "integer" && is != "string") {
			return []string{fmt.Sprintf("%s: %v, not %s", at, v, typ)}
		}
	}
	return all
}

// TestManifestKeys checks every key and value of the manifests, with the lines of each scheduler.
func TestManifestKeys(t *testing.T) {
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

// TestWrongManifestsAreFound checks that misspelled and missing keys, values of the wrong type and
// values that are not allowed are found.
func TestWrongManifestsAreFound(t *testing.T) {
	for _, c := range []struct{ file, old, new, want string }{
		{"indexed-job.yaml", "backoffLimit:", "backofLimit:", "batch/v1 Job.spec: no key backofLimit"},
		{"indexed-job.yaml", "completions: 4", "completions: four", "batch/v1 Job.spec.completions: four, not integer"},
		{"indexed-job.yaml", "runAsNonRoot: true", `runAsNonRoot: "true"`, "batch/v1 Job.spec.template.spec.securityContext.runAsNonRoot: true, not boolean"},
		{"jobset.yaml", "              operator: In\n", "", "jobset.x-k8s.io/v1alpha2 JobSet.spec.replicatedJobs[0].template.spec.podFailurePolicy.rules[0].onExitCodes: operator is missing"},
		{"leaderworkerset.yaml", "RecreateGroupOnPodRestart", "RestartGroup", "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet.spec.leaderWorkerTemplate.restartPolicy: RestartGroup, not Default|"},
		{"kubeflow.yaml", "kind: TrainJob", "kind: TrainJobs", "no kind trainer.kubeflow.org/v1alpha1 TrainJobs"},
	} {
		text, err := os.ReadFile("../../examples/cluster/" + c.file)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Replace(text, []byte(c.old), []byte(c.new), 1)
		if wrong := wrongIn(t, changed); len(wrong) != 1 || !strings.HasPrefix(wrong[0], c.want) {
			t.Errorf("%s, %q for %q: %q, want %q", c.file, c.new, c.old, wrong, c.want)
		}
	}
}
