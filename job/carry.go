package job

import (
	"fmt"
	"slices"

	"zeroth/checkpoint"
	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec"
)

// inherit takes over the files and the config.json that a checkpoint carries. For old checkpoints
// without files it uses the model's folder, if that still exists.
func inherit(j *setup.Job, b *beginning) error {
	if b.from == nil {
		return nil
	}
	kept, err := hf.CarriedBy(b.from.Checkpoint, b.Model)
	if err != nil {
		return err
	}
	j.Carried.Files = kept.Files
	if folder := hub.Folder(j.Model.From); len(kept.Files) == 0 && folder != "" && input.Exists(folder) {
		if err := j.Carried.ReadFiles(folder); err != nil {
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
	if j.Carried.Config = b.Model; j.Model.From != "" || !b.Trained() { // else it is this program's own
		j.Carried.Notes = notes
	}
	return nil
}

// carryTokenizer carries the data's tokenizer with the model, unless a checkpoint carries one
// already.
func carryTokenizer(j *setup.Job, set *data.Set, b *beginning) error {
	if set.Tokenizer == nil || b.from != nil && b.Trained() && len(j.Carried.Files) > 0 {
		return nil
	}
	own, some, err := j.Carried.Tokenizer()
	if err != nil || own != nil && data.SameTokenizer(own, set.Tokenizer) {
		return err
	}
	files := slices.Clone(j.Carried.Files)
	if some {
		files = nil
		j.Carried.Notes = slices.Concat(j.Carried.Notes, []string{"the model's tokenizer files are not copied: this run trains with another tokenizer"})
	}
	kind := j.Data.Tokenizer
	if j.Data.Vocab != "" {
		kind = "vocab"
	}
	for _, f := range data.RecordTokenizer(kind, set.Tokenizer) {
		files = append(files, checkpoint.Attachment{Path: f.Name, Data: f.Text})
	}
	j.Carried.Files = files
	return nil
}

// carryEnds notes which special tokens of the saved model become those of the tokenizer, and adds the
// ends of a text to the generation settings that it carries.
func carryEnds(j *setup.Job, set *data.Set) error {
	turn := int32(-1)
	if d := spec.Source(j.Job).Documents; d.Format == "chat" {
		if c, err := data.NewChat(set.Tokenizer, d.Date); err == nil { // a resumed run may have token files of chats
			turn = c.EndOfTurn()
		}
	}
	aligned, note, err := j.Carried.AlignedWith(set.Tokenizer, j.ModelJSON(), turn)
	if set.Tokenizer == nil {
		aligned, note, err = j.Carried.Aligned(j.ModelJSON(), turn)
	}
	if err == nil && note != "" {
		j.Carried.Files, j.Carried.Notes = aligned.Files, slices.Concat(j.Carried.Notes, []string{note})
	}
	return err
}
