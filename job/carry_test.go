package job

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint"
)

func TestCarries(t *testing.T) {
	for name, want := range map[string]bool{
		"tokenizer.json": true, "merges.txt": true, "additional_chat_templates/rag.jinja": true,
		"config.json": false, "model.safetensors": false, "additional_chat_templates": false, "additional_chat_templates/": false,
		"additional_chat_templates/a.py": false, "additional_chat_templates/../../a.jinja": false, `additional_chat_templates/..\a.jinja`: false,
		"/etc/tokenizer.json": false, "../tokenizer.json": false, "": false,
	} {
		if carries(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
}

// A checkpoint that somebody has made is not obeyed as to where its files go.
func TestForeignAttachments(t *testing.T) {
	folder := folderOf(t, smallGPT2, func(map[string]*tensor) {})
	for path, want := range map[string]string{
		"tokenizer.json": "",
		"../escaped":     `has "../escaped" attached, which is no file of a model`,
		"\x1b[2J":        `attached, which is no file of a model`,
	} {
		f, err := OpenModelFolder(folder)
		if err != nil {
			t.Fatal(err)
		}
		f.carried.files = []checkpoint.Attachment{{Path: path, Data: []byte("x")}}
		root, to := t.TempDir(), filepath.Join(t.TempDir(), "in", "to")
		dir, err := f.Import(t.Context(), root, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // only read from
		ck, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = ExportModel(context.Background(), ck, to, checkpoint.Export{DType: checkpoint.F32})
		_ = ck.Close() // likewise
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b")) {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(to), "escaped")); err == nil {
			t.Error("it wrote outside the folder")
		}
		if want != "" && exists(to) {
			t.Errorf("%q: left a folder", path)
		}
	}
}

// Files are read up to a bound, which is said before memory is taken.
func TestAttachmentsHaveALimit(t *testing.T) {
	folder := folderOf(t, smallGPT2, func(map[string]*tensor) {})
	big, err := os.Create(filepath.Join(folder, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := big.Truncate(maxCarried + 1); err != nil {
		t.Fatal(err)
	}
	_ = big.Close() // nothing was written
	if _, err := OpenModelFolder(folder); err == nil || !strings.Contains(err.Error(), "tokenizer.json: it is larger than the 268435456 bytes") || !IsInput(err) {
		t.Errorf("%v", err)
	}
}
