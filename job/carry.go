package job

import (
	"fmt"
	"slices"

	"zeroth/checkpoint"
	"zeroth/data"
	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/hf"
)

// inherit takes over what a checkpoint carries: the config.json that the run
// began with, and the files. Checkpoints made before have no files; then it is
// those of the folder, as long as that is there.
func inherit(c *config.Config, b *beginning) error {
	if b.from == nil {
		return nil
	}
	kept, err := hf.CarriedBy(b.from.Checkpoint, b.Model)
	if err != nil {
		return err
	}
	c.Carried.Files = kept.Files
	if len(kept.Files) == 0 && c.Model.From != "" && input.Exists(c.Model.From) {
		if err := c.Carried.ReadFiles(c.Model.From); err != nil {
			return input.BadInput(err)
		}
	}
	if len(b.Model) == 0 {
		return nil
	}
	_, notes, err := hf.ReadModel(b.Model)
	if err != nil {
		return input.BadInput(fmt.Errorf("%s: state.json: model: %w", b.from.Path, err))
	}
	if c.Carried.Config = b.Model; c.Model.From != "" || !b.Trained() { // else it is this program's own
		c.Carried.Notes = notes
	}
	return nil
}

// carryTokenizer makes the data's tokenizer, if it is known, the one that is
// carried with the model. A run that goes on carries it already.
func carryTokenizer(c *config.Config, set *data.Set, b *beginning) error {
	if set.Tokenizer == nil || b.from != nil && b.Trained() && len(c.Carried.Files) > 0 {
		return nil
	}
	own, some, err := c.Carried.Tokenizer()
	if err != nil || own != nil && data.SameTokenizer(own, set.Tokenizer) {
		return err
	}
	files := slices.Clone(c.Carried.Files)
	if some {
		files = nil
		c.Carried.Notes = slices.Concat(c.Carried.Notes, []string{"the files that came with the model are not carried over: this trains on the tokens of another tokenizer"})
	}
	kind := c.Data.Tokenizer
	if c.Data.Vocab != "" {
		kind = "vocab"
	}
	for _, f := range data.RecordTokenizer(kind, set.Tokenizer) {
		files = append(files, checkpoint.Attachment{Path: f.Name, Data: f.Text})
	}
	c.Carried.Files = files
	return nil
}
