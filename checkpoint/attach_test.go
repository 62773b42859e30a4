package checkpoint

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/shard"
)

// TestAttachments checks that attached files are read back unchanged, compressed or not, and
// refused if they exceed the limit.
func TestAttachments(t *testing.T) {
	want := []Attachment{{"a/b.jinja", []byte("{{ x }}")}, {"empty", []byte{}}, {"long.json", []byte(strings.Repeat(`{"a": 1}`, 50_000))}}
	for _, c := range []Compression{Never, Always} {
		s, err := Begin(t.TempDir(), 1, Options{Compress: c})
		if err != nil {
			t.Fatal(err)
		}
		w := s.Writer(0)
		x := Tensor{Name: "x", Kind: Master, DType: F32, Shape: []int{1}}
		if err := w.Put(x, shard.Range{Hi: 1}, []byte{0, 0, 128, 63}, nil); err != nil {
			t.Fatal(err)
		}
		for _, a := range want {
			if err := w.Attach(a); err != nil {
				t.Fatal(err)
			}
		}
		p, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		dir, err := s.Commit(Commit{Parts: []PartFile{p}, State: []byte("{}")})
		if err != nil {
			t.Fatal(err)
		}
		ck, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		if got, err := ck.Attachments(400_007); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("compress %v: %d files, %v", c, len(got), err)
		}
		if _, err := ck.Attachments(400_006); err == nil || !strings.Contains(err.Error(), `"long.json" has 400000 elements of U8; want U8, at most 400006 bytes in all files`) {
			t.Errorf("one byte too many: %v", err)
		}
		to := filepath.Join(t.TempDir(), "hf")
		if err := (Export{}).Write(t.Context(), ck, ck.Path, to); err != nil {
			t.Fatal(err)
		}
		r, err := safetensors.Open(to)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if names := r.Tensors(); len(names) != 1 || names[0].Name != "x" {
			t.Errorf("exported %v", names)
		}
	}
}
