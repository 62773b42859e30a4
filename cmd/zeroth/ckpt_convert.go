package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
	"zeroth/internal/input/s3"
	"zeroth/job"
	"zeroth/job/hf"
	"zeroth/job/state"
	"zeroth/nn"
)

// dtypes lists the element types of an export by their names in job files.
var dtypes = map[string]checkpoint.DType{"fp32": checkpoint.F32, "bf16": checkpoint.BF16, "fp16": checkpoint.F16}

func (a *app) ckptExport() *cobra.Command {
	var to, dtype, size, form, step string
	var adapter, asJSON bool
	var names theirs
	cmd := a.onFolders(1, "export DIR --to FOLDER", "Write the parameters as a Hugging Face folder", func(cmd *cobra.Command, args []string) error {
		e, err := exportOptions(dtype, size)
		if err == nil {
			args[0], err = a.local(cmd.Context(), args[0], hub.AnyWeights)
		}
		foreign := state.IsForeign(args[0])
		if err == nil && !foreign {
			args[0], err = state.Final(args[0], step)
		}
		switch {
		case err != nil:
		case foreign && step != "":
			err = input.BadInput(errors.New("--step is for runs and folders of checkpoints of zeroth"))
		case !slices.Contains(formats, form):
			err = input.BadInput(fmt.Errorf("--format %s; want %s; other programs convert a folder of hf, such as llama.cpp to gguf", form, strings.Join(formats, ", ")))
		case adapter && (foreign || form != "hf"):
			err = input.BadInput(errors.New("--adapter is for checkpoints of jobs with train.lora, and for --format hf"))
		case !foreign && names != (theirs{}):
			err = input.BadInput(fmt.Errorf("--model and --names are for checkpoints of DeepSpeed and PyTorch, which %s is not", args[0]))
		}
		if err != nil {
			return err
		}
		if foreign {
			return a.exportForeign(cmd, args[0], to, form, e, names, asJSON)
		}
		if adapter && (cmd.Flags().Changed("dtype") || cmd.Flags().Changed("shard-size")) {
			return input.BadInput(errors.New("--adapter writes one file in float32; leave out --dtype and --shard-size"))
		}
		return a.export(cmd, args[0], to, form, e, adapter, asJSON)
	})
	cmd.Long = `Write the parameters of a checkpoint as a Hugging Face folder: config.json and
model.safetensors, or numbered parts and their index. transformers, model.from of a
job and 'zeroth sample --run' read it. A few MiB of memory are enough for any model.
LoRA adapters (train.lora) are merged; --adapter writes only the adapters, in PEFT's
format.

DIR may also be a checkpoint of DeepSpeed (ZeRO 0 to 3, universal), of FSDP
(torch.distributed.checkpoint) or of torch.save. --format dcp writes a folder for
torch.distributed.checkpoint with the optimizer state, --format torch a
pytorch_model.bin.`
	cmd.SuggestFor = []string{"merge", "convert", "save"}
	cmd.Example = "  zeroth ckpt export run1 --to model\n  zeroth ckpt export run1/ckpt/step-00001000 --to model --dtype bf16 --shard-size 5GB\n  zeroth ckpt export global_step500 --to model --dtype bf16"
	toFlag(cmd, &to, "`folder` to write, new or empty")
	jsonFlag(cmd, &asJSON)
	stepFlag(cmd, &step, "best if train.final_model of the run is best, else latest")
	cmd.Flags().BoolVar(&adapter, "adapter", false, "write only the LoRA adapters: adapter_config.json and adapter_model.safetensors, for PEFT")
	cmd.Flags().StringVar(&dtype, "dtype", "fp32", "`type` of the elements: fp32, bf16 or fp16, rounded to nearest even")
	cmd.Flags().StringVar(&size, "shard-size", "5GB", "maximum `bytes` of a part, such as 500MB or 2GiB")
	cmd.Flags().StringVar(&form, "format", "hf", "`format` of the folder: hf, dcp or torch")
	names.add(cmd)
	must(cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("dtype", cobra.FixedCompletions([]string{"fp32", "bf16", "fp16"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// formats are the forms of an export.
var formats = []string{"hf", "dcp", "torch"}

func exportOptions(dtype, size string) (e checkpoint.Export, err error) {
	var wrong input.Problems
	e.DType = dtypes[dtype]
	wrong.If(e.DType == "", "--dtype %s; want fp32, bf16 or fp16", dtype)
	e.PartSize, err = config.ParseSize(size)
	wrong.If(err != nil, "--shard-size: %w", err)
	return e, wrong.Err()
}

// The JSON of export and import. Bytes is the total size of the written files; Checkpoint and
// Folder are the paths that were read and written.
type (
	exported struct {
		Checkpoint string           `json:"checkpoint"`
		Step       int64            `json:"step"`
		Folder     string           `json:"folder"`
		DType      checkpoint.DType `json:"dtype"`
		Files      []string         `json:"files"`
		Bytes      int64            `json:"bytes"`
		Seconds    float64          `json:"seconds"`
	}
	imported struct {
		Folder     string   `json:"folder"`
		Checkpoint string   `json:"checkpoint"`
		Step       int64    `json:"step"`
		LeftOut    []string `json:"left_out"` // tensors that the model does not have
		Bytes      int64    `json:"bytes"`
		Seconds    float64  `json:"seconds"`
	}
)

// exporting is a checkpoint to export and the function that writes it.
type exporting struct {
	from, about string // its folder, and how results name it
	step        int64
	dtype       checkpoint.DType
	total       int64 // bytes that write reports
	write       func(ctx context.Context, done func(int64)) (note string, err error)
	notes       string // printed with the result
}

// export exports one of our checkpoints.
func (a *app) export(cmd *cobra.Command, dir, to, form string, e checkpoint.Export, adapter, asJSON bool) error {
	ck, err := state.OpenCheckpoint(dir)
	if err != nil {
		return err
	}
	defer ck.Close()
	x := exporting{from: ck.Path, about: ck.Path, step: ck.Step, dtype: e.DType}
	writes := func(t checkpoint.Tensor) bool { return t.Kind == checkpoint.Master && !nn.IsAdapter(t.Name) }
	switch {
	case adapter:
		adapts, err := state.Adapts(ck)
		if err != nil {
			return err
		}
		writes = func(t checkpoint.Tensor) bool { return t.Kind == checkpoint.Master && adapts(t.Name) }
		x.write = func(_ context.Context, done func(int64)) (string, error) {
			done(x.total)
			return "", state.ExportAdapter(ck, to)
		}
	case form == "hf":
		x.write = func(ctx context.Context, done func(int64)) (string, error) {
			e.Progress = done
			return state.ExportModel(ctx, ck, to, e)
		}
	case hf.Adapted(ck):
		return input.BadInput(errors.New("--format hf merges adapters; the other formats cannot contain them"))
	default:
		writes = func(t checkpoint.Tensor) bool {
			return t.Kind == checkpoint.Master || form == "dcp" && t.Kind != checkpoint.Attached
		}
		x.write = func(ctx context.Context, done func(int64)) (string, error) {
			return state.ExportTorch(ctx, form, ck, to, e.DType, done)
		}
	}
	for _, t := range ck.Tensors {
		if writes(t) {
			x.total += int64(t.Numel() * e.DType.Size())
		}
	}
	return a.exportTo(cmd, to, &x, asJSON)
}

// exportTo writes a checkpoint to a new folder.
func (a *app) exportTo(cmd *cobra.Command, to string, x *exporting, asJSON bool) error {
	begin := time.Now()
	leave, err := newFolder("--to", to)
	if err != nil {
		return err
	}
	defer leave()
	var note string
	speed, err := a.long(cmd, "export", x.total, func(ctx context.Context, done func(int64)) (err error) {
		note, err = x.write(ctx, done)
		return err
	})
	if err != nil {
		return err
	}
	a.note(note)
	if asJSON {
		out := exported{Checkpoint: x.from, Step: x.step, Folder: to, DType: x.dtype, Seconds: time.Since(begin).Seconds()}
		out.Files, out.Bytes, err = written(to)
		return cmp.Or(err, a.writeJSON(out))
	}
	a.say("%sexported %s to %s (%s)\n", x.notes, x.about, to, speed)
	return nil
}

// written returns the files of a folder and their total size.
func written(path string) (names []string, bytes int64, err error) {
	files, err := os.ReadDir(path)
	for _, f := range files {
		if f.Name() == lockFile {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return nil, 0, err
		}
		names, bytes = append(names, f.Name()), bytes+info.Size()
	}
	return names, bytes, err
}

// lockFile exists while an export writes to a folder. Without it, of two exports the one
// that fails would remove the other's files.
const lockFile = ".lock"

// newFolder creates a folder, or uses an empty one, and locks it. leave unlocks it, and
// removes it again if it is still empty.
func newFolder(flag, path string) (leave func(), err error) {
	made := job.Missing(path)
	undo := func() {
		for _, folder := range made {
			os.Remove(folder) // fails if it is not empty
		}
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return nil, input.BadInput(fmt.Errorf("%s %s is a file; name a new folder", flag, path))
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(path, 0o777)
	}
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("%s: %w; name a folder that can be created", flag, err))
	}
	lock, err := vfs.OS{}.Lock(filepath.Join(path, lockFile))
	if held := (*vfs.Locked)(nil); errors.As(err, &held) {
		return nil, fmt.Errorf("%s %s is in use by %s; name another folder", flag, path, held.Holder())
	}
	if err != nil {
		undo()
		return nil, err
	}
	leave = func() {
		os.Remove(filepath.Join(path, lockFile))
		lock.Close()
		undo()
	}
	input.Sweep(path)
	if err := isEmpty(flag, path); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// isEmpty returns an error if a folder contains more than a lock.
func isEmpty(flag, path string) error {
	files, err := os.ReadDir(path)
	if err != nil {
		return input.BadInput(fmt.Errorf("%s: %w; name a new folder", flag, err))
	}
	files = slices.DeleteFunc(files, func(f os.DirEntry) bool { return f.Name() == lockFile })
	if i := slices.IndexFunc(files, func(f os.DirEntry) bool { return strings.HasSuffix(f.Name(), ".safetensors.tmp") }); i >= 0 {
		return input.BadInput(fmt.Errorf("%s %s: the folder contains %s of an export that was killed or is still writing; remove the folder or name a new one", flag, path, files[i].Name()))
	}
	if len(files) > 0 {
		return input.BadInput(fmt.Errorf("%s %s: the folder is not empty (%s); name a new folder", flag, path, job.Some(files, 3)))
	}
	return nil
}

func (a *app) ckptImport() *cobra.Command {
	var to string
	var asJSON bool
	var names theirs
	cmd := a.onFolders(1, "import FOLDER --to DIR", "Convert a Hugging Face folder or another program's checkpoint", func(cmd *cobra.Command, args []string) error {
		var err error
		if args[0], err = a.local(cmd.Context(), args[0], hub.AnyWeights); err != nil {
			return err
		}
		if state.IsForeign(args[0]) {
			return a.importForeign(cmd, args[0], to, names, asJSON)
		}
		if names != (theirs{}) {
			return input.BadInput(fmt.Errorf("--model and --names are for checkpoints of DeepSpeed and PyTorch, which %s is not", args[0]))
		}
		return a.importModel(cmd, args[0], to, asJSON)
	})
	cmd.Long = `Convert a Hugging Face folder (config.json with model.safetensors, or parts and their
index) to a checkpoint of step 0. A job of that model starts from it with --resume and
the checkpoint's folder, with fresh optimizer state. You rarely need this: a job with
model.from starts directly from the folder.

FOLDER may also be a checkpoint of DeepSpeed (ZeRO 0 to 3, universal), of FSDP
(torch.distributed.checkpoint) or of torch.save: parameters, both moments, step, loss
scale and the optimizer's settings are imported. The model's config.json must be in the
folder, next to it, or in the folder --model.`
	cmd.Example = `  zeroth ckpt import gpt2 --to start
  zeroth train job.yaml --resume start/step-00000000 --out run1
  zeroth ckpt import global_step500 --model llama --to start`
	names.add(cmd)
	toFlag(cmd, &to, "new or empty `folder` of checkpoints, also s3://bucket/folder")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// importing is a folder to import and the function that does it.
type importing struct {
	from, about string // its path, and how results name it
	step        int64
	total       int64 // bytes that do reports
	do          func(ctx context.Context, o checkpoint.Options, done func(int64)) (path string, err error)
	leftOut     func() []string // names of tensors that were not imported
	notes       func() string   // printed with the result
}

func (a *app) importModel(cmd *cobra.Command, folder, to string, asJSON bool) error {
	src, err := state.OpenModelFolder(folder)
	if err != nil {
		return err
	}
	defer src.Close()
	return a.importTo(cmd, to, &importing{from: folder, about: folder, total: src.Bytes,
		do: func(ctx context.Context, o checkpoint.Options, done func(int64)) (string, error) {
			return src.Import(ctx, to, o, done)
		},
		leftOut: func() []string { return src.Unfit },
		notes: func() string {
			var lines []string
			if steps, _ := filepath.Glob(filepath.Join(folder, "global_step*")); len(steps) > 0 {
				lines = append(lines, fmt.Sprintf("imported only the weights of %s; import %s to include the optimizer state and the step", folder, steps[len(steps)-1]))
			}
			lines = append(lines, src.Notes...)
			if len(src.Unfit) > 0 {
				lines = append(lines, "skipped, because the model does not have them: "+printable(src.Unfit))
			}
			return strings.Join(append(lines, ""), "\n")
		}}, asJSON)
}

// importTo writes a checkpoint to a folder of checkpoints.
func (a *app) importTo(cmd *cobra.Command, to string, x *importing, asJSON bool) error {
	begin := time.Now()
	hold, undo, err := newCheckpoint(to, x.step)
	if err != nil {
		return err
	}
	var path string
	speed, err := a.long(cmd, "import", x.total, func(ctx context.Context, done func(int64)) error {
		path, err = x.do(ctx, checkpoint.Options{Hold: hold}, done)
		return errors.Join(err, undo())
	})
	if err != nil {
		return err
	}
	if asJSON {
		out := imported{Folder: x.from, Checkpoint: path, Step: x.step, LeftOut: append([]string{}, x.leftOut()...), Seconds: time.Since(begin).Seconds()}
		_, out.Bytes, err = written(path)
		return cmp.Or(err, a.writeJSON(out))
	}
	a.say("%simported %s as %s (%s)\n", x.notes(), x.about, path, speed)
	return nil
}

// printable joins names that come from a file, with control characters escaped.
func printable(names []string) string {
	var out []string
	for _, s := range names {
		out = append(out, checkpoint.Plain(s))
	}
	return strings.Join(out, ", ")
}

// newCheckpoint creates and locks a folder for a checkpoint of a step, which must become
// its latest. undo unlocks it, and removes it again if it is still empty.
func newCheckpoint(root string, step int64) (hold *checkpoint.Hold, undo func() error, err error) {
	if err := becomesLatest(root, step); err != nil { // before a folder is created
		return nil, nil, err
	}
	var made []string
	if !s3.Is(root) {
		made = job.Missing(root)
	}
	if hold, err = checkpoint.HoldFolder(nil, root); err != nil {
		return nil, nil, fmt.Errorf("--to %s: %w", root, err)
	}
	undo = func() error {
		err := hold.Close() // in object storage, Close waits for uploads
		for _, folder := range made {
			os.Remove(folder) // fails if it is not empty
		}
		return err
	}
	if err := becomesLatest(root, step); err != nil { // another process was first
		return nil, nil, errors.Join(err, undo())
	}
	return hold, undo, nil
}

// becomesLatest returns an error if a checkpoint of a step would not become the latest of a
// folder.
func becomesLatest(root string, step int64) error {
	list, err := checkpoint.List(root)
	if err != nil {
		return input.BadInput(fmt.Errorf("--to: %w; name a folder that can be created", err))
	}
	e, ok := checkpoint.Newest(list)
	if ok && e.Status == checkpoint.Damaged {
		return input.BadInput(fmt.Errorf("--to %s: %s is damaged: %s; name another folder", root, filepath.Base(e.Path), e.Why))
	}
	if ok && e.Step >= step {
		return input.BadInput(fmt.Errorf("--to %s: it has a checkpoint of step %d, and the import would become the latest at step %d; name another folder", root, e.Step, step))
	}
	return nil
}
