package s3

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/minio/minio-go/v7"

	"zeroth/internal/input"
	"zeroth/internal/parallel"
)

// Local returns the path of the local copy of an object, or of the folder of copies of objects with
// a prefix:
//
//	CACHE/zeroth/s3/HOST/files/BUCKET/KEY   the copy
//	CACHE/zeroth/s3/HOST/etags/BUCKET/KEY   its mark: the version of the object, the time at which the copy
//	                                        was last written, and its CRC32C
//
// CACHE is XDG_CACHE_HOME or its default. Nothing deletes copies. A copy that was written since is compared
// with its CRC32C, and copied again if it differs.
func (c *Client) Local(bucket, key string) (string, error) { return c.cache("files", bucket, key) }

func (c *Client) cache(kind, bucket, key string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", input.BadInput(fmt.Errorf("no folder for copies of objects: %w; set XDG_CACHE_HOME", err))
	}
	return filepath.Join(cache, "zeroth", "s3", c.host, kind, bucket, filepath.FromSlash(key)), nil
}

// Room returns an error if the disk has too little space for local copies of objects, by bucket. Copies
// that exist, or that another process makes, need none.
func (c *Client) Room(objects map[string][]Object) error {
	need := int64(0)
	for bucket, all := range objects {
		for _, o := range all {
			if !c.copied(bucket, o) {
				need += o.Size
			}
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil || need == 0 {
		return nil // Fetch reports it
	}
	at := filepath.Join(cache, "zeroth", "s3", c.host)
	for !input.Exists(at) && at != filepath.Dir(at) {
		at = filepath.Dir(at)
	}
	free, err := input.Space(at)
	if err != nil || need <= free {
		return nil // unknown, or enough
	}
	return input.BadInput(fmt.Errorf("the download needs %d MB, but %s has only %d MB free; free some space, or set XDG_CACHE_HOME to a folder on another disk", need/1e6, filepath.Join(cache, "zeroth", "s3"), free/1e6))
}

// copied reports whether an object has a local copy, or a process makes one.
func (c *Client) copied(bucket string, o Object) bool {
	path, err := c.Local(bucket, o.Key)
	if err != nil {
		return false
	}
	mark, _ := c.cache("etags", bucket, o.Key) // as Local
	f, err := input.OpenOwn(mark, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	_, same, _ := o.isAt(path, f)
	return same || errors.Is(input.Look(f), input.ErrLocked)
}

// isAt compares the file at path with its mark, which is read from its beginning: whether it is a copy of
// this version, as it was made (same) or written since. sum is the CRC32C that it should have.
func (o Object) isAt(path string, mark io.Reader) (sum uint32, same, written bool) {
	had, err := io.ReadAll(io.LimitReader(mark, 4096))
	st, missing := os.Lstat(path)
	rest, ok := strings.CutPrefix(string(had), o.version())
	if err != nil || missing != nil || !ok || !st.Mode().IsRegular() || st.Size() != o.Size {
		return 0, false, false
	}
	at := int64(0)
	_, err = fmt.Sscanf(rest, "%d %x\n", &at, &sum)
	return sum, err == nil && at == st.ModTime().UnixNano(), err == nil && at != st.ModTime().UnixNano()
}

// version returns the beginning of the mark of a copy.
func (o Object) version() string { return fmt.Sprintf("%s %d ", o.ETag, o.Size) }

// mark writes the mark of a copy with a CRC32C.
func (o Object) mark(f *os.File, path string, sum uint32) error {
	st, err := os.Lstat(path)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%s%d %08x\n", o.version(), st.ModTime().UnixNano(), sum), 0)
	}
	return err
}

// has reports whether a file has a CRC32C.
func has(path string, sum uint32) bool {
	f, err := input.OpenOwn(path, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close() // only read from
	got, err := sumOf(f)
	return err == nil && got == sum
}

// sumOf returns the CRC32C of a file.
func sumOf(in io.Reader) (uint32, error) {
	h := crc32.New(castagnoli)
	_, err := io.Copy(h, in)
	return h.Sum32(), err
}

// Fetch makes a local copy of an object and returns its path. A copy of the same version is used as it
// is. Processes that fetch the same object wait for each other. moved is called with bytes received.
func (c *Client) Fetch(ctx context.Context, bucket string, o Object, moved func(int64)) (path string, err error) {
	path, err = c.Local(bucket, o.Key)
	if err != nil {
		return "", err
	}
	mark, _ := c.cache("etags", bucket, o.Key) // as Local
	for _, name := range []string{path, mark} {
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			return "", input.BadInput(fmt.Errorf("%s: %w; set XDG_CACHE_HOME", filepath.Dir(name), input.Cause(err)))
		}
	}
	f, err := input.LockFile(ctx, mark, func() {})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum, same, written := o.isAt(path, f)
	if same || written && has(path, sum) {
		moved(o.Size)
	} else if sum, err = c.download(ctx, bucket, o, path, moved); err != nil {
		return "", err
	}
	if !same {
		err = errors.Join(f.Truncate(0), o.mark(f, path, sum))
	}
	return path, err
}

// download replaces the file at path by an object's content, and returns its CRC32C.
func (c *Client) download(ctx context.Context, bucket string, o Object, path string, moved func(int64)) (sum uint32, err error) {
	out, err := input.Create(path)
	if err != nil {
		return 0, err
	}
	defer out.Drop()
	buffers := sync.Pool{New: func() any { b := make([]byte, min(PartBytes, o.Size)); return &b }}
	err = parallel.For(ctx, partsOf(o.Size), Streams, func(ctx context.Context, i int) error {
		off, buf := int64(i)*PartBytes, buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		b := (*buf)[:min(PartBytes, o.Size-off)]
		_, err := c.ReadAt(ctx, bucket, o, b, off)
		if err == nil {
			_, err = out.WriteAt(b, off)
		}
		moved(int64(len(b)))
		return err
	})
	if err != nil {
		return 0, err
	}
	if sum, err = c.compare(ctx, bucket, o, out); err != nil {
		return 0, err
	}
	return sum, out.Keep()
}

// compare compares a copy with the checksum that the server has of an object, if any, and returns its
// CRC32C.
func (c *Client) compare(ctx context.Context, bucket string, o Object, in io.ReaderAt) (sum uint32, err error) {
	i, err := c.core.StatObject(ctx, bucket, o.Key, minio.StatObjectOptions{Checksum: true})
	if err != nil {
		return 0, explain(ctx, "stat", bucket, o.Key, err)
	}
	if i.ETag != o.ETag || i.Size != o.Size {
		return 0, &fs.PathError{Op: "read", Path: scheme + bucket + "/" + o.Key, Err: errReplaced}
	}
	if sum, err = sumOf(io.NewSectionReader(in, 0, o.Size)); err != nil || i.ChecksumMode != "FULL_OBJECT" {
		return sum, err
	}
	got, want := encode(sum), i.ChecksumCRC32C
	if want == "" && i.ChecksumCRC64NVME != "" {
		h := minio.ChecksumCRC64NVME.Hasher()
		if _, err := io.Copy(h, io.NewSectionReader(in, 0, o.Size)); err != nil {
			return 0, err
		}
		got, want = base64.StdEncoding.EncodeToString(h.Sum(nil)), i.ChecksumCRC64NVME
	}
	if want != "" && got != want {
		return 0, fmt.Errorf("%s%s/%s: the copy has the checksum %s, the server says %s", scheme, bucket, o.Key, got, want)
	}
	return sum, nil
}
