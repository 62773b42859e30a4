package tokenizer

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/internal/input/jsonread"
)

// Some classes of transformers 5.23 build a tokenizer of their own from the vocabulary, the merges,
// the added tokens and the post-processor in a tokenizer.json, whatever else it says.

// building lists the classes that build a tokenizer, in addition to those that Splits knows, or
// that do not read a tokenizer.json.
var building = strings.Fields(`Albert Bart Barthez Bartpho Bert BertGeneration BertJapanese Bertweet BigBird BioGpt Blenderbot BlenderbotSmall ByT5 CLIP CTRL Camembert
	Canine Clvp CodeLlama Cohere ConvBert Cpm CpmAnt DPRContextEncoder DPRQuestionEncoder DPRReader Deberta DebertaV2 Dia DistilBert Esm Esmc FNet FSMT FastSpeech2Conformer
	Flaubert Funnel GPTNeoXJapanese GPTSw3 Herbert LED Lasr LayoutLMv2 LayoutLMv3 LayoutXLM Luke Lxmert M2M100 MBart MBart50 MLuke MPNet Marian MarkupLM Mgpstr MobileBert
	Mvp MyT5 Nllb Nougat OpenAIGPT PLBart Pegasus Perceiver Phobert Pop2Piano ProphetNet Qwen3_5 Rag Reformer RemBert RoCBert RoFormer Roberta SeamlessM4T Siglip
	Siglip2 Speech2Text SpeechT5 Splinter SqueezeBert T5 Tapas Tipsv2 Udop VideoPrism Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC Whisper XGLM XLM XLMRoberta XLNet`)

// Builds reports whether the class of transformers with the given name builds a tokenizer of its own.
func Builds(class string) bool {
	name, _ := strings.CutSuffix(class, "Tokenizer")
	return slices.Contains([]string{"Llama", "GPT2", "CodeGen", "GPTNeoX", "Qwen2", "Gemma"}, name) || slices.Contains(building, name)
}

// Splits reports whether text is normalized and split as by the class of transformers with the
// given name, which gets add_prefix_space; it is true for classes that leave this to the file.
func (t *Tokenizer) Splits(class string, prefix bool) bool {
	gpt2 := len(t.cuts) == 1 && t.cuts[0].gpt2 && t.cuts[0].prefix == prefix
	switch class {
	case "GPT2Tokenizer", "CodeGenTokenizer":
		return len(t.normalizers) == 0 && gpt2
	case "GPTNeoXTokenizer":
		return t.composes && len(t.normalizers) == 1 && gpt2
	case "Qwen2Tokenizer":
		return t.composes && len(t.normalizers) == 1 && len(t.cuts) == 2 && t.cuts[0].qwen && t.cuts[1].prefix == prefix
	case "GemmaTokenizer":
		return !t.bytes && t.meta == nil && t.marked == mark && len(t.normalizers) == 1
	}
	return !Builds(class)
}

// ByteLevel reports whether the alphabet is bytes.
func (t *Tokenizer) ByteLevel() bool { return t.bytes }

// ParseAs reads a tokenizer.json like a class of transformers: LlamaTokenizer, with the prepend_scheme
// of its Metaspace, or Qwen2Tokenizer, which normalizes all text.
func ParseAs(text []byte, class, scheme string) (*Tokenizer, error) {
	return parse(text, func(f *fileReader) error {
		f.steps["normalizer"] = jsonread.Value{}
		if class == "Qwen2Tokenizer" {
			f.steps["normalizer"] = ownStep(`{"type": "NFC"}`)
			return nil
		}
		m := &f.model
		if m.uni != nil {
			return fmt.Errorf("model: %s does not read Unigram", class)
		}
		m.unknown, m.fuse, m.fallback, m.ignoreMerges = "", true, true, false
		strip := `, {"type": "Strip", "content": " ", "start": 1, "stop": 0}`
		if scheme == "never" {
			strip = ""
		}
		f.steps["pre_tokenizer"] = ownStep(`{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "` + scheme + `", "split": false}`)
		f.steps["decoder"] = ownStep(`{"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}` + strip + `]}`)
		return nil
	})
}

func ownStep(text string) jsonread.Value {
	v, err := jsonread.Parse([]byte(text))
	if err != nil {
		panic(fmt.Sprintf("tokenizer: %s: %v", text, err))
	}
	return v
}
