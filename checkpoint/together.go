package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
)

// Gather gives every rank what each rank passed to it, in rank order. All
// ranks call it equally often. An error means that some rank cannot be
// reached.
type Gather func(mine []byte) (all [][]byte, err error)

// Rank is one rank's view of a save that several make together. The zero Rank
// of a world of 1 needs no Gather.
type Rank struct {
	Rank, World int
	Gather      Gather // nil with World 1
}

// word is what ranks tell each other.
type word struct {
	Nonce string    `json:"nonce,omitempty"`
	Part  *PartFile `json:"part,omitempty"`
	Path  string    `json:"path,omitempty"`
	Err   string    `json:"err,omitempty"`
}

// Together is a save by all ranks: rank 0 begins it, each puts its own share
// of the state with put, and rank 0 commits it with the Commit that finish
// makes (its Parts are filled in; the other ranks pass nil). It returns the
// checkpoint's folder, or on every rank that can still be reached an error.
// When a rank fails, cannot be reached or dies there is no checkpoint, unless
// all parts were complete before.
func (r Rank) Together(root string, step int64, opt Options, put func(*Writer) error, finish func() (Commit, error)) (string, error) {
	var save *Save
	var begun word
	if r.Rank == 0 {
		var err error
		if save, err = Begin(root, step, opt); err == nil {
			defer save.Abort()
			begun.Nonce = save.Nonce
		}
		begun.Err = text(err)
	}
	all, err := r.tell(begun)
	if err != nil {
		return "", err
	}
	if r.Rank != 0 {
		save, err = Join(root, step, all[0].Nonce, opt)
	}
	if all, err = r.tell(writePart(save, err, r.Rank, put)); err != nil {
		return "", err
	}
	var done word
	if r.Rank == 0 {
		done = commitAll(save, all, finish)
	}
	if all, err = r.tell(done); err != nil {
		return "", err
	}
	return filepath.Join(root, all[0].Path), nil
}

// writePart is what a rank has to say after writing its share.
func writePart(s *Save, err error, rank int, put func(*Writer) error) word {
	if err != nil {
		return word{Err: err.Error()}
	}
	w := s.Writer(rank)
	if err := put(w); err != nil {
		return word{Err: errors.Join(err, w.Abort()).Error()}
	}
	p, err := w.Finish()
	return word{Part: &p, Err: text(err)}
}

func commitAll(s *Save, all []word, finish func() (Commit, error)) word {
	c, err := finish()
	if err != nil {
		return word{Err: err.Error()}
	}
	for _, x := range all {
		c.Parts = append(c.Parts, *x.Part)
	}
	path, err := s.Commit(c)
	return word{Path: filepath.Base(path), Err: text(err)}
}

// tell tells all ranks the words of each; an error of any rank is an error on all.
func (r Rank) tell(mine word) ([]word, error) {
	b, err := json.Marshal(mine)
	if err != nil {
		panic("checkpoint: " + err.Error())
	}
	raw := [][]byte{b}
	if r.Gather != nil {
		if raw, err = r.Gather(b); err != nil {
			return nil, fmt.Errorf("save: %w", err)
		}
	}
	if len(raw) != max(1, r.World) {
		return nil, fmt.Errorf("save: %d answers from %d ranks", len(raw), max(1, r.World))
	}
	all := make([]word, len(raw))
	for i := range raw {
		if err := json.Unmarshal(raw[i], &all[i]); err != nil {
			return nil, fmt.Errorf("save: what rank %d says: %w", i, err)
		}
	}
	for i, x := range all {
		if x.Err != "" {
			return nil, fmt.Errorf("save: rank %d: %s", i, x.Err)
		}
	}
	return all, nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
