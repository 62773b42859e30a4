package hf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/checkpoint"
	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/internal/show"
)

// Carried holds the other files of the folder a run's model came from, in memory and attached to
// every checkpoint, so that an export is a complete model even if that folder is gone.
type Carried struct {
	Config []byte   // config.json; nil if the model comes from no folder
	Notes  []string // notes about the model
	Files  []checkpoint.Attachment
}

// carriedNames are the files that belong to a model: its tokenizer, chat template and generation
// settings.
var carriedNames = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
	"chat_template.jinja", "chat_template.json", generationFile,
}

// templates is the folder of additional chat templates.
const templates = "additional_chat_templates"

// maxCarried limits the total bytes of carried files.
const maxCarried = 256 << 20

// carries reports whether a file with this name is carried. Names in checkpoints are untrusted.
func carries(name string) bool {
	in, template := strings.CutPrefix(name, templates+"/")
	return slices.Contains(carriedNames, name) || template && strings.HasSuffix(in, ".jinja") && !strings.ContainsAny(in, `/\`)
}

// ReadFiles reads the carried files from a folder, unless there are some already. Its error joins
// all problems.
func (c *Carried) ReadFiles(folder string) error {
	if len(c.Files) > 0 {
		return nil
	}
	var errs []error
	names := slices.Clone(carriedNames)
	more, _ := os.ReadDir(filepath.Join(folder, templates)) // usually missing
	for _, e := range more {
		if name := templates + "/" + e.Name(); carries(name) {
			names = append(names, name)
		}
	}
	remaining := int64(maxCarried)
	for _, name := range names {
		raw, err := input.Read(filepath.Join(folder, name), remaining)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && bytes.HasPrefix(raw, []byte(lfsPointer)):
			err = fmt.Errorf("%s: %w", filepath.Join(folder, name), errPointer)
		}
		errs = append(errs, err)
		remaining -= int64(len(raw))
		c.Files = append(c.Files, checkpoint.Attachment{Path: name, Data: raw})
	}
	return errors.Join(errs...)
}

// CarriedBy returns the carried files in a checkpoint.
func CarriedBy(ck *checkpoint.Checkpoint, config []byte) (Carried, error) {
	files, err := ck.Attachments(maxCarried)
	for _, f := range files {
		if !carries(f.Path) {
			return Carried{}, fmt.Errorf("%s has \"%s\" attached, which is not a file of a model: this program did not write it", ck.Path, show.Brief(f.Path))
		}
	}
	return Carried{Config: config, Files: files}, err
}

// Write completes a model's folder, which must exist, except for the parameters.
func (c Carried) Write(folder string, config []byte) error {
	for _, f := range c.Files {
		path := filepath.Join(folder, filepath.FromSlash(f.Path))
		if below := filepath.Dir(path); below != filepath.Clean(folder) {
			if err := input.Folder(below); err != nil {
				return err
			}
		}
		if err := writeFile(path, f.Data); err != nil {
			return err
		}
	}
	if config == nil {
		return nil
	}
	return writeFile(filepath.Join(folder, "config.json"), config)
}

// Settings returns a copy with generation_config.json as the only file.
func (c Carried) Settings() Carried {
	return c.with(func(name string) bool { return name == generationFile })
}

// with returns a copy with only the named files.
func (c Carried) with(named func(string) bool) Carried {
	c.Files = slices.DeleteFunc(slices.Clone(c.Files), func(f checkpoint.Attachment) bool { return !named(f.Path) })
	return c
}

// Remove removes the files created by Write.
func (c Carried) Remove(folder string) {
	_ = os.Remove(filepath.Join(folder, "config.json"))
	for _, f := range c.Files {
		_ = os.Remove(filepath.Join(folder, filepath.FromSlash(f.Path)))
	}
	_ = os.Remove(filepath.Join(folder, templates)) // only if empty
}

// Tokenizer returns the tokenizer among the files, or nil if it is not supported, and whether the
// files contain any tokenizer.
func (c Carried) Tokenizer() (tok data.Tokenizer, found bool, err error) {
	if len(c.Files) == 0 {
		return nil, false, nil
	}
	dir, err := input.TempDir("zeroth-tokenizer-")
	if err != nil {
		return nil, false, err
	}
	defer input.RemoveTemp(dir)
	if err := c.Write(dir, c.Config); err != nil { // the type of the model decides, too
		return nil, false, err
	}
	if t, err := data.NewTokenizer(dir); err == nil { // otherwise it is not supported
		tok = t
	}
	return tok, len(data.TokenizerFiles(dir)) > 0, nil
}
