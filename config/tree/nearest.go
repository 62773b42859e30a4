package tree

import (
	"strings"
)

// synonyms maps words of other programs to ours. An empty word means that there is no equivalent,
// whatever the spelling suggests.
var synonyms = map[string]string{
	"gpu": "cuda", "gpus": "cuda", "cuda:0": "cuda", "nvidia": "cuda", "mps": "", "tpu": "", "rccl": "",

	"cpu": "host", "ram": "host", "memory": "host",
	"nvme": "disk", "ssd": "disk", "hdd": "disk", "file": "disk", "mmap": "disk",
	"no": "none", "off": "none", "false": "none",

	"float32": "fp32", "float": "fp32", "single": "fp32", "f32": "fp32", "32": "fp32", "tf32": "",
	"bfloat16": "bf16", "bf16_mixed": "bf16", "b16": "bf16",
	"float16": "fp16", "half": "fp16", "f16": "fp16", "16_mixed": "fp16", "fp16_mixed": "fp16", "16": "",

	"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "fusedadam": "adamw", "fused_adamw": "adamw", "deepspeedcpuadam": "adamw",
	"adam8bit": "adamw8bit", "adamw8": "adamw8bit", "adamw_8bit": "adamw8bit", "adamw_bnb_8bit": "adamw8bit", "paged_adamw_8bit": "adamw8bit",
	"adamax": "", "nadam": "", "radam": "", "lamb": "",

	"constant_with_warmup": "constant", "flat": "constant", "linear_with_warmup": "linear", "cos": "cosine",
	"cosine_with_min_lr": "cosine", "warmup_stable_decay": "wsd", "trapezoidal": "wsd", "rsqrt": "inverse_sqrt",

	"full": "block", "layer": "block", "true": "block",

	"messages": "chat", "sharegpt": "chat", "conversations": "chat", "openai": "chat", "chatml": "chat",
	"alpaca": "prompt", "instruct": "prompt", "completion": "prompt",

	"tiktoken": "gpt2", "r50k_base": "gpt2", "gpt4": "", "huggingface": "folder", "hf": "folder", "byte": "bytes", "char": "",

	"opt": "", "gptj": "",
}

// decorations lists prefixes and suffixes that other programs add to names.
var decorations = struct{ before, behind []string }{
	[]string{"n_", "num_", "max_", "total_", "cpu_", "mixed_"}, []string{"_size", "_name", "_rate", "_steps", "ping", "ing", "set"},
}

// Nearest returns the name that word most likely misspells, or "".
func Nearest(word string, names []string) string {
	if len(word) > 40 {
		return "" // comparing would take long
	}
	word = strings.ReplaceAll(strings.ToLower(word), "-", "_")
	if means, ok := synonyms[word]; ok {
		for _, name := range names {
			if name == means || name == word {
				return name
			}
		}
		if means == "" {
			return ""
		}
	}
	best, at := "", 99
	for _, w := range plainly(word) {
		slips := max(1, len(w)/4) // wrong letters allowed: two would be too many for "gpu"
		for _, name := range names {
			if d := Distance(w, name); d <= slips && d < at && d < len(name) {
				best, at = name, d
			}
		}
	}
	return best
}

// plainly returns a word, and the word without each possible prefix or suffix.
func plainly(word string) []string {
	words := []string{word}
	for _, d := range decorations.before {
		if w, ok := strings.CutPrefix(word, d); ok {
			words = append(words, w)
		}
	}
	for _, d := range decorations.behind {
		if w, ok := strings.CutSuffix(word, d); ok {
			words = append(words, w)
		}
	}
	return words
}

// Distance returns the number of insertions, deletions, replacements and swaps of neighbouring
// letters that turn a into b (optimal string alignment).
func Distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
