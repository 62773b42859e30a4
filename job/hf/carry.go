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
	"zeroth/input"
	"zeroth/job/show"
)

// Carried is what a run keeps of the folder that its model came from, so that
// what it exports is a whole model again, also when that folder is gone: in
// memory, and attached to every checkpoint.
type Carried struct {
	Config []byte   // config.json; nil: the model comes from no folder
	Notes  []string // what to know about the model
	Files  []checkpoint.Attachment
}

// carriedNames are the files that go with a model: its tokenizer, the template
// of its chats and the settings of generation.
var carriedNames = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
	"chat_template.jinja", "chat_template.json", "generation_config.json",
}

// templates is the folder of further chat templates.
const templates = "additional_chat_templates"

// maxCarried is the bytes of all carried files together.
const maxCarried = 256 << 20

// carries tells whether a name is one of a file that is carried: a checkpoint
// may have been made by anybody.
func carries(name string) bool {
	in, template := strings.CutPrefix(name, templates+"/")
	return slices.Contains(carriedNames, name) || template && strings.HasSuffix(in, ".jinja") && !strings.ContainsAny(in, `/\`)
}

// ReadFiles reads the files of a folder that are carried, if none are yet. All
// that is wrong with them is one error.
func (c *Carried) ReadFiles(folder string) error {
	if len(c.Files) > 0 {
		return nil
	}
	var errs []error
	names := slices.Clone(carriedNames)
	more, _ := os.ReadDir(filepath.Join(folder, templates)) // most folders have none
	for _, e := range more {
		if name := templates + "/" + e.Name(); carries(name) {
			names = append(names, name)
		}
	}
	left := int64(maxCarried)
	for _, name := range names {
		raw, err := input.Read(filepath.Join(folder, name), left)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && bytes.HasPrefix(raw, []byte(lfsPointer)):
			err = fmt.Errorf("%s: %w", filepath.Join(folder, name), errPointer)
		}
		errs = append(errs, err)
		left -= int64(len(raw))
		c.Files = append(c.Files, checkpoint.Attachment{Path: name, Data: raw})
	}
	return errors.Join(errs...)
}

// CarriedBy is what a checkpoint has of it.
func CarriedBy(ck *checkpoint.Checkpoint, config []byte) (Carried, error) {
	files, err := ck.Attachments(maxCarried)
	for _, f := range files {
		if !carries(f.Path) {
			return Carried{}, fmt.Errorf("%s has \"%s\" attached, which is no file of a model: it was not made by this program", ck.Path, show.Brief(f.Path))
		}
	}
	return Carried{Config: config, Files: files}, err
}

// Write makes a model's folder of one that exists and has no parameters yet.
func (c Carried) Write(folder string, config []byte) error {
	if err := c.writeFiles(folder); err != nil {
		return err
	}
	if config == nil {
		return nil
	}
	return replace(filepath.Join(folder, "config.json"), config)
}

func (c Carried) writeFiles(folder string) error {
	for _, f := range c.Files {
		path := filepath.Join(folder, filepath.FromSlash(f.Path))
		if below := filepath.Dir(path); below != filepath.Clean(folder) {
			if err := input.Folder(below); err != nil {
				return err
			}
		}
		if err := replace(path, f.Data); err != nil {
			return err
		}
	}
	return nil
}

// Remove takes away what write has made.
func (c Carried) Remove(folder string) {
	_ = os.Remove(filepath.Join(folder, "config.json"))
	for _, f := range c.Files {
		_ = os.Remove(filepath.Join(folder, filepath.FromSlash(f.Path)))
	}
	_ = os.Remove(filepath.Join(folder, templates)) // if it is empty
}

// Tokenizer tells whether there is one among the files, and which: nil if it
// does not run here.
func (c Carried) Tokenizer() (own data.Tokenizer, some bool, err error) {
	if len(c.Files) == 0 {
		return nil, false, nil
	}
	dir, err := input.TempDir("zeroth-tokenizer-")
	if err != nil {
		return nil, false, err
	}
	defer input.RemoveTemp(dir)
	if err := c.writeFiles(dir); err != nil {
		return nil, false, err
	}
	if t, err := data.NewTokenizer(dir); err == nil { // else it is of another kind
		own = t
	}
	return own, len(data.TokenizerFiles(dir)) > 0, nil
}
