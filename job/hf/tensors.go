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
	"runtime"
	"slices"
	"strconv"
	"strings"

	"zeroth/checkpoint/safetensors"
	"zeroth/input"
	"zeroth/job/show"
	"zeroth/nn"
	"zeroth/shard"
)

// ModelTensors are the parameters of a Hugging Face folder, all that its model
// has, in its shapes and of types that are read.
type ModelTensors struct {
	*safetensors.Reader
	Names  map[string]string // of parameters: those they have in the folder
	Spare  []string          // tensors that are no parameters: buffers of the class, and others' heads
	head   string            // among them an output layer; empty: none
	unread []string          // of the spare ones, those whose values mean something to somebody
}

// OpenModel opens the parameters of a Hugging Face folder. What keeps them from
// being the model's is one error.
func OpenModel(folder string, m Model) (*ModelTensors, error) {
	r, err := safetensors.Open(folder)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("%w%s", err, foreign(folder)))
	}
	t := &ModelTensors{Reader: r, Names: map[string]string{}}
	wrong := wrapped(r)
	if wrong == "" {
		wrong = strings.Join(slices.Concat(t.find(m), t.sort(m)), "; ")
	}
	if wrong != "" {
		_ = r.Close() // only read from
		return nil, input.BadInput(fmt.Errorf("%s does not hold the model its config.json describes: %s", folder, wrong))
	}
	return t, nil
}

// wrappers are parts of tensors' names by which programs mark that a model's
// parameters are not there as they are.
var wrappers = []struct {
	mark *regexp.Regexp
	what string
}{
	{regexp.MustCompile(`(^|\.)_orig_mod\.`), "as torch.compile's wrapper names them: save the model in it (model._orig_mod)"},
	{regexp.MustCompile(`^module\.`), "as DataParallel's wrappers name them: save the model in it (model.module)"},
	{regexp.MustCompile(`^_fsdp_wrapped_module\.|\._fsdp_wrapped_module\.`), "as FSDP's wrapper names them: save with a full state dict"},
	{regexp.MustCompile(`^base_model\.model\.|\.lora_(A|B|embedding_A|embedding_B)\.|\.base_layer\.`), "as an adapter (PEFT) names them: merge it into its model (merge_and_unload) and save that"},
	{regexp.MustCompile(`\.(qweight|qzeros|scales|g_idx|SCB|weight_scale|weight_scale_inv|weight_packed)$|\.weight\.(absmax|quant_map|quant_state|nested_absmax)`),
		"as quantised ones are named: want the model as it is before that"},
}

// wrapped says by whom the folder's tensors were named, if not by the model.
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

// find looks for all parameters and says what is wrong with them.
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
			problems = append(problems, fmt.Sprintf("%s has shape %v, config.json says %v", p.Name, have.Shape, p.Shape))
		case !have.DType.Float():
			problems = append(problems, fmt.Sprintf("%s is %s; want F32, BF16 or F16%s", p.Name, have.DType, because(have.DType)))
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

// because is what to do about tensors of a type that is not read.
func because(t safetensors.DType) string {
	if t == "F64" {
		return ": save it with model.float()"
	}
	return ", as a model is before it is quantised"
}

// classBuffers are tensors that older versions of the families' classes saved beside
// the parameters: masks and positions that follow from the shape.
var classBuffers = regexp.MustCompile(`^(transformer\.)?h\.(\d+)\.attn\.(bias|masked_bias)$|^(model\.)?layers\.(\d+)\.self_attn\.rotary_emb\.inv_freq$|^(model\.)?rotary_emb\.inv_freq$`)

// trunk are the names of what is computed between the tokens and the logits.
var trunk = regexp.MustCompile(`^(transformer|model|h|layers|wte|wpe|ln_f|embed_tokens|norm|lm_head)\.`)

var layerOf = regexp.MustCompile(`^(?:transformer\.|model\.)?(?:h|layers)\.(\d+)\.`)

// sort goes through the tensors that are no parameters, and says which of them
// mean that the model is another.
func (t *ModelTensors) sort(m Model) (problems []string) {
	used := map[string]bool{}
	for _, name := range t.Names {
		used[name] = true
	}
	var alien []string
	beyond := 0 // the highest layer that the model has not
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
		case x.Name == "lm_head.weight":
			t.head = x.Name
		case classBuffers.MatchString(x.Name):
		case trunk.MatchString(x.Name):
			alien = append(alien, show.Brief(x.Name))
		default:
			t.unread = append(t.unread, show.Brief(x.Name))
		}
		t.Spare = append(t.Spare, show.Brief(x.Name))
	}
	if beyond > 0 {
		problems = append(problems, fmt.Sprintf("it has layers up to %d, counted from 0, config.json says that there are %d", beyond, m.Layers))
	}
	if len(alien) > 0 {
		problems = append(problems, "it has what its class has not: "+several(alien))
	}
	return problems
}

// shownAtOnce is how many names or problems one message has at most.
const shownAtOnce = 20

// several is a list of names, of which a message has no more than one can read.
func several(names []string) string {
	if more := len(names) - shownAtOnce; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shownAtOnce], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Note is what a run says of tensors that it does not use.
func (t *ModelTensors) Note() []string {
	if len(t.unread) == 0 {
		return nil
	}
	return []string{"not used, as they are no parameters of the model: " + several(t.unread)}
}

// Check reads all parameters: no element is infinite or a NaN, and an output layer
// beside an embedding that is one is the same. It returns a digest of them all: the
// SHA-256, in hexadecimal, of a line for each in order of its name, with type, shape and
// CRC-32C.
func (t *ModelTensors) Check(ctx context.Context, m Model) (digest string, err error) {
	params, stored := slices.Sorted(maps.Keys(t.Names)), []string{}
	for _, name := range params {
		stored = append(stored, t.Names[name])
	}
	sums, err := t.Finite(ctx, stored, runtime.GOMAXPROCS(0))
	var bad *safetensors.NotFinite
	if errors.As(err, &bad) {
		return "", input.BadInput(fmt.Errorf("%w: a model with such a parameter has no loss", err))
	}
	if err != nil {
		return "", err
	}
	all := sha256.New()
	for i, name := range params {
		x, _ := t.Tensor(stored[i])
		fmt.Fprintf(all, "%s %s %v %08x\n", name, x.DType, x.Shape, sums[i])
	}
	return hex.EncodeToString(all.Sum(nil)), t.SameHead(m)
}

// SameHead compares lm_head.weight, if there is one, with the embedding it is
// tied to.
func (t *ModelTensors) SameHead(m Model) error {
	if t.head == "" {
		return nil
	}
	p := Parameters(m.Network(nn.LoRA{}))[0] // the embedding, in both families
	words, _ := t.Tensor(t.Names[p.Name])
	head, _ := t.Tensor(t.head)
	if !slices.Equal(head.Shape, words.Shape) || !head.DType.Float() {
		return input.BadInput(fmt.Errorf("%s: %s is %s%v, the embedding that config.json ties it to %s%v", head.File, t.head, head.DType, head.Shape, words.DType, words.Shape))
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
				return input.BadInput(fmt.Errorf("%s: element %d of %s is %v, of the embedding %v, but config.json says that they are one (tie_word_embeddings): remove %s if it was not trained, or untie them",
					head.File, at.Lo+i, t.head, x[i], y[i], t.head))
			}
		}
	}
	return nil
}

// others are signs of folders that are no models of safetensors, and what to do
// about them.
var others = []struct{ pattern, what string }{
	{"adapter_config.json", "is of an adapter: merge it into its model (PEFT's merge_and_unload) and save that"},
	{"adapter_model.*", "is an adapter: merge it into its model (PEFT's merge_and_unload) and save that"},
	{"pytorch_model*.bin", "is a pickle, which may hold code and is not read: load it with transformers and save_pretrained it as safetensors"},
	{"*.pth", "is a pickle, which may hold code and is not read: convert it to Hugging Face's safetensors"},
	{"*.pt", "is a pickle, which may hold code and is not read: convert it to Hugging Face's safetensors"},
	{"*.gguf", "is GGUF: want the model it was made of, as safetensors"},
	{"tf_model.h5", "is TensorFlow's: load it with transformers and save_pretrained it as safetensors"},
	{"flax_model.msgpack", "is Flax's: load it with transformers and save_pretrained it as safetensors"},
	{"snapshots", "is of the hub's cache: name the folder of a revision in it"},
	{"model/config.json", "is there: name that folder"},
	{"model-*-of-*.safetensors", "is a part of a model whose index, model.safetensors.index.json, is missing"},
	{"*.safetensors", "is not a name that is looked for: want model.safetensors"},
}

// foreign says what a folder is instead of a model of safetensors; empty if
// nothing in it tells.
func foreign(folder string) string {
	if input.Exists(filepath.Join(folder, "model.safetensors")) || input.Exists(filepath.Join(folder, "model.safetensors.index.json")) {
		return ""
	}
	for _, o := range others {
		if found := firstIn(folder, o.pattern); found != "" {
			return fmt.Sprintf("; %s %s", found, o.what)
		}
	}
	return ""
}

// adapted refuses a folder with an adapter, also beside a whole model:
// transformers would add it to that. A run has it merged beside its folder.
func adapted(folder string) error {
	run := filepath.Dir(filepath.Clean(folder))
	merged := filepath.Join(run, "model")
	for _, o := range others[:2] {
		if found := firstIn(folder, o.pattern); found != "" {
			if input.Exists(filepath.Join(run, "job.yaml")) && input.Exists(filepath.Join(merged, "config.json")) {
				return fmt.Errorf("%s: %s is of an adapter, which the run has merged into %s: name that folder, or %s", folder, found, merged, run)
			}
			return fmt.Errorf("%s: %s %s", folder, found, o.what)
		}
	}
	return nil
}

// firstIn is the first name in a folder that matches a pattern; empty for none.
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

// special are the characters of a path that mean something in a pattern.
var special = regexp.MustCompile(`[*?\[\\]`)
