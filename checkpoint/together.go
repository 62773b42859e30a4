package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
)

// Gather returns the message of each rank, in rank order. All ranks must call it the same number of
// times. It returns an error if some rank cannot be reached.
type Gather func(mine []byte) (all [][]byte, err error)

// Rank is one rank's view of a save made together. The zero Rank, of a world of 1, needs no Gather.
type Rank struct {
	Rank, World int
	Gather      Gather // nil with World 1
}

// message is a message of a rank to all others.
type message struct {
	Nonce string    `json:"nonce,omitempty"`
	Part  *PartFile `json:"part,omitempty"`
	Path  string    `json:"path,omitempty"`
	Err   string    `json:"err,omitempty"`
}

// Together saves with all ranks: rank 0 begins the save, each rank puts its own share of the
// state with put, and rank 0 commits with the Commit returned by finish (Parts is filled in;
// other ranks pass nil). It returns the checkpoint's folder or, on every rank that can still
// be reached, an error. If a rank fails, dies or cannot be reached, there is no checkpoint,
// unless all parts were complete before.
func (r Rank) Together(root string, step int64, opt Options, put func(*Writer) error, finish func() (Commit, error)) (string, error) {
	var save *Save
	var begun message
	if r.Rank == 0 {
		var err error
		if save, err = Begin(root, step, opt); err == nil {
			defer save.Abort()
			begun.Nonce = save.Nonce
		}
		begun.Err = text(err)
	}
	all, err := r.exchange(begun)
	if err != nil {
		return "", err
	}
	if r.Rank != 0 {
		save, err = Join(root, step, all[0].Nonce, opt)
	}
	if all, err = r.exchange(writePart(save, err, r.Rank, put)); err != nil {
		return "", err
	}
	var done message
	if r.Rank == 0 {
		done = commitAll(save, all, finish)
	}
	if all, err = r.exchange(done); err != nil {
		return "", err
	}
	return filepath.Join(root, all[0].Path), nil
}

// writePart writes a rank's share and returns the message that reports it.
func writePart(s *Save, err error, rank int, put func(*Writer) error) message {
	if err != nil {
		return message{Err: err.Error()}
	}
	w := s.Writer(rank)
	if err := put(w); err != nil {
		return message{Err: errors.Join(err, w.Abort()).Error()}
	}
	p, err := w.Finish()
	return message{Part: &p, Err: text(err)}
}

func commitAll(s *Save, all []message, finish func() (Commit, error)) message {
	c, err := finish()
	if err != nil {
		return message{Err: err.Error()}
	}
	for _, x := range all {
		c.Parts = append(c.Parts, *x.Part)
	}
	path, err := s.Commit(c)
	return message{Path: filepath.Base(path), Err: text(err)}
}

// exchange gathers the messages of all ranks. If one contains an error, every rank returns it.
func (r Rank) exchange(mine message) ([]message, error) {
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
	all := make([]message, len(raw))
	for i := range raw {
		if err := json.Unmarshal(raw[i], &all[i]); err != nil {
			return nil, fmt.Errorf("save: message from rank %d: %w", i, err)
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
