package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

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

// drop returns what no rule keeps: the complete entries that all rules drop.
func drop(list []Entry, rules []Keep) []Entry {
	gone := map[string]int{} // how many rules drop a path
	for _, k := range rules {
		for _, e := range k.Drop(list) {
			gone[e.Path]++
		}
	}
	return slices.DeleteFunc(slices.Clone(list), func(e Entry) bool { return gone[e.Path] == 0 || gone[e.Path] < len(rules) })
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

// Pruned is what was deleted, by the names of folders, and what was to be
// deleted and was left as it is, because it is not, or not only, ours.
type Pruned struct {
	Deleted []string
	Left    []Left
	Damaged []Left // checkpoints of which no rule can tell, and why
}

// Left is a folder that was left, and why.
type Left struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// String is what to do about it.
func (l Left) String() string { return fmt.Sprintf("%s stays: %s", Plain(l.Name), l.Why) }

// Prune is Hold.Prune by one who has no hold. While a run or a save has the
// folder it deletes nothing and returns a *vfs.Locked.
func Prune(root string, rules ...Keep) (Pruned, error) { return PruneIn(vfs.OS{}, root, rules...) }

// PruneIn is Prune in another file system.
func PruneIn(fsys vfs.FS, root string, rules ...Keep) (Pruned, error) {
	h, err := hold(fsys, root)
	if errors.Is(err, fs.ErrNotExist) {
		return Pruned{}, nil
	}
	if err != nil {
		return Pruned{}, fmt.Errorf("prune %s: %w", root, err)
	}
	defer h.Close()
	return h.Prune(rules...)
}

// Prunable is what Prune would do.
func Prunable(root string, rules ...Keep) (p Pruned, err error) {
	err = p.prune(vfs.OS{}, root, rules, func(vfs.FS, string) error { return nil })
	return p, err
}

func (p *Pruned) prune(fsys vfs.FS, root string, rules []Keep, remove func(vfs.FS, string) error) error {
	list, err := ListIn(fsys, root)
	if err != nil {
		return fmt.Errorf("prune: %w", err)
	}
	for _, e := range list {
		if e.Status == Damaged && !slices.Contains(rules, Keep{}) {
			p.Damaged = append(p.Damaged, Left{filepath.Base(e.Path), fmt.Sprintf("it is damaged (%s), and only you delete it", e.Why)})
		}
	}
	for _, e := range drop(list, rules) {
		if err := p.take(fsys, e.Path, remove); err != nil {
			return fmt.Errorf("prune: %w", err)
		}
	}
	return p.clean(fsys, root, remove)
}

// clean removes partial saves and trash. The caller has the lock, so none of
// them is alive.
func (p *Pruned) clean(fsys vfs.FS, root string, remove func(vfs.FS, string) error) error {
	in, err := fsys.List(root)
	if err != nil {
		return err
	}
	for _, d := range in {
		if _, tmp := parseTmpName(d.Name); tmp || isTrashName(d.Name) {
			if err := p.take(fsys, filepath.Join(root, d.Name), remove); err != nil {
				return fmt.Errorf("clean: %w", err)
			}
		}
	}
	return nil
}

// take deletes a folder, or leaves it if not all of it is ours.
func (p *Pruned) take(fsys vfs.FS, path string, remove func(vfs.FS, string) error) error {
	why, err := foreign(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if why != "" {
		p.Left = append(p.Left, Left{filepath.Base(path), why})
		return nil
	}
	if err := remove(fsys, path); err != nil {
		return err
	}
	p.Deleted = append(p.Deleted, filepath.Base(path))
	return nil
}

// foreign says why a folder is not for us to delete; empty if it is: a real
// folder with nothing in it but files of the format.
func foreign(fsys vfs.FS, path string) (why string, err error) {
	d, err := fsys.Lstat(path)
	if err != nil {
		return "", err
	}
	if d.Kind != vfs.Dir {
		return fmt.Sprintf("it is %v, which only you delete", d.Kind), nil
	}
	in, err := fsys.List(path)
	if err != nil {
		return "", err
	}
	for _, e := range in {
		if e.Kind != vfs.Regular || !ours(e.Name) {
			return fmt.Sprintf("it has %.80q in it (%v), which is no file of a checkpoint: move that, or delete the folder yourself", e.Name, e.Kind), nil
		}
	}
	return "", nil
}

// remove deletes a folder that is not foreign under another name, so that
// nobody finds it half there and a writer that is still alive can make no more
// files in it. What has come into it since is not touched.
func remove(fsys vfs.FS, path string) error {
	dir, name := filepath.Split(path)
	if !isTrashName(name) {
		trash := filepath.Join(dir, trashPrefix+name+"-"+newNonce())
		if err := fsys.Rename(path, trash); err != nil {
			return err
		}
		if err := fsys.SyncDir(filepath.Clean(dir)); err != nil {
			return err
		}
		path = trash
	}
	in, err := fsys.List(path)
	if err != nil {
		return err
	}
	for _, e := range in {
		if e.Kind == vfs.Regular && ours(e.Name) {
			if err := fsys.Remove(filepath.Join(path, e.Name)); err != nil {
				return err
			}
		}
	}
	return fsys.Remove(path)
}
