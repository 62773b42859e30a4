package checkpoint

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"

	"zeroth/checkpoint/vfs"
)

// basePrefix begins the name of a base folder; the SHA-256 of its manifest follows.
const basePrefix = "base-"

var baseForm = regexp.MustCompile(`^` + basePrefix + `[0-9a-f]{64}$`)

// isBase reports whether a name is that of a base folder.
func isBase(name string) bool { return baseForm.MatchString(name) }

// nextTo returns the path of a base folder next to the checkpoint at a path.
func nextTo(checkpoint, base string) string { return vfs.Join(checkpoint, "..", base) }

// readBase reads the manifest of a base folder and checks the sizes of its files.
func readBase(fsys vfs.FS, dir string) (*manifest, error) {
	m, err := readManifest(fsys, dir)
	if err == nil {
		err = sizes(fsys, dir, m)
	}
	return m, inBase(fsys, dir, err)
}

// inBase returns an error of a base folder as an error of the checkpoint next to it.
func inBase(fsys vfs.FS, dir string, err error) error {
	name := filepath.Base(dir)
	if err != nil && missing(fsys, dir) {
		return &Damage{File: name, Why: "is missing: it contains the tensors that checkpoints share, and belongs next to this one"}
	}
	if d := (*Damage)(nil); errors.As(err, &d) {
		in := *d
		in.File = path.Join(name, d.File)
		return &in
	}
	return err
}

// openBase opens the base folder and adds its tensors.
func (c *Checkpoint) openBase() error {
	dir := nextTo(c.Path, c.man.Base)
	b := &Checkpoint{Path: dir, fsys: c.fsys}
	err := b.open()
	c.files, c.Base = append(c.files, b.files...), b // even after an error: Close closes them
	if err != nil {
		return inBase(c.fsys, dir, err)
	}
	for _, src := range b.files {
		src.name = path.Join(c.man.Base, src.name)
	}
	for k, s := range b.index {
		if c.index[k] != nil {
			return &Damage{File: manifestName, Name: k.name, Kind: k.kind, Why: "is in " + c.man.Base + ", too"}
		}
		c.index[k] = s
	}
	b.files = nil
	c.Tensors = slices.Concat(c.Tensors, b.Tensors)
	byKey(c.Tensors)
	return nil
}

// checkBase checks that the base folder of a save exists and contains none of the save's tensors.
func (s *Save) checkBase(m *manifest) error {
	if m.Base == "" {
		return nil
	}
	b, err := readBase(s.opt.FS, vfs.Join(s.root, m.Base))
	if err != nil {
		return err
	}
	own := map[key]bool{}
	for _, t := range m.Tensors {
		own[t.key()] = true
	}
	for _, t := range b.Tensors {
		if own[t.key()] {
			return fmt.Errorf("%v is in %s, too", t, m.Base)
		}
	}
	return nil
}

// cleanBases deletes the base folders that no checkpoint in root needs, apart from those just
// deleted. If some manifest cannot be read, all stay.
func (p *Pruned) cleanBases(fsys vfs.FS, root string, remove func(vfs.FS, string) error) error {
	in, err := fsys.List(root)
	if err != nil {
		return err
	}
	needed := map[string]bool{}
	for _, d := range in {
		if _, step := parseStepName(d.Name); !step || slices.Contains(p.Deleted, d.Name) {
			continue
		}
		m := looseManifest(fsys, vfs.Join(root, d.Name))
		if m == nil {
			return nil
		}
		needed[m.Base] = true
	}
	for _, d := range in {
		if isBase(d.Name) && !needed[d.Name] {
			if err := p.take(fsys, vfs.Join(root, d.Name), remove); err != nil {
				return fmt.Errorf("prune: %w", err)
			}
		}
	}
	return nil
}
