package foreign

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"zeroth/checkpoint"
	"zeroth/checkpoint/torchfile"
	"zeroth/internal/input"
)

// dcp is a folder of torch.distributed.checkpoint being opened.
type dcp struct {
	c       *Checkpoint
	folder  string
	files   map[string]*dcpFile
	at      map[string]*torchfile.Object // _StorageInfo by name and offsets
	planner *torchfile.Dict
	left    int64                     // bytes of the data files that are in no part yet
	groups  map[string]map[string]any // settings of the optimizer's parameter groups
	order   []string                  // of groups
}

// dcpFile is a data file, opened when first used.
type dcpFile struct {
	in   *os.File
	size int64
}

// openDCP opens a folder with .metadata.
func (c *Checkpoint) openDCP(folder string) error {
	c.Form = "torch.distributed.checkpoint"
	return c.addDCP(folder)
}

// openAccelerate opens the model's and the optimizer's folder, as written by Accelerate and the
// Trainer.
func (c *Checkpoint) openAccelerate(folder string) error {
	if err := c.addDCP(filepath.Join(folder, "pytorch_model_fsdp_0")); err != nil {
		return err
	}
	c.Form = "torch.distributed.checkpoint, by Accelerate"
	return c.addOptimizer(filepath.Join(folder, "optimizer_0"))
}

// addOptimizer adds the optimizer's folder, if there is one.
func (c *Checkpoint) addOptimizer(folder string) error {
	if !input.Exists(folder) {
		return nil
	}
	if !input.Exists(filepath.Join(folder, ".metadata")) {
		return fmt.Errorf("%s has no .metadata, which is written last: it was not saved completely", folder)
	}
	return c.addDCP(folder)
}

func (c *Checkpoint) addDCP(folder string) error {
	path := filepath.Join(folder, ".metadata")
	d := &dcp{c: c, folder: folder, files: map[string]*dcpFile{}, at: map[string]*torchfile.Object{}, groups: map[string]map[string]any{}}
	bytes, ranks := int64(0), map[string]bool{}
	for _, name := range matching(folder, "*.distcp") {
		st, err := os.Stat(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		bytes += st.Size()
		ranks[strings.Split(strings.Trim(name, "_"), "_")[0]] = true
	}
	c.Ranks, c.bytes, d.left = max(c.Ranks, len(ranks)), c.bytes+bytes, bytes
	v, err := torchfile.Pickle(path, bytes)
	if err != nil {
		return err
	}
	m, _ := v.(*torchfile.Object)
	tensors, ok := m.Field("state_dict_metadata").(*torchfile.Dict)
	storage, stored := m.Field("storage_data").(*torchfile.Dict)
	if !m.Is("Metadata") || !ok || !stored {
		return fmt.Errorf("%s is not the metadata of a checkpoint", path)
	}
	d.planner, _ = m.Field("planner_data").(*torchfile.Dict)
	for i, k := range storage.Keys {
		key, _ := k.(*torchfile.Object)
		info, ok := storage.Values[i].(*torchfile.Object)
		name, named := key.Field("fqn").(string)
		if !ok || !named {
			return fmt.Errorf("%s: storage_data has %s", path, torchfile.Kind(k))
		}
		if key.Field("offset") == nil { // an object that is not a tensor
			d.at[name] = info
			continue
		}
		offset, err := torchfile.Ints(key.Field("offset"))
		if err != nil {
			return fmt.Errorf("%s: %s: %w", path, checkpoint.Plain(name), err)
		}
		d.at[fmt.Sprint(name, offset)] = info
	}
	for name, v := range entries(tensors) {
		o, _ := v.(*torchfile.Object)
		if !o.Is("TensorStorageMetadata") { // an object, such as a learning rate
			if m := groupSetting.FindStringSubmatch(name); m == nil {
				d.c.leave(name)
			} else if err := d.setting(m[1], m[2], name); err != nil {
				return fmt.Errorf("%s: %s: %w", path, checkpoint.Plain(name), err)
			}
			continue
		}
		if err := d.tensor(name, o); err != nil {
			return fmt.Errorf("%s: %s: %w", path, checkpoint.Plain(name), err)
		}
	}
	for _, of := range d.order {
		g := groupOf(func(key string) any { return d.groups[of][key] })
		if !slices.Contains(c.Groups, g) { // flattened, each parameter has its own
			c.Groups = append(c.Groups, g)
		}
	}
	return nil
}

// groupSetting matches names of the settings of parameter groups, which are numbers or, flattened,
// parameters.
var groupSetting = regexp.MustCompile(`(?:^|\.)param_groups\.(.+)\.(\w+)$`)

// setting reads a setting of a parameter group.
func (d *dcp) setting(group, key, name string) error {
	if d.at[name] == nil || !slices.Contains([]string{"lr", "initial_lr", "weight_decay", "betas", "eps", "momentum", "decoupled_weight_decay"}, key) {
		return nil
	}
	open, err := d.part("it", d.at[name])
	if err != nil {
		return err
	}
	v, err := open()
	if d.groups[group] == nil {
		d.groups[group], d.order = map[string]any{}, append(d.order, group)
	}
	d.groups[group][key] = v
	return err
}

// flattened matches names of state in flattened dictionaries: state.NAME.exp_avg.
var flattened = regexp.MustCompile(`^(?:.*\.)?state\.(.+)\.(\w+)$`)

// identify returns the parameter that a tensor belongs to, and the kind of its state.
func (d *dcp) identify(fqn string) (name, kind string) {
	path := torchfile.Items(d.planner.At(fqn))
	text := func(i int) string { s, _ := path[i].(string); return s }
	if n := len(path); n >= 3 && text(n-3) == "state" {
		return text(n - 2), text(n - 1)
	}
	if m := flattened.FindStringSubmatch(fqn); m != nil && (slices.Contains(moments, m[2]) || m[2] == "step") {
		return m[1], m[2]
	}
	switch {
	case len(path) == 1:
		return text(0), checkpoint.Master
	case len(path) == 2 && (text(0) == "model" || text(0) == "state_dict" || text(0) == "app"):
		return text(1), checkpoint.Master
	case len(path) == 3 && text(0) == "app" && text(1) == "model":
		return text(2), checkpoint.Master
	case len(path) == 0:
		return fqn, checkpoint.Master
	}
	return "", ""
}

// tensor adds one tensor from its metadata.
func (d *dcp) tensor(fqn string, o *torchfile.Object) error {
	name, kind := d.identify(fqn)
	shape, err := torchfile.Ints(o.Field("size"))
	if err != nil {
		return err
	}
	dtype, ok := propertyType(o.Field("properties"))
	if !ok {
		return errors.New("its element type is unknown")
	}
	x := &tensor{Tensor: checkpoint.Tensor{Name: name, Kind: kind, DType: dtype, Shape: shape}, grid: shape}
	if _, ok := numel(shape); !ok {
		return fmt.Errorf("its shape is %v", shape)
	}
	for _, v := range torchfile.Items(o.Field("chunks")) {
		chunk, _ := v.(*torchfile.Object)
		start, err := torchfile.Ints(chunk.Field("offsets"))
		if err != nil {
			return err
		}
		size, err := torchfile.Ints(chunk.Field("sizes"))
		if err != nil {
			return err
		}
		open, err := d.blob(fqn, start, size, dtype)
		if err != nil {
			return err
		}
		x.pieces = append(x.pieces, piece{start, size, make([]int, len(size)), open})
	}
	switch {
	case kind == "step":
		return d.step(x)
	case kind == "" || kind != checkpoint.Master && !slices.Contains(moments, kind):
		d.c.leave(fqn)
		return nil
	}
	return d.c.put(x)
}

// step reads the number of updates of a parameter.
func (d *dcp) step(x *tensor) error {
	if len(x.pieces) != 1 {
		return errors.New("a step in several pieces")
	}
	t, err := x.pieces[0].open()
	if err != nil {
		return err
	}
	return d.c.updates(t, x.Name)
}

// propertyType returns the element type in TensorProperties: its state begins with it.
func propertyType(v any) (checkpoint.DType, bool) {
	o, _ := v.(*torchfile.Object)
	if o == nil {
		return "", false
	}
	if s := torchfile.Items(o.State); len(s) > 0 {
		if t, ok := torchfile.DTypeOf(s[0]); ok {
			return t, true
		}
	}
	return torchfile.DTypeOf(o.Field("dtype"))
}

// blob returns a function that opens a chunk: a torch.save file inside a file.
func (d *dcp) blob(fqn string, start, size []int, dtype checkpoint.DType) (func() (*torchfile.Tensor, error), error) {
	info := d.at[fmt.Sprint(fqn, start)]
	if info == nil {
		return nil, fmt.Errorf("no file has its part at %v", start)
	}
	open, err := d.part(fmt.Sprintf("its part at %v", start), info)
	return sync.OnceValues(func() (*torchfile.Tensor, error) {
		v, err := open()
		if err != nil {
			return nil, err
		}
		t, ok := v.(*torchfile.Tensor)
		if !ok || t.DType != dtype || !slices.Equal(t.Shape, size) {
			where := fmt.Sprintf("%s at %s", filepath.Join(d.folder, fmt.Sprint(info.Field("relative_path"))), torchfile.Kind(info.Field("offset")))
			return nil, fmt.Errorf("%s is %s, but .metadata says %s%v", where, torchfile.Kind(v), dtype, size)
		}
		return t, nil
	}), err
}

// part returns a function that reads a torch.save file inside a file; what is for messages.
func (d *dcp) part(what string, info *torchfile.Object) (func() (any, error), error) {
	file, _ := info.Field("relative_path").(string)
	at, ok := info.Field("offset").(int64)
	n, sized := info.Field("length").(int64)
	if !ok || !sized || at < 0 || n < 0 {
		return nil, fmt.Errorf("%s is at byte %s", what, torchfile.Kind(info.Field("offset")))
	}
	f, err := d.file(file)
	if err != nil {
		return nil, err
	}
	if at > f.size || n > f.size-at {
		return nil, fmt.Errorf("%s is bytes [%d, %d) of %s, which has %d", what, at, at+n, file, f.size)
	}
	if d.left -= n; d.left < 0 {
		return nil, fmt.Errorf("%s is bytes [%d, %d) of %s, which are also those of other parts", what, at, at+n, file)
	}
	return func() (any, error) {
		return torchfile.LoadSmall(fmt.Sprintf("%s at %d", filepath.Join(d.folder, file), at), io.NewSectionReader(f.in, at, n), n)
	}, nil
}

// file opens a file of the folder when it is first used.
func (d *dcp) file(name string) (*dcpFile, error) {
	if f := d.files[name]; f != nil {
		return f, nil
	}
	if name == "" || name != filepath.Base(name) || strings.ContainsAny(name, `/\`) || name == ".." {
		return nil, fmt.Errorf("file %.200q is not a plain name", name)
	}
	in, err := input.Open(filepath.Join(d.folder, name), 1<<50)
	if err != nil {
		return nil, err
	}
	d.c.files = append(d.c.files, in)
	st, err := in.Stat()
	if err != nil {
		return nil, err
	}
	var head [2]byte
	if _, err := in.ReadAt(head[:], 0); err == nil && string(head[:]) != "PK" {
		return nil, fmt.Errorf("%s is not in torch.save's form: FileSystemWriter's serialization_format=SAFETENSORS is not supported, and torch cannot load it either; save with HuggingFaceStorageWriter", filepath.Join(d.folder, name))
	}
	d.files[name] = &dcpFile{in, st.Size()}
	return d.files[name], nil
}
