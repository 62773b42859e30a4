package data

import (
	"errors"
	"fmt"
)

// EndOfText is the token that BPE vocabularies put between documents. Text
// that spells it out is encoded as text, not as this token.
const EndOfText = "<|endoftext|>"

// Tokenizer turns bytes into ids and back. Decode(Encode(b)) is b for every b,
// valid UTF-8 or not, but where a Folder says otherwise.
type Tokenizer interface {
	Encode(text []byte) []int32
	Decode(ids []int32) []byte // an id out of range becomes U+FFFD
	Vocab() int                // ids are in [0, Vocab)
	Separator() int32          // the id between documents, or -1 if there is none
}

// NewTokenizer is the tokenizer of a name: "bytes", the 256 byte values;
// "gpt2", GPT-2's byte-pair encoding, built in; or a folder with a tokenizer.json,
// or a vocab.json and a merges.txt that are encoded as GPT-2 does, see readFolder.
func NewTokenizer(name string) (Tokenizer, error) { return openTokenizer("", name) }

// openTokenizer takes a relative folder to start at dir.
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
		return nil, fmt.Errorf("%q is neither bytes nor gpt2 nor a folder whose tokenizer runs here: %w", name, err)
	}
	return bpe, nil
}

// Bytes is the tokenizer whose ids are the bytes.
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
