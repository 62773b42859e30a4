package spec

import (
	"fmt"
	"path/filepath"
	"strings"

	"zeroth/config"
	"zeroth/config/dialect"
	"zeroth/config/tree"
	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
	"zeroth/job/hf"
)

// contents is the parsed content of a job file.
type contents struct {
	root     *tree.Node           // a mapping
	from     *dialect.Translation // nil unless the file is another program's configuration
	problems tree.Problems        // its syntax errors
}

// readFile returns the contents of a job file.
func readFile(file string) contents {
	root := &tree.Node{At: tree.Position{File: file}, Kind: tree.Mapping}
	wrong := func(wrong, want string) contents { return contents{root, nil, tree.Fatal(root.At, wrong, want)} }
	if what, want := notJob(file); what != "" {
		return wrong(what, want)
	}
	raw, err := tree.ReadJob(file)
	if err != nil {
		want := "want the path of a job file in YAML, or - for the standard input; 'zeroth init' writes one"
		for _, near := range []string{file + ".yaml", strings.TrimSpace(file), strings.TrimSuffix(file, ".yml") + ".yaml", filepath.Join(file, "job.yaml")} {
			if near != file && input.Exists(near) {
				want = "did you mean " + near + "?"
			}
		}
		if input.Exists(filepath.Join(file, "config.json")) {
			want = asModel(file)
		}
		if address := hf.Address(file); address != "" {
			want = asModel(address)
		}
		return wrong("the job file cannot be read: "+input.Cause(err).Error(), want)
	}
	top, problems := tree.Parse(tree.WithoutComments(raw), root.At)
	if problems.Fatal() {
		return contents{root, nil, problems}
	}
	if top == nil || top.Kind == tree.Nothing {
		problems = append(problems, tree.Fatal(root.At, "the job file is empty", `it needs at least a line like: data: {text: ["*.txt"]}`)...)
	} else if top.Kind != tree.Mapping {
		problems = append(problems, tree.Fatal(top.At, "the job file is "+top.What()+", not a mapping", `want sections like: data: {text: ["*.txt"]}`)...)
	} else if filepath.Base(file) == "config.json" && top.Find("model_type") != nil {
		problems = tree.Fatal(root.At, "this is the config.json of a model, not a job file", asModel(filepath.Dir(file)))
	} else if t := dialect.Translated(top); t != nil {
		return contents{t.Job, t, append(problems, t.Problems...)}
	} else {
		root = top
	}
	return contents{root, nil, problems}
}

// asModel returns advice on the name of a model where a job file is wanted.
func asModel(name string) string {
	return fmt.Sprintf("a model is planned with 'zeroth plan --model %s', and trained by a job with model.from: "+
		"'zeroth init finetune --model %[1]s' writes one", name)
}

// notJob returns an error message and advice if the file is data or a model, not a job. Both are
// empty if it may be a job.
func notJob(file string) (wrong, want string) {
	if hub.Is(file) {
		return "this is a model, not a job file", asModel(file)
	}
	if strings.Contains(file, "://") {
		return "this is an address, not a job file", "nothing is downloaded here: fetch the file first"
	}
	what, key := data.Kind(file)
	if what == "" || file == "-" {
		return "", ""
	}
	wrong = "this is " + what + ", not a job file"
	if key == "" {
		return wrong, "'zeroth init' writes a job file"
	}
	section := fmt.Sprintf("%s: [%s]", key, tree.Quote(file))
	if format := data.Format(file); key == "documents" && format != "" {
		section += ", format: " + format
	}
	return wrong, fmt.Sprintf("name it in a job file, such as job.yaml with the line data: {%s}, and type: zeroth train job.yaml", section)
}

// CheckpointingOf reads the checkpoint section of a job file. It ignores errors in other sections.
func CheckpointingOf(file string) (config.Checkpointing, error) {
	in := readFile(file)
	if in.problems.Fatal() {
		return config.Checkpointing{}, in.problems
	}
	c := config.Config{}
	r := config.NewReader(&c, file, in.root)
	r.Read()
	for _, p := range r.Problems {
		if section, _, _ := strings.Cut(p.Key, "."); section == "checkpoint" {
			return c.Checkpoint, tree.Problems{p}
		}
	}
	return c.Checkpoint, nil
}
