package checkpoint

import (
	"io"

	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
)

// Hold is the lock of a folder of checkpoints. Only its holder saves and deletes there: a run holds
// it for its whole life, others for one save or prune. The kernel releases the lock when its
// process ends, for any reason.
type Hold struct {
	root string
	fsys vfs.FS
	lock io.Closer
}

// HoldFolder locks a folder of checkpoints and creates it if needed; a nil fsys means the machine's
// file system. If another process holds the lock, the error is a *vfs.Locked.
func HoldFolder(fsys vfs.FS, root string) (*Hold, error) {
	if fsys == nil {
		fsys = store.Files{}
	}
	if err := vfs.MkdirAll(fsys, root); err != nil {
		return nil, err
	}
	return hold(fsys, root)
}

func hold(fsys vfs.FS, root string) (*Hold, error) {
	lock, err := fsys.Lock(vfs.Join(root, lockName))
	if err != nil {
		return nil, err
	}
	return &Hold{root, fsys, lock}, nil
}

// Close releases the lock. If the folder contains only the lock file, Close removes that.
func (h *Hold) Close() error {
	if in, err := h.fsys.List(h.root); err == nil && len(in) == 1 && in[0].Name == lockName {
		_ = h.fsys.Remove(vfs.Join(h.root, lockName)) // an unused lock file is harmless
	}
	return h.lock.Close()
}

// Prune deletes the checkpoints that none of the rules keeps, and leftovers of interrupted saves.
//
// It deletes only files named by the format, and their folders. It does not follow symbolic links;
// a folder that is a link, or contains anything else, is not touched.
//
// It first renames a checkpoint, so that a partly deleted one is not mistaken for a damaged one. A
// reader that has it open can continue to read.
func (h *Hold) Prune(rules ...Keep) (p Pruned, err error) {
	err = p.prune(h.fsys, h.root, rules, remove)
	return p, err
}
