package data

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"zeroth/data/tokenizer"
)

// tokenizerRecord identifies a tokenizer written by RecordTokenizer, in
// tokenizer_config.json under the key zeroth, which other programs ignore.
type tokenizerRecord struct {
	Kind string `json:"kind"`   // its name in the job
	Sum  string `json:"sha256"` // see BPE.sum
}

// check compares a folder's tokenizer with its record.
func (r *tokenizerRecord) check(dir string, v *BPE) error {
	if r == nil || r.Sum == v.sum() {
		return nil
	}
	return fmt.Errorf("%s: vocab.json or merges.txt was changed: the SHA-256 in tokenizer_config.json does not match; restore them, or choose another tokenizer", dir)
}

// Recorded is a file that belongs to a tokenizer.
type Recorded struct {
	Name string
	Text []byte
}

// RecordTokenizer returns a tokenizer as files: vocab.json, merges.txt and
// tokenizer_config.json, readable by NewTokenizer and by transformers as a GPT2Tokenizer; for
// a Folder, its own files. kind is the user's name for it.
func RecordTokenizer(kind string, t Tokenizer) []Recorded {
	if f, ok := t.(*Folder); ok {
		return slices.Clone(f.files)
	}
	v := asBPE(t)
	return []Recorded{{"vocab.json", v.vocabJSON()}, {"merges.txt", v.mergesTXT()}, {"tokenizer_config.json", v.configJSON(kind)}}
}

// SameTokenizer reports whether two tokenizers give every text the same ids.
func SameTokenizer(a, b Tokenizer) bool { return sumOf(a) == sumOf(b) }

func sumOf(t Tokenizer) string {
	if f, ok := t.(*Folder); ok {
		return f.sum()
	}
	return asBPE(t).sum()
}

// asBPE returns a tokenizer as a BPE; Bytes becomes one without merges.
func asBPE(t Tokenizer) *BPE {
	if v, ok := t.(*BPE); ok {
		return v
	}
	return byteBPE()
}

var byteBPE = sync.OnceValue(func() *BPE {
	v := &BPE{separator: -1}
	for b := range v.bytes {
		v.bytes[b] = uint32(b)
		v.tokens = append(v.tokens, string([]byte{byte(b)}))
	}
	return v
})

func (v *BPE) isGPT2() bool {
	return slices.Equal(v.tokens, gpt2().tokens) && slices.Equal(v.order, gpt2().order)
}

// sum returns the SHA-256, in hexadecimal, of everything that affects ids: the files written
// by RecordTokenizer and the separator.
func (v *BPE) sum() string {
	h := sha256.New()
	h.Write(v.vocabJSON())
	h.Write(v.mergesTXT())
	fmt.Fprint(h, v.separator)
	return hex.EncodeToString(h.Sum(nil))
}

// vocabJSON returns vocab.json, byte for byte as OpenAI formatted GPT-2's encoder.json.
func (v *BPE) vocabJSON() []byte {
	var b bytes.Buffer
	between := "{"
	for id, s := range v.tokens {
		if s == "" {
			continue
		}
		fmt.Fprintf(&b, `%s"`, between)
		for _, unit := range utf16.Encode([]rune(v.spelling(id))) {
			switch {
			case unit == '"' || unit == '\\':
				fmt.Fprintf(&b, `\%c`, unit)
			case ' ' <= unit && unit < 0x7f:
				b.WriteByte(byte(unit))
			default:
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
		fmt.Fprintf(&b, `": %d`, id)
		between = ", "
	}
	b.WriteByte('}')
	return b.Bytes()
}

// spelling returns a token as it is written in vocab.json: in the byte alphabet, or verbatim if it is
// the separator and not part of any text.
func (v *BPE) spelling(id int) string {
	s := v.tokens[id]
	if int32(id) == v.separator && utf8.ValidString(s) && plain(s) {
		return s
	}
	return tokenizer.Printed(s)
}

// plain reports whether a token is spelled as the bytes it represents.
func plain(s string) bool {
	text, _ := tokenizer.Literal(s)
	return text == s
}

// mergesTXT returns merges.txt, byte for byte as OpenAI formatted GPT-2's vocab.bpe.
func (v *BPE) mergesTXT() []byte {
	b := bytes.NewBufferString("#version: 0.2\n")
	for _, p := range v.order {
		fmt.Fprintf(b, "%s %s\n", tokenizer.Printed(v.tokens[p>>32]), tokenizer.Printed(v.tokens[uint32(p)]))
	}
	return b.Bytes()
}

// configJSON returns tokenizer_config.json.
func (v *BPE) configJSON(kind string) []byte {
	var end *string
	if v.separator >= 0 {
		s := v.spelling(int(v.separator))
		end = &s
	}
	text, err := json.MarshalIndent(struct {
		Class       string          `json:"tokenizer_class"`
		PrefixSpace bool            `json:"add_prefix_space"`
		BOS         *string         `json:"bos_token"`
		EOS         *string         `json:"eos_token"`
		UNK         *string         `json:"unk_token"`
		Record      tokenizerRecord `json:"zeroth"`
	}{"GPT2Tokenizer", false, end, end, end, tokenizerRecord{kind, v.sum()}}, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("data: tokenizer_config.json: %v", err)) // strings always encode
	}
	return append(text, '\n')
}
