package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
)

// Keep is a retention rule. A checkpoint stays if any of the conditions keeps it, and so does the
// newest. The zero Keep keeps all.
type Keep struct {
	Last  int    // this many of the newest commits
	Every int64  // steps that are a multiple of this
	Best  string // the commit with the lowest value of this metric
	Step  int64  // this step; 0: none
}

// Drop returns the complete entries of a list that k does not keep. If a step was saved again, the
// older commits are not kept. Damaged entries are never returned: the user must decide.
func (k Keep) Drop(list []Entry) []Entry {
	var whole []Entry
	newest := map[int64]int64{} // seq by step
	for _, e := range list {
		if e.Status == Complete {
			whole = append(whole, e)
			newest[e.Step] = max(newest[e.Step], e.Seq)
		}
	}
	best := -1
	if k.Best != "" {
		best = Lowest(whole, k.Best)
	}
	var drop []Entry
	for i, e := range whole {
		after := len(whole) - 1 - i // number of later commits: List sorts by Seq
		kept := after < max(1, k.Last) || k.Every > 0 && e.Step%k.Every == 0 || k.Step > 0 && e.Step == k.Step || i == best || k == Keep{}
		if !kept || newest[e.Step] != e.Seq {
			drop = append(drop, e)
		}
	}
	return drop
}

// drop returns the complete entries that all rules drop.
func drop(list []Entry, rules []Keep) []Entry {
	dropped := map[string]int{} // number of rules that drop a path
	for _, k := range rules {
		for _, e := range k.Drop(list) {
			dropped[e.Path]++
		}
	}
	return slices.DeleteFunc(slices.Clone(list), func(e Entry) bool { return dropped[e.Path] == 0 || dropped[e.Path] < len(rules) })
}

// Lowest returns the index of the entry with the lowest value of a metric, or -1. A checkpoint between two
// evaluations has the loss of the one before it, so of equal ones the lowest step counts, and of
// a step its newest commit.
func Lowest(list []Entry, metric string) int {
	best, lowest := -1, 0.0
	for i, e := range list {
		x, ok := e.Metrics[metric]
		if ok && (best < 0 || x < lowest || x == lowest && e.Step <= list[best].Step) {
			best, lowest = i, x
		}
	}
	return best
}

// Pruned lists deleted folders, and folders that stay because they are, or contain, something
// foreign.
type Pruned struct {
	Deleted []string
	Left    []Left
	Damaged []Left // damaged checkpoints, which no rule deletes
}

// Left is a folder that was not deleted, and why.
type Left struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// String describes the folder and what to do about it.
func (l Left) String() string { return fmt.Sprintf("%s stays: %s", Plain(l.Name), l.Why) }

// Prune locks the folder and calls Hold.Prune. While a run or a save holds the lock it deletes
// nothing and returns a *vfs.Locked.
func Prune(root string, rules ...Keep) (Pruned, error) { return PruneIn(store.Files{}, root, rules...) }

// PruneIn is like Prune in another file system.
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

// Prunable returns the result that Prune would have.
func Prunable(root string, rules ...Keep) (p Pruned, err error) {
	err = p.prune(store.Files{}, root, rules, func(vfs.FS, string) error { return nil })
	return p, err
}

func (p *Pruned) prune(fsys vfs.FS, root string, rules []Keep, remove func(vfs.FS, string) error) error {
	list, err := ListIn(fsys, root)
	if err != nil {
		return fmt.Errorf("prune: %w", err)
	}
	for _, e := range list {
		if e.Status == Damaged && !slices.Contains(rules, Keep{}) {
			p.Damaged = append(p.Damaged, Left{filepath.Base(e.Path), fmt.Sprintf("it is damaged (%s); delete it yourself if you do not need it", e.Why)})
		}
	}
	for _, e := range drop(list, rules) {
		if err := p.take(fsys, e.Path, remove); err != nil {
			return fmt.Errorf("prune: %w", err)
		}
	}
	if err := p.cleanBases(fsys, root, remove); err != nil {
		return err
	}
	return p.clean(fsys, root, remove)
}

// clean removes partial saves and trash. The caller holds the lock, so none of them is in use.
func (p *Pruned) clean(fsys vfs.FS, root string, remove func(vfs.FS, string) error) error {
	in, err := fsys.List(root)
	if err != nil {
		return err
	}
	for _, d := range in {
		if _, tmp := parseTmpName(d.Name); tmp || isTrashName(d.Name) {
			if err := p.take(fsys, vfs.Join(root, d.Name), remove); err != nil {
				return fmt.Errorf("clean: %w", err)
			}
		}
	}
	return nil
}

// take deletes a folder, unless it is undeletable.
func (p *Pruned) take(fsys vfs.FS, path string, remove func(vfs.FS, string) error) error {
	why, err := undeletable(fsys, path)
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

// undeletable returns why a folder must not be deleted, or "" if it is a real folder containing
// only files of the format.
func undeletable(fsys vfs.FS, path string) (why string, err error) {
	d, err := fsys.Lstat(path)
	if err != nil {
		return "", err
	}
	if d.Kind != vfs.Dir {
		return fmt.Sprintf("it is %v; delete it yourself", d.Kind), nil
	}
	in, err := fsys.List(path)
	if err != nil {
		return "", err
	}
	for _, e := range in {
		if e.Kind != vfs.Regular || !isOurs(e.Name) {
			return fmt.Sprintf("it contains %.80q (%v), which is not a file of a checkpoint: move it away, or delete the folder yourself", e.Name, e.Kind), nil
		}
	}
	return "", nil
}

// remove deletes a deletable folder. It first renames the folder, so that nobody finds it
// half deleted and no writer still running creates files in it. Other files created in the meantime
// are not touched.
func remove(fsys vfs.FS, path string) error {
	dir, name := vfs.Parent(path), filepath.Base(path)
	if !isTrashName(name) {
		trash := vfs.Join(dir, trashPrefix+name+"-"+newNonce())
		if err := fsys.Rename(path, trash); err != nil {
			return err
		}
		if err := fsys.SyncDir(dir); err != nil {
			return err
		}
		path = trash
	}
	in, err := fsys.List(path)
	if err != nil {
		return err
	}
	for _, e := range in {
		if e.Kind == vfs.Regular && isOurs(e.Name) {
			if err := fsys.Remove(vfs.Join(path, e.Name)); err != nil {
				return err
			}
		}
	}
	return fsys.Remove(path)
}
