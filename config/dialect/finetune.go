package dialect

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"zeroth/config/tree"
	"zeroth/config/words"
	"zeroth/internal/show"
	"zeroth/job/hf"
)

// llamaFactory is LLaMA-Factory's YAML: TrainingArguments and keys of its own.
var llamaFactory = dialect{Name: "LLaMA-Factory", presets: ofLLaMAFactory, reads: true, after: llamaFactoryJob, is: func(root *tree.Node) bool {
	return root.Find("finetuning_type") != nil || root.Find("cutoff_len") != nil ||
		root.Find("stage") != nil && root.Find("template") != nil
}}

// axolotl is Axolotl's YAML.
var axolotl = dialect{Name: "Axolotl", presets: ofAxolotl, reads: true, after: axolotlJob, is: func(root *tree.Node) bool {
	return root.Find("base_model") != nil
}}

// ofFineTuning are the defaults that LLaMA-Factory and Axolotl share, in addition to the Trainer's.
var ofFineTuning = []preset{
	{key: "data.format", value: "chat"},
	{key: "data.learn", theirs: "train_on_inputs train_on_prompt", value: "assistant"},
	{key: "train.lora.dropout", theirs: "lora_dropout", value: "0", when: adapts},
	{key: "data.validation", theirs: "val_set_size val_size", value: "0", when: lacks("data.validation_documents")},
}

// ofLLaMAFactory are the defaults of LLaMA-Factory (0.9.5).
var ofLLaMAFactory = slices.Concat(ofFineTuning, []preset{
	{key: "model.context", theirs: "cutoff_len", value: "2048"},
	{key: "train.lora.rank", theirs: "lora_rank", value: "8", when: adapts},
	{key: "train.lora.targets", theirs: "lora_target", value: "[all-linear]", when: adapts},
	{key: "zero.recompute", theirs: "disable_gradient_checkpointing", value: "block"},
}, ofArguments)

// ofAxolotl are the defaults of Axolotl (0.19).
var ofAxolotl = slices.Concat(ofFineTuning, []preset{
	{key: "model.context", theirs: "sequence_len", value: "512"},
	{key: "precision", theirs: "bf16 fp16", value: "bf16"},
	{key: "train.micro_batch", theirs: "micro_batch_size", value: "1"},
	{key: "train.epochs", theirs: "num_epochs max_steps", value: "1", when: lacks("train.steps")},
	{key: "schedule.type", theirs: "lr_scheduler", value: "cosine"},
	{key: "schedule.warmup", theirs: "warmup_steps warmup_ratio", value: "0.03", note: "Axolotl's has at most 100 steps"},
}, ofArguments)

// adapts holds if adapters are trained.
func adapts(t *Translation) bool { return t.has("train.lora") != nil }

// tuned completes the job of either program: weights, adapters and their targets, which may be a text.
func (t *Translation) tuned(adapters bool) {
	targets := t.has("train.lora.targets")
	switch {
	case !adapters:
		t.Job.Remove("train.lora")
		return
	case t.has("train.lora") == nil:
		tree.Put(t.Job, "train.lora", &tree.Node{At: t.root.At, Kind: tree.Mapping})
	case targets != nil && slices.Contains([]string{"all", "all-linear"}, targets.Text):
		t.set("train.lora.targets", "[all-linear]", targets.At)
	case targets != nil && targets.Kind == tree.Scalar:
		list := &tree.Node{At: targets.At, Kind: tree.List}
		for name := range strings.SplitSeq(targets.Text, ",") {
			list.Items = append(list.Items, &tree.Node{At: targets.At, Kind: tree.Scalar, Text: strings.TrimSpace(name)})
		}
		tree.Put(t.Job, "train.lora.targets", list)
	}
}

// llamaFactoryJob completes the job by what follows from several keys.
func llamaFactoryJob(t *Translation) {
	t.tuned(!says("finetuning_type", "full")(t))
	t.registered("data.documents", "dataset")
	t.registered("data.validation_documents", "eval_dataset")
	argumentsJob(t)
	if rank := t.known("train.lora.rank"); rank != nil && t.has("train.lora.alpha") == nil && t.has("train.lora.from") == nil {
		if n, wrong := tree.Whole(rank); wrong == "" {
			t.set("train.lora.alpha", strconv.FormatInt(2*n, 10), rank.At)
		}
	}
}

// registered replaces the names of datasets, which are the value of their key, by files, as dataset_info.json says.
func (t *Translation) registered(key, theirs string) {
	names := t.has(key)
	if names == nil {
		return
	}
	t.Job.Remove(key)
	dir := cmp.Or(t.their("dataset_dir").Text, "data")
	info, problems := read(path.Join(dir, "dataset_info.json"))
	if len(problems) > 0 {
		t.drop(theirs, path.Join(dir, "dataset_info.json")+" has the files of "+names.String()+", but cannot be read: name them in "+key)
		return
	}
	list, files := inline(names), &tree.Node{At: names.At, Kind: tree.List}
	for name := range strings.SplitSeq(strings.Trim(list, `[]"`), ",") {
		name = strings.Trim(name, ` "`)
		set := info.Find(name)
		switch {
		case set == nil:
			t.wrong(names.At, theirs, show.Printable(name)+" is not in "+info.At.File, "want the name of a dataset in that file")
		case set.Value.Find("file_name") == nil:
			t.drop(theirs, name+" is not a file: download it, and name its files in "+key)
		default:
			t.registeredFile(dir, set, files)
		}
	}
	if len(files.Items) > 0 {
		tree.Put(t.Job, key, files)
	}
}

// usual has the values of keys of dataset_info.json that chats and Alpaca's records have anyway.
var usual = map[string][]string{
	"formatting": {"alpaca", "sharegpt"}, "split": {"train"}, "ranking": {"false"}, "columns.prompt": {"instruction"}, "columns.query": {"input"}, "columns.response": {"output"},
	"columns.system": {"system"}, "columns.history": {"history"}, "columns.tools": {"tools"}, "columns.messages": {"messages", "conversations"},
	"tags.role_tag": {"from", "role"}, "tags.content_tag": {"value", "content"}, "tags.user_tag": {"human", "user"}, "tags.assistant_tag": {"gpt", "assistant"},
	"tags.observation_tag": {"observation", "tool"}, "tags.system_tag": {"system"}, "tags.function_tag": {"function_call"},
}

// registeredFile adds the file of a dataset and refuses what its records are not read like.
func (t *Translation) registeredFile(dir string, set *tree.Pair, files *tree.Node) {
	var check func(in string, n *tree.Node)
	check = func(in string, n *tree.Node) {
		for _, p := range n.Pairs {
			switch name, v := tree.Join(in, p.Key), p.Value; {
			case v.Kind == tree.Mapping:
				check(name, v)
			case v.Kind == tree.Nothing:
			case name == "file_name":
				files.Items = append(files.Items, &tree.Node{At: v.At, Kind: tree.Scalar, Text: path.Join(dir, v.Text), Quoted: true})
			case allows(usual[name], v):
			case name == "columns.messages":
				tree.Put(t.Job, "data.keys.messages", v)
			default:
				t.wrong(v.At, tree.Join(set.Key, name), v.String()+" is not supported", "want files of chats or Alpaca's records, as in docs/data.md")
			}
		}
	}
	check("", set.Value)
}

// drop reports a key without a meaning here.
func (t *Translation) drop(key, note string) {
	t.dropped = append(t.dropped, words.Word{Key: key, Note: note})
}

// axolotlJob completes the job by what follows from several keys.
func axolotlJob(t *Translation) {
	t.tuned(!lacksTheir("adapter")(t))
	for _, key := range []string{"data.documents", "data.validation_documents"} {
		t.datasets(key)
	}
	if steps := t.text("train.steps"); steps == "" || strings.HasPrefix(steps, "-") {
		t.Job.Remove("train.steps")
	}
	t.perEpoch("train.eval_every", "evals_per_epoch", "eval_strategy")
	t.perEpoch("checkpoint.every", "saves_per_epoch", "save_strategy")
	held, silent := t.has("data.validation"), lacks("train.eval_every")(t) && lacksTheir("eval_strategy")(t)
	if held != nil && !sameValue(held.Text, "0") && silent {
		t.inEpoch("train.eval_every", 1, "val_set_size", held)
	}
	if lacks("checkpoint.every")(t) && lacksTheir("save_strategy")(t) && lacks("train.steps")(t) {
		t.inEpoch("checkpoint.every", 1, "save_strategy", t.root)
	}
	argumentsJob(t)
}

// datasets translates a list of Axolotl's datasets: their files and format.
func (t *Translation) datasets(key string) {
	list := t.has(key)
	if list == nil {
		return
	}
	t.Job.Remove(key)
	files := &tree.Node{At: list.At, Kind: tree.List}
	for _, item := range list.Items {
		for _, p := range item.Pairs {
			t.dataset(key, p, files)
		}
	}
	if len(files.Items) > 0 {
		tree.Put(t.Job, key, files)
	}
}

// silent are keys of a dataset that are ignored, because the records of chats show them.
var silent = []string{"ds_type", "name", "conversation", "message_property_mappings", "chat_template", "roles",
	"message_field_role", "message_field_content"}

// dataset translates a key of a dataset, whose files it adds.
func (t *Translation) dataset(key string, p *tree.Pair, files *tree.Node) {
	v := p.Value
	formats := map[string]string{"chat_template": "chat", "alpaca": "chat", "sharegpt": "chat", "completion": "text"}
	kind, _, _ := strings.Cut(v.Text, ".")
	switch {
	case v.Kind == tree.Nothing:
	case p.Key == "path" && (hf.Address(v.Text) != "" || slices.Contains([]string{"json", "parquet"}, v.Text)):
		t.drop("datasets", v.Text+" is not a file: download it, and name its files in "+key)
	case p.Key == "path" || p.Key == "data_files" && v.Kind == tree.Scalar:
		files.Items = append(files.Items, v)
	case p.Key == "data_files":
		files.Items = append(files.Items, v.Items...)
	case p.Key == "type" && formats[kind] != "":
		t.set("data.format", formats[kind], v.At)
	case p.Key == "field_messages":
		tree.Put(t.Job, "data.keys.messages", v)
	case slices.Contains(silent, p.Key):
	case p.Key == "split" && v.Text == "train", p.Key == "train_on_eos" && v.Text == "turn":
	case p.Key == "roles_to_train" && allows([]string{"assistant", "gpt"}, v):
	case p.Key == "roles_to_train":
		t.wrong(v.At, "datasets."+p.Key, "only answers are learned, or every token", "want [assistant], or train_on_inputs: true")
	default:
		t.wrong(v.At, "datasets."+p.Key, v.String()+" is not supported", "want files of chats, Alpaca's records or text, as in docs/data.md")
	}
}
