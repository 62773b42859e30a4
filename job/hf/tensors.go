package hf

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zeroth/checkpoint/safetensors"
	"zeroth/internal/input"
	"zeroth/internal/show"
	"zeroth/nn"
	"zeroth/shard"
)

// ModelTensors gives access to the parameters in a Hugging Face folder, checked against its
// model's names, shapes and supported types.
type ModelTensors struct {
	*safetensors.Reader
	Names      map[string]string // names of parameters in the folder
	Spare      []string          // tensors that are not parameters: buffers of the class, other heads
	head       string            // the output layer among them, or ""
	predicting int               // last layer on disk, if those after the model's predict further tokens
	images     int               // number of tensors of a wrapper's image part
	unread     []string          // spare tensors with values that may matter to someone

	merged  []*Adapters // added to the parameters
	digests []string    // of merged
}

// OpenModel opens the parameters of a Hugging Face folder. Its error joins all differences
// from the model.
func OpenModel(folder string, m Model) (*ModelTensors, error) {
	r, err := safetensors.Open(folder)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("%w%s", err, describeForeign(folder)))
	}
	t := &ModelTensors{Reader: r, Names: map[string]string{}}
	wrong := wrapped(r)
	if wrong == "" {
		wrong = strings.Join(slices.Concat(t.find(m), t.sort(m)), "; ")
	}
	if wrong != "" {
		_ = r.Close() // only read
		return nil, input.BadInput(fmt.Errorf("%s does not contain the model described by its config.json: %s", folder, wrong))
	}
	return t, nil
}

// wrappers maps parts of tensor names to the programs that use them, in files that do not
// contain a model's plain parameters.
var wrappers = []struct {
	mark *regexp.Regexp
	what string
}{
	{regexp.MustCompile(`(^|\.)_orig_mod\.`), "named by torch.compile's wrapper: save the model inside it (model._orig_mod)"},
	{regexp.MustCompile(`^module\.`), "named by DataParallel's wrappers: save the model inside it (model.module)"},
	{regexp.MustCompile(`^_fsdp_wrapped_module\.|\._fsdp_wrapped_module\.`), "named by FSDP's wrapper: save with a full state dict"},
	{regexp.MustCompile(`^base_model\.model\.|\.lora_(A|B|embedding_A|embedding_B)\.|\.base_layer\.`), "named by an adapter (PEFT): merge it into its model (merge_and_unload) and save that"},
	{regexp.MustCompile(`\.(qweight|qzeros|scales|g_idx|SCB|weight_scale|weight_scale_inv|weight_packed)$|\.weight\.(absmax|quant_map|quant_state|nested_absmax)`),
		"named like quantized ones: use the unquantized model"},
}

// wrapped describes the wrapper that named the folder's tensors, or returns "".
func wrapped(r *safetensors.Reader) string {
	for _, w := range wrappers {
		for _, t := range r.Tensors() {
			if w.mark.MatchString(t.Name) {
				return fmt.Sprintf("it has tensors such as %s, %s", show.Brief(t.Name), w.what)
			}
		}
	}
	return ""
}

// find finds all parameters and returns the problems with them.
func (t *ModelTensors) find(m Model) (problems []string) {
	var missing []string
	for _, p := range Parameters(m.Network(nn.LoRA{})) {
		name := stored(t.Reader, p.Name)
		have, ok := t.Tensor(name)
		t.Names[p.Name] = name
		switch {
		case !ok:
			missing = append(missing, p.Name)
		case !slices.Equal(have.Shape, p.Shape):
			problems = append(problems, fmt.Sprintf("%s has shape %v, but config.json implies %v", p.Name, have.Shape, p.Shape))
		case !have.DType.Float():
			problems = append(problems, fmt.Sprintf("%s is %s; want F32, BF16 or F16%s", p.Name, have.DType, advice(have.DType)))
		}
	}
	if len(missing) == 1 {
		problems = append(problems, missing[0]+" is missing")
	} else if len(missing) > 1 {
		problems = append(problems, fmt.Sprintf("%d parameters are missing: %s", len(missing), several(missing)))
	}
	if len(problems) > shownAtOnce {
		problems = append(problems[:shownAtOnce], fmt.Sprintf("and %d more", len(problems)-shownAtOnce))
	}
	return problems
}

// advice returns advice on tensors of an unsupported type.
func advice(t safetensors.DType) string {
	if t == "F64" {
		return ": save it with model.float()"
	}
	return ": use the unquantized model"
}

// classBuffers matches tensors that older versions of the families' classes saved in addition to the
// parameters: masks and positions that follow from the shape.
var classBuffers = regexp.MustCompile(`^(transformer\.)?h\.(\d+)\.attn\.(bias|masked_bias)$|^(model\.)?layers\.(\d+)\.self_attn\.rotary_emb\.inv_freq$|^(model\.)?rotary_emb\.inv_freq$`)

// trunk matches the names of everything computed between the tokens and the logits.
var trunk = regexp.MustCompile(`^(transformer|model|language_model|h|layers|wte|wpe|ln_f|embed_tokens|norm|lm_head)\.`)

// ofImages matches the names of a wrapper's image part.
var ofImages = regexp.MustCompile(`^(model\.)?(vision_tower|multi_modal_projector)\.`)

var layerOf = regexp.MustCompile(`^(?:transformer\.|model\.|language_model\.model\.|model\.language_model\.)?(?:h|layers)\.(\d+)\.`)

// sort classifies the tensors that are not parameters, and reports those that indicate another model.
func (t *ModelTensors) sort(m Model) (problems []string) {
	used := map[string]bool{}
	for _, name := range t.Names {
		used[name] = true
	}
	var alien []string
	beyond := 0 // highest layer beyond those of the model
	for _, x := range t.Tensors() {
		layer := layerOf.FindStringSubmatch(x.Name)
		n := 0
		if layer != nil {
			n, _ = strconv.Atoi(layer[1]) // digits; 0 if there are too many
		}
		switch {
		case used[x.Name]:
			continue
		case n >= m.Layers:
			beyond = max(beyond, n)
			continue
		case x.Name == "lm_head.weight" || x.Name == "language_model.lm_head.weight":
			t.head = x.Name
		case ofImages.MatchString(x.Name):
			t.images++
			continue
		case classBuffers.MatchString(x.Name):
		case trunk.MatchString(x.Name):
			alien = append(alien, show.Brief(x.Name))
		default:
			t.unread = append(t.unread, show.Brief(x.Name))
		}
		t.Spare = append(t.Spare, show.Brief(x.Name))
	}
	if beyond > 0 && beyond < m.Layers+m.Predicting {
		t.predicting, beyond = beyond, 0
	}
	if beyond > 0 {
		problems = append(problems, fmt.Sprintf("it has layers up to number %d, counting from 0, but config.json has %d layers", beyond, m.Layers))
	}
	if len(alien) > 0 {
		problems = append(problems, "it has tensors that its class does not: "+several(alien))
	}
	return problems
}

// shownAtOnce is the maximum number of names or problems in a message.
const shownAtOnce = 20

// several joins names, shortening long lists.
func several(names []string) string {
	if more := len(names) - shownAtOnce; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shownAtOnce], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Note returns notes about tensors that are not used.
func (t *ModelTensors) Note() (notes []string) {
	if t.images > 0 {
		notes = append(notes, fmt.Sprintf("%d tensors of images (vision_tower, multi_modal_projector) are left out", t.images))
	}
	if t.predicting > 0 {
		notes = append(notes, fmt.Sprintf("layers up to number %d, which predict further tokens (num_nextn_predict_layers), are left out, also of exports", t.predicting))
	}
	if len(t.unread) > 0 {
		notes = append(notes, "unused tensors, which are not parameters of the model: "+several(t.unread))
	}
	return notes
}

// Check reads all parameters and checks that every element is finite, and that an output layer
// equals the embedding it is tied to. It returns a digest of the parameters: the SHA-256, in
// hexadecimal, of a line for each in the order of names, with type, shape and CRC-32C, and of one for
// each merged adapter.
func (t *ModelTensors) Check(ctx context.Context, m Model) (digest string, err error) {
	params, stored := slices.Sorted(maps.Keys(t.Names)), []string{}
	for _, name := range params {
		stored = append(stored, t.Names[name])
	}
	sums, err := t.Finite(ctx, stored)
	var bad *safetensors.NotFinite
	if errors.As(err, &bad) {
		return "", input.BadInput(fmt.Errorf("%w: a model with such a parameter has no finite loss", err))
	}
	if err != nil {
		return "", err
	}
	all := sha256.New()
	for i, name := range params {
		x, _ := t.Tensor(stored[i])
		fmt.Fprintf(all, "%s %s %v %08x\n", name, x.DType, x.Shape, sums[i])
	}
	for _, digest := range t.digests {
		fmt.Fprintf(all, "with adapter %s\n", digest)
	}
	return hex.EncodeToString(all.Sum(nil)), t.SameHead(m)
}

// SameHead compares lm_head.weight, if it exists, with the embedding it is tied to.
func (t *ModelTensors) SameHead(m Model) error {
	if t.head == "" {
		return nil
	}
	p := Parameters(m.Network(nn.LoRA{}))[0] // the embedding, in both families
	words, _ := t.Tensor(t.Names[p.Name])
	head, _ := t.Tensor(t.head)
	if !slices.Equal(head.Shape, words.Shape) || !head.DType.Float() {
		return input.BadInput(fmt.Errorf("%s: %s is %s%v, but the embedding to which config.json ties it is %s%v", head.File, t.head, head.DType, head.Shape, words.DType, words.Shape))
	}
	const n = 1 << 18
	a, b := make([]float32, n), make([]float32, n)
	for at := (shard.Range{Hi: min(n, p.Numel())}); at.Lo < p.Numel(); at = (shard.Range{Lo: at.Hi, Hi: min(at.Hi+n, p.Numel())}) {
		x, y := a[:at.Len()], b[:at.Len()]
		if err := errors.Join(t.ReadF32(head.Name, at.Lo, at.Hi, x), t.ReadF32(words.Name, at.Lo, at.Hi, y)); err != nil {
			return err
		}
		for i := range x {
			if x[i] != y[i] {
				return input.BadInput(fmt.Errorf("%s: element %d of %s is %v, but in the embedding %v, although config.json ties the two (tie_word_embeddings): remove %s if it was not trained, or untie them",
					head.File, at.Lo+i, t.head, x[i], y[i], t.head))
			}
		}
	}
	return nil
}

// foreignFiles maps file patterns of folders that are not safetensors models to advice.
var foreignFiles = []struct{ pattern, what string }{
	{"adapter_config.json", "belongs to an adapter: merge it into its model (PEFT's merge_and_unload) and save that, or start a job from its model in model.from, with the adapter in model.adapters or train.lora.from"},
	{"adapter_model.*", "is an adapter: merge it into its model (PEFT's merge_and_unload) and save that, or start a job from its model in model.from, with the adapter in model.adapters or train.lora.from"},
	{"pytorch_model*.bin", "is PyTorch's: convert it with 'zeroth ckpt export FOLDER --to NEW'"},
	{"*.pth", "is PyTorch's: convert it with 'zeroth ckpt export FILE --to NEW'"},
	{"*.pt", "is PyTorch's: convert it with 'zeroth ckpt export FILE --to NEW'"},
	{"*.gguf", "is GGUF: use the model it was converted from, as safetensors"},
	{"tf_model.h5", "is from TensorFlow: load it with transformers and save it as safetensors (save_pretrained)"},
	{"flax_model.msgpack", "is from Flax: load it with transformers and save it as safetensors (save_pretrained)"},
	{"snapshots", "belongs to the Hub's cache: use the folder of a revision in it"},
	{"model/config.json", "exists: use that folder"},
	{"model-*-of-*.safetensors", "is part of a model, but its index, model.safetensors.index.json, is missing"},
	{"*.safetensors", "is not the expected name, model.safetensors"},
}

// describeForeign describes a folder that is not a safetensors model, or returns "" if nothing
// identifies it.
func describeForeign(folder string) string {
	if input.Exists(filepath.Join(folder, "model.safetensors")) || input.Exists(filepath.Join(folder, "model.safetensors.index.json")) {
		return ""
	}
	for _, o := range foreignFiles {
		if found := firstIn(folder, o.pattern); found != "" {
			return fmt.Sprintf("; %s %s", found, o.what)
		}
	}
	return ""
}

// refuseAdapter refuses a folder with an adapter, even with a complete model, because
// transformers would add the adapter to it. In a run the merged model is in a neighbouring
// folder.
func refuseAdapter(folder string) error {
	run := filepath.Dir(filepath.Clean(folder))
	merged := filepath.Join(run, "model")
	for _, o := range foreignFiles[:2] {
		if found := firstIn(folder, o.pattern); found != "" {
			if input.Exists(filepath.Join(run, "job.yaml")) && input.Exists(filepath.Join(merged, "config.json")) {
				return fmt.Errorf("%s: %s belongs to an adapter, which the run has merged into %s: use that folder, or %s", folder, found, merged, run)
			}
			return fmt.Errorf("%s: %s %s", folder, found, o.what)
		}
	}
	return nil
}

// firstIn returns the first name in a folder that matches a pattern, or "".
func firstIn(folder, pattern string) string {
	found, err := filepath.Glob(filepath.Join(special.ReplaceAllString(folder, `\$0`), pattern))
	if err != nil || len(found) == 0 {
		return ""
	}
	name, err := filepath.Rel(folder, found[0])
	if err != nil {
		return ""
	}
	return show.Brief(name)
}

// special matches the characters of a path with a meaning in patterns.
var special = regexp.MustCompile(`[*?\[\\]`)
