package checkpoint

import (
	"fmt"

	"zeroth/checkpoint/safetensors"
	"zeroth/shard"
)

// Attached is the kind of a small file that goes with the tensors, such as a
// model's tokenizer: its bytes are the tensor, its path the tensor's name.
const Attached = "file"

// Attachment is such a file.
type Attachment struct {
	Path string // with slashes, relative to the folder it belongs in
	Data []byte
}

// Tensor is the tensor that holds the file.
func (a Attachment) Tensor() Tensor {
	return Tensor{Name: a.Path, Kind: Attached, DType: safetensors.U8, Shape: []int{len(a.Data)}}
}

// Attach puts a file. Its data must not change until Finish.
func (w *Writer) Attach(a Attachment) error {
	return w.Put(a.Tensor(), shard.Range{Hi: len(a.Data)}, a.Data, nil)
}

// Attachments reads all files, of at most limit bytes together, sorted by path.
// The paths are what the checkpoint says: of another's it may be any text.
func (c *Checkpoint) Attachments(limit int64) (files []Attachment, err error) {
	left := limit
	for _, t := range c.Tensors {
		if t.Kind != Attached {
			continue
		}
		if t.DType != safetensors.U8 || t.Bytes() > left {
			return nil, fmt.Errorf("checkpoint %s: %q is %d elements of %s; of attached files %d bytes (U8) are read", c.Path, t.Name, t.Numel(), t.DType, limit)
		}
		left -= t.Bytes()
		a := Attachment{t.Name, make([]byte, t.Numel())}
		if err := c.Read(t.Name, t.Kind, shard.Range{Hi: t.Numel()}, a.Data); err != nil {
			return nil, err
		}
		files = append(files, a)
	}
	return files, nil
}
