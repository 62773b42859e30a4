package checkpoint

import (
	"io"
	"path/filepath"

	"zeroth/checkpoint/vfs"
)

// Hold is the lock of a folder of checkpoints. Who has it alone saves and
// deletes there: a run for its whole life, others for one save or prune. The
// kernel drops it when its process ends, however that ends.
type Hold struct {
	root string
	fsys vfs.FS
	lock io.Closer
}

// HoldFolder locks a folder of checkpoints, which is made if need be; nil is
// the machine's file system. If another process has it the error is a
// *vfs.Locked.
func HoldFolder(fsys vfs.FS, root string) (*Hold, error) {
	if fsys == nil {
		fsys = vfs.OS{}
	}
	if err := vfs.MkdirAll(fsys, root); err != nil {
		return nil, err
	}
	return hold(fsys, root)
}

func hold(fsys vfs.FS, root string) (*Hold, error) {
	lock, err := fsys.Lock(filepath.Join(root, lockName))
	if err != nil {
		return nil, err
	}
	return &Hold{root, fsys, lock}, nil
}

// Close gives the folder up. Where nothing but the lock's file came to be in
// it, that is removed.
func (h *Hold) Close() error {
	if in, err := h.fsys.List(h.root); err == nil && len(in) == 1 && in[0].Name == lockName {
		_ = h.fsys.Remove(filepath.Join(h.root, lockName)) // a lock file in the way of nobody
	}
	return h.lock.Close()
}

// Prune deletes the checkpoints that none of the rules keeps, and what saves cut short
// have left.
//
// Only files that the format names are ever deleted, and the folders they are
// in. A symbolic link is not followed, and a folder that is one, or has
// anything else in it, is left as it is.
//
// A checkpoint is first renamed, so that one deleted in part is not taken for
// one that is damaged. A reader that has it open goes on reading.
func (h *Hold) Prune(rules ...Keep) (p Pruned, err error) {
	err = p.prune(h.fsys, h.root, rules, remove)
	return p, err
}
