// Schemas writes the published schemas of the kinds in the manifests of examples/cluster, reduced
// to the keys that they use: other keys have only their type. Tests check the manifests against
// its output.
//
//	tests/cluster/testdata/schemas/run.sh
//
// Kinds of Kubernetes are Go types of k8s.io/api, in the version of go.mod; JobSet and the kinds
// of Kubeflow Trainer and LeaderWorkerSet are custom resource definitions in their modules.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strings"

	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// schema is the part of OpenAPI that tests check.
type schema struct {
	Type        string             `json:"type,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	Values      *schema            `json:"additionalProperties,omitempty"`
	Enum        []any              `json:"enum,omitempty"`
	IntOrString bool               `json:"x-kubernetes-int-or-string,omitempty"`
	Cut         bool               `json:"cut,omitempty"` // the contents are omitted
}

// kind is a schema with its source.
type kind struct {
	From   string  `json:"from"`
	Schema *schema `json:"schema"`
}

var types = map[string]any{
	"v1 Service": core.Service{}, "v1 ConfigMap": core.ConfigMap{}, "v1 PersistentVolumeClaim": core.PersistentVolumeClaim{}, "batch/v1 Job": batch.Job{},
}

var definitions = map[string][2]string{
	"jobset.x-k8s.io/v1alpha2 JobSet":               {"sigs.k8s.io/jobset@v0.12.0", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"},
	"trainer.kubeflow.org/v1alpha1 TrainingRuntime": {"github.com/kubeflow/trainer/v2@v2.2.1", "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml"},
	"trainer.kubeflow.org/v1alpha1 TrainJob":        {"github.com/kubeflow/trainer/v2@v2.2.1", "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml"},
	"leaderworkerset.x-k8s.io/v1 LeaderWorkerSet":   {"sigs.k8s.io/lws@v0.8.0", "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"},
}

func main() {
	log.SetFlags(0)
	kinds := map[string]*kind{}
	for name, of := range types {
		kinds[name] = &kind{"k8s.io/api@" + version("k8s.io/api"), typed(reflect.TypeOf(of))}
	}
	for name, of := range definitions {
		s := defined(of[0], of[1], name[strings.Index(name, "/")+1:strings.Index(name, " ")])
		s.Properties["metadata"] = typed(reflect.TypeFor[meta.ObjectMeta]())
		kinds[name] = &kind{of[0] + " " + of[1], s}
	}
	seen := map[*schema]bool{}
	for _, file := range os.Args[1:] {
		text, err := os.ReadFile(file)
		check(err)
		if !bytes.Contains(text, []byte("\napiVersion:")) {
			continue // SkyPilot's
		}
		for _, scheduler := range []string{"kueue", "volcano"} { // lines that these need
			text = bytes.ReplaceAll(text, []byte("# "+scheduler+": "), nil)
		}
		for _, doc := range bytes.Split(text, []byte("\n---\n")) {
			var m map[string]any
			check(yaml.Unmarshal(doc, &m))
			name := fmt.Sprint(m["apiVersion"], " ", m["kind"])
			if kinds[name] == nil {
				log.Fatalf("%s: no kind %s", file, name)
			}
			mark(kinds[name].Schema, m, seen)
		}
	}
	for _, k := range kinds {
		k.Schema.trim(seen)
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", " ")
	check(e.Encode(kinds))
}

// version returns the version of a module this program is built with.
func version(module string) string {
	b, _ := debug.ReadBuildInfo()
	for _, d := range b.Deps {
		if d.Path == module {
			return d.Version
		}
	}
	panic(module)
}

// defined returns the schema of a version in a custom resource definition.
func defined(module, file, version string) *schema {
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	check(err)
	var at struct{ Dir string }
	check(json.Unmarshal(out, &at))
	text, err := os.ReadFile(filepath.Join(at.Dir, file))
	check(err)
	var d struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema *schema `json:"openAPIV3Schema"`
				}
			}
		}
	}
	check(yaml.Unmarshal(text, &d))
	for _, v := range d.Spec.Versions {
		if v.Name == version {
			return v.Schema.OpenAPIV3Schema
		}
	}
	panic(file + " has no " + version)
}

// typed returns the schema of a Go type, as encoding/json writes it.
func typed(t reflect.Type) *schema {
	switch t {
	case reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString]():
		return &schema{IntOrString: true}
	case reflect.TypeFor[meta.Time]():
		return &schema{Type: "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typed(t.Elem())
	case reflect.String:
		return &schema{Type: "string"}
	case reflect.Bool:
		return &schema{Type: "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return &schema{Type: "integer"}
	case reflect.Map:
		return &schema{Type: "object", Values: typed(t.Elem())}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &schema{Type: "string"}
		}
		return &schema{Type: "array", Items: typed(t.Elem())}
	case reflect.Struct:
		s := &schema{Type: "object", Properties: map[string]*schema{}}
		for i := range t.NumField() {
			s.add(t.Field(i))
		}
		return s
	}
	panic(t)
}

func (s *schema) add(f reflect.StructField) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case name == "-":
	case options == "inline" || f.Anonymous && name == "":
		for key, of := range typed(f.Type).Properties {
			s.Properties[key] = of
		}
	default:
		s.Properties[name] = typed(f.Type)
	}
}

// mark records the schemas that a value uses.
func mark(s *schema, v any, seen map[*schema]bool) {
	if s == nil {
		return
	}
	seen[s] = true
	switch v := v.(type) {
	case map[string]any:
		for key, x := range v {
			if of := s.Properties[key]; of != nil {
				mark(of, x, seen)
			} else {
				mark(s.Values, x, seen)
			}
		}
	case []any:
		for _, x := range v {
			mark(s.Items, x, seen)
		}
	}
}

// trim removes the contents of schemas that no manifest uses.
func (s *schema) trim(seen map[*schema]bool) {
	if s == nil {
		return
	}
	if !seen[s] && (s.Properties != nil || s.Items != nil || s.Values != nil) {
		*s = schema{Type: s.Type, Cut: true}
		return
	}
	for _, of := range s.Properties {
		of.trim(seen)
	}
	s.Items.trim(seen)
	s.Values.trim(seen)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
