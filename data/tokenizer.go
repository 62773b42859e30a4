package data

import (
	"errors"
	"fmt"
	"os"
)

// EndOfText is the token that BPE vocabularies put between documents. If text contains it,
// it is encoded as text, not as this token.
const EndOfText = "<|endoftext|>"

// Tokenizer converts text to ids and back. Decode(Encode(b)) equals b for every b, valid
// UTF-8 or not, unless the tokenizer is a Folder.
type Tokenizer interface {
	Encode(text []byte) []int32
	Decode(ids []int32) []byte // an id out of range becomes U+FFFD
	Vocab() int                // ids are in [0, Vocab)
	Separator() int32          // the id between documents, or -1 if there is none
}

// NewTokenizer returns the tokenizer with the given name: "bytes", the 256 byte values;
// "gpt2", GPT-2's byte-pair encoding, built in; or a folder with a tokenizer.json, or with a
// vocab.json and a merges.txt that are encoded as in GPT-2, see readFolder.
func NewTokenizer(name string) (Tokenizer, error) { return openTokenizer("", name) }

// openTokenizer is NewTokenizer with relative folders starting at dir.
func openTokenizer(dir, name string) (Tokenizer, error) {
	switch name {
	case "bytes":
		return Bytes{}, nil
	case "gpt2":
		return gpt2(), nil
	case "":
		return nil, errors.New("no tokenizer; use bytes, gpt2 or a folder with tokenizer.json, or vocab.json and merges.txt")
	}
	bpe, err := readFolder(inDir(dir, name))
	if err != nil {
		if info, missing := os.Stat(inDir(dir, name)); missing == nil && info.IsDir() {
			return nil, fmt.Errorf("the tokenizer in %q cannot be used: %w", name, err)
		}
		return nil, fmt.Errorf("%q is neither bytes nor gpt2 nor a folder with a tokenizer: %w", name, err)
	}
	return bpe, nil
}

// Bytes is the tokenizer with bytes as ids.
type Bytes struct{}

func (Bytes) Encode(text []byte) []int32 {
	ids := make([]int32, len(text))
	segment{data: text, width: 1}.read(ids, 0)
	return ids
}

func (Bytes) Decode(ids []int32) []byte {
	text := make([]byte, 0, len(ids))
	for _, id := range ids {
		if id < 0 || id > 255 {
			text = append(text, replacement...)
			continue
		}
		text = append(text, byte(id))
	}
	return text
}

func (Bytes) Vocab() int       { return 256 }
func (Bytes) Separator() int32 { return -1 }

const replacement = "\uFFFD"
