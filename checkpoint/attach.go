package checkpoint

import (
	"fmt"

	"zeroth/checkpoint/safetensors"
	"zeroth/shard"
)

// Attached is the kind of a tensor that holds a small file belonging to the checkpoint, such as a
// model's tokenizer. The tensor is named by the file's path and contains its bytes.
const Attached = "file"

// Attachment is a file stored as a tensor of kind Attached.
type Attachment struct {
	Path string // slash-separated, relative to the folder the file belongs in
	Data []byte
}

// Tensor returns the tensor that holds the file.
func (a Attachment) Tensor() Tensor {
	return Tensor{Name: a.Path, Kind: Attached, DType: safetensors.U8, Shape: []int{len(a.Data)}}
}

// Attach saves a file. Its data must not change until Finish.
func (w *Writer) Attach(a Attachment) error {
	return w.Put(a.Tensor(), shard.Range{Hi: len(a.Data)}, a.Data, nil)
}

// Attachments reads all attached files, of at most limit bytes in total, sorted by path. The
// paths are untrusted: they may be any text.
func (c *Checkpoint) Attachments(limit int64) (files []Attachment, err error) {
	remaining := limit
	for _, t := range c.Tensors {
		if t.Kind != Attached {
			continue
		}
		if t.DType != safetensors.U8 || t.Bytes() > remaining {
			return nil, fmt.Errorf("checkpoint %s: the attached file %q has %d elements of %s; want U8, at most %d bytes in all files", c.Path, t.Name, t.Numel(), t.DType, limit)
		}
		remaining -= t.Bytes()
		a := Attachment{t.Name, make([]byte, t.Numel())}
		if err := c.Read(t.Name, t.Kind, shard.Range{Hi: t.Numel()}, a.Data); err != nil {
			return nil, err
		}
		files = append(files, a)
	}
	return files, nil
}
