package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"zeroth/checkpoint/vfs"
)

// Keep says which checkpoints stay: those that any of its rules keeps, and
// always the newest. The zero Keep keeps all.
type Keep struct {
	Last  int    // the newest so many commits
	Every int64  // steps that are a multiple of it
	Best  string // the one with the lowest value of this metric
}

// Drop is the complete entries of a list that k does not keep. An older commit
// of a step that was saved again is not kept. Damaged ones are left for people
// to look at.
func (k Keep) Drop(list []Entry) []Entry {
	var whole []Entry
	newest := map[int64]int64{} // seq by step
	for _, e := range list {
		if e.Status == Complete {
			whole = append(whole, e)
			newest[e.Step] = max(newest[e.Step], e.Seq)
		}
	}
	best := k.best(whole)
	var drop []Entry
	for i, e := range whole {
		after := len(whole) - 1 - i // commits after this one: List sorts by Seq
		kept := after < max(1, k.Last) || k.Every > 0 && e.Step%k.Every == 0 || i == best || k == Keep{}
		if !kept || newest[e.Step] != e.Seq {
			drop = append(drop, e)
		}
	}
	return drop
}

// best is the index of the entry with the lowest metric, the newest of equals,
// -1 without any.
func (k Keep) best(list []Entry) int {
	best, lowest := -1, 0.0
	for i, e := range list {
		if x, ok := e.Metrics[k.Best]; ok && k.Best != "" && (best < 0 || x <= lowest) {
			best, lowest = i, x
		}
	}
	return best
}

// Prune is Hold.Prune by one who has no hold. While a run or a save has the
// folder it deletes nothing and returns a *vfs.Locked.
func Prune(root string, k Keep) ([]string, error) { return PruneIn(vfs.OS{}, root, k) }

// PruneIn is Prune in another file system.
func PruneIn(fsys vfs.FS, root string, k Keep) ([]string, error) {
	h, err := hold(fsys, root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("prune %s: %w", root, err)
	}
	defer h.Close()
	return h.Prune(k)
}

// clean removes partial saves and trash. The caller has the lock, so none of
// them is alive.
func clean(fsys vfs.FS, root string) (gone []string, err error) {
	in, err := fsys.List(root)
	if err != nil {
		return nil, err
	}
	for _, d := range in {
		if !d.Dir || !strings.HasPrefix(d.Name, tmpPrefix) && !strings.HasPrefix(d.Name, trashPrefix) {
			continue
		}
		if err := remove(fsys, filepath.Join(root, d.Name)); err != nil {
			return gone, fmt.Errorf("clean: %w", err)
		}
		gone = append(gone, d.Name)
	}
	return gone, nil
}

// remove deletes a folder under another name, so that nobody finds it half
// there and a writer that is still alive can make no more files in it.
func remove(fsys vfs.FS, path string) error {
	dir, name := filepath.Split(path)
	if !strings.HasPrefix(name, trashPrefix) {
		trash := filepath.Join(dir, trashPrefix+name+"-"+newNonce())
		if err := fsys.Rename(path, trash); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if err := fsys.SyncDir(filepath.Clean(dir)); err != nil {
			return err
		}
		path = trash
	}
	return vfs.RemoveAll(fsys, path)
}
