package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"zeroth/checkpoint/vfs"
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

	// of ranks that do not see each other's files
	Have  []string          `json:"have,omitempty"`  // folders of process 0
	Files map[string][]byte `json:"files,omitempty"` // a rank's part file, or what commits the checkpoint
}

// apart is a file system in which hosts may not see each other's files. Then part files and what
// commits a checkpoint travel in messages, and every host has a folder with the data files of its ranks.
type apart interface {
	vfs.FS
	// Apart reports whether that is so in a folder of checkpoints.
	Apart(root string) bool
	// OnDisk returns the folder on this host's disk to which checkpoints are saved.
	OnDisk(root string) string
	// Keep removes from this host's folder the checkpoints, and base folders, with other names.
	Keep(root string, names []string) error
}

// isApart reports whether hosts do not see each other's files in a save's folder.
func (s *Save) isApart() bool {
	f, ok := s.opt.FS.(apart)
	return ok && f.Apart(s.root)
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
			begun.Have, err = save.have()
		}
		begun.Err = text(err)
	}
	all, err := r.exchange(begun)
	if err != nil {
		return "", err
	}
	if r.Rank != 0 {
		save, err = join(root, step, all[0], opt)
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
	if save.isApart() {
		if _, err = r.exchange(message{Err: text(save.copy(all[0]))}); err != nil {
			return "", err
		}
	}
	return vfs.Join(root, all[0].Path), nil
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
	m := message{Part: &p}
	if err == nil && s.isApart() {
		name := partName(rank)
		m.Files = map[string][]byte{}
		m.Files[name], err = readSmall(s.opt.FS, s.tmp, name, maxJSON)
	}
	m.Err = text(err)
	return m
}

func commitAll(s *Save, all []message, finish func() (Commit, error)) message {
	c, err := finish()
	if err != nil {
		return message{Err: err.Error()}
	}
	for _, x := range all {
		c.Parts = append(c.Parts, *x.Part)
		if err := s.write(x.Files); err != nil {
			return message{Err: err.Error()}
		}
	}
	apart := s.isApart()
	path, err := s.Commit(c)
	m := message{Path: filepath.Base(path)}
	if err == nil && apart {
		m.Files = map[string][]byte{}
		for _, name := range []string{manifestName, stateName, commitName} {
			if m.Files[name], err = readSmall(s.opt.FS, path, name, maxJSON); err != nil {
				break
			}
		}
	}
	m.Err = text(err)
	return m
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

// have returns the names of the folders that other hosts keep, if ranks do not see each other's files.
func (s *Save) have() (names []string, err error) {
	if !s.isApart() {
		return nil, nil
	}
	in, err := s.opt.FS.List(s.root)
	for _, e := range in {
		names = append(names, e.Name)
	}
	return names, err
}

// join joins a save that rank 0 began.
func join(root string, step int64, begun message, opt Options) (*Save, error) {
	s, err := newSave(root, step, begun.Nonce, opt)
	if err != nil || !s.isApart() {
		return Join(root, step, begun.Nonce, opt)
	}
	if err := s.opt.FS.Mkdir(s.tmp); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("join save of step %d: %w", step, err)
	}
	return s, s.opt.FS.(apart).Keep(root, begun.Have)
}

// write writes files that are not in the temporary folder yet.
func (s *Save) write(files map[string][]byte) error {
	for name, b := range files {
		if err := vfs.WriteFile(s.opt.FS, vfs.Join(s.tmp, name), b); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// copy commits this host's folder with the files of rank 0, unless another rank of the host does.
func (s *Save) copy(done message) error {
	f, err := s.opt.FS.Create(vfs.Join(s.tmp, manifestName))
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) { // another rank is doing that, or has
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(done.Files[manifestName], 0)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := s.write(done.Files); err != nil {
		return err
	}
	_, err = s.publish(vfs.Join(s.root, done.Path))
	return err
}
