package s3

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"zeroth/internal/input"
	"zeroth/internal/parallel"
)

// Object describes an object.
type Object struct {
	Key      string
	Size     int64  // bytes
	ETag     string // changes with the content
	Modified time.Time
}

// object returns the server's description of an object, which must have a size.
func object(bucket string, i minio.ObjectInfo) (Object, error) {
	if i.Size < 0 {
		return Object{}, fmt.Errorf("%s%s/%s: the server's answer has no size of the object", scheme, bucket, i.Key)
	}
	return Object{i.Key, i.Size, i.ETag, i.LastModified}, nil
}

// List returns the objects with a prefix, sorted by key, at most limit of them: more are an error, and so
// are pages that repeat or that have no objects for ever.
func (c *Client) List(ctx context.Context, bucket, prefix string, limit int) (out []Object, err error) {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%s%s/%s: %s", scheme, bucket, prefix, fmt.Sprintf(format, args...))
	}
	empty, mark := 0, "" // requests since the last object; the key at the last power of two, which a cycle comes back to
	pages := context.WithValue(ctx, emptyPages{}, &empty)
	for i := range c.core.Client.ListObjectsIter(pages, bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		switch {
		case i.Err != nil:
			return nil, explain(ctx, "list", bucket, prefix, i.Err)
		case len(out) == limit:
			return nil, wrong("more than %d objects", limit)
		case !strings.HasPrefix(i.Key, prefix):
			return nil, wrong("the server lists %.250q, which does not begin with that", i.Key)
		case i.Key == mark:
			return nil, wrong("the server lists %.250q again: its pages repeat", i.Key)
		}
		o, err := object(bucket, i)
		if err != nil {
			return nil, err
		}
		if out, empty = append(out, o), 0; len(out)&(len(out)-1) == 0 {
			mark = o.Key
		}
	}
	slices.SortFunc(out, func(a, b Object) int { return strings.Compare(a.Key, b.Key) })
	for i := range out[:max(1, len(out))-1] {
		if out[i].Key == out[i+1].Key {
			return nil, wrong("the server lists %.250q twice", out[i].Key)
		}
	}
	return out, context.Cause(ctx)
}

// Any reports whether there is an object with a prefix.
func (c *Client) Any(bucket, prefix string) (bool, error) {
	r, err := c.core.ListObjectsV2(bucket, prefix, "", "", "", 1)
	return len(r.Contents) > 0 && strings.HasPrefix(r.Contents[0].Key, prefix), explain(context.Background(), "list", bucket, prefix, err)
}

// Stat describes an object.
func (c *Client) Stat(ctx context.Context, bucket, key string) (Object, error) {
	i, err := c.core.StatObject(ctx, bucket, key, minio.StatObjectOptions{})
	if err != nil {
		return Object{}, explain(ctx, "stat", bucket, key, err)
	}
	return object(bucket, i)
}

var firstPause = 100 * time.Millisecond // shorter in tests

// again repeats a transfer that breaks off.
func again(ctx context.Context, f func() error) error {
	some := func() (bool, error) { return false, f() } // a few bytes each time are no progress
	return input.Pauses{First: firstPause, Longest: 5 * time.Second, Note: func(error, time.Duration) {}}.Retry(ctx, some)
}

// errReplaced reports that an object was replaced by another version.
var errReplaced = errors.New("the object was replaced while it was read; start again")

// ReadAt fills b with bytes of an object from off. An object of another version, by its size and its
// ETag, is an error. If the object ends before, the error is io.EOF.
func (c *Client) ReadAt(ctx context.Context, bucket string, o Object, b []byte, off int64) (n int, err error) {
	want := b[:max(0, min(int64(len(b)), o.Size-off))]
	err = again(ctx, func() (err error) {
		more := 0
		if n < len(want) {
			more, err = c.read(ctx, bucket, o, want[n:], off+int64(n))
		}
		n += more
		return err
	})
	if err != nil {
		return n, explain(ctx, "read", bucket, o.Key, err)
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// read fills b, which ends within the object, by one request.
func (c *Client) read(ctx context.Context, bucket string, o Object, b []byte, off int64) (int, error) {
	ask := minio.GetObjectOptions{}
	if err := ask.SetRange(off, off+int64(len(b))-1); err != nil {
		return 0, err
	}
	if o.ETag != "" {
		if err := ask.SetMatchETag(o.ETag); err != nil {
			return 0, err
		}
	}
	in, have, header, err := c.core.GetObject(ctx, bucket, o.Key, ask)
	if err != nil {
		return 0, unread(err)
	}
	defer in.Close()
	if o.ETag != "" && have.ETag != o.ETag { // some servers ignore the condition
		return 0, errReplaced
	}
	if err := sent(header.Get("Content-Range"), o.Size, off, int64(len(b))); err != nil {
		return 0, err
	}
	n, err := io.ReadFull(in, b)
	if err != nil {
		return n, input.Again(err)
	}
	if more, err := io.ReadFull(in, make([]byte, 1)); more > 0 || err != io.EOF {
		return 0, input.Again(fmt.Errorf("the server sent more than the %d bytes asked for (%v)", len(b), err))
	}
	return n, nil
}

// unread explains the server's refusal to send content.
func unread(err error) error {
	r := minio.ToErrorResponse(err)
	switch {
	case r.StatusCode == http.StatusRequestedRangeNotSatisfiable, r.StatusCode == http.StatusPreconditionFailed:
		return errReplaced // it is shorter now, or has another ETag
	case Lasting(err):
		return err
	}
	return input.Again(err)
}

// sent returns an error unless Content-Range says that n bytes from off were sent of an object with a
// size. Without one, all of the object was sent.
func sent(contentRange string, size, off, n int64) error {
	first, last, total := int64(0), size-1, size
	if contentRange != "" {
		if _, err := fmt.Sscanf(contentRange, "bytes %d-%d/%d", &first, &last, &total); err != nil {
			return input.Again(fmt.Errorf("the server sent the range %.80q of the content; want bytes %d-%d/%d", contentRange, off, off+n-1, size))
		}
	}
	switch {
	case total != size:
		return errReplaced
	case contentRange == "" && n != size:
		return input.Again(fmt.Errorf("the server, or a proxy in front of it, ignores Range: it was asked for the bytes %d-%d of %d and sent all; use a server that supports ranges", off, off+n-1, size))
	case first != off || last != off+n-1:
		return input.Again(fmt.Errorf("the server, or a proxy in front of it, sent the bytes %d-%d; it was asked for %d-%d of %d", first, last, off, off+n-1, size))
	}
	return nil
}

// ReadFile returns an object of at most limit bytes. If it is replaced meanwhile, it is read again.
func (c *Client) ReadFile(ctx context.Context, bucket, key string, limit int64) (b []byte, err error) {
	for range input.Tries {
		var o Object
		if o, err = c.Stat(ctx, bucket, key); err != nil {
			return nil, err
		}
		if o.Size > limit {
			return nil, fmt.Errorf("%s%s/%s: %d bytes, at most %d expected", scheme, bucket, key, o.Size, limit)
		}
		b = make([]byte, o.Size)
		if _, err = c.ReadAt(ctx, bucket, o, b, 0); !errors.Is(err, errReplaced) {
			return b, err
		}
	}
	return nil, err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the HTTP header for a CRC32C.
const header = "X-Amz-Checksum-Crc32c"

func encode(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

// Write writes a small object, replacing an existing one.
func (c *Client) Write(ctx context.Context, bucket, key string, b []byte) error {
	return c.put(ctx, bucket, key, b, minio.PutObjectOptions{})
}

// Create writes a small object unless one with the name exists; that is fs.ErrExist. At most one of
// several clients succeeds. After fs.ErrExist the object may be the client's own, if an answer was lost.
func (c *Client) Create(ctx context.Context, bucket, key string, b []byte) error {
	o := minio.PutObjectOptions{}
	o.SetMatchETagExcept("*")
	return c.put(ctx, bucket, key, b, o)
}

// body is sent again from its start if an attempt fails, while the transport may still read it for
// that attempt. Bytes that this removes from the next attempt change its checksum, so the server
// refuses it and another follows.
type body struct {
	mu sync.Mutex
	r  *bytes.Reader
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.r.Read(p)
}

func (b *body) Seek(offset int64, whence int) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.r.Seek(offset, whence)
}

func (c *Client) put(ctx context.Context, bucket, key string, b []byte, o minio.PutObjectOptions) error {
	o.DisableContentSha256 = true
	o.UserMetadata = map[string]string{header: encode(crc32.Checksum(b, castagnoli))}
	i, err := c.core.PutObject(ctx, bucket, key, &body{r: bytes.NewReader(b)}, int64(len(b)), "", "", o)
	if err == nil {
		err = stored(i.ETag, i.ChecksumCRC32C, crc32.Checksum(b, castagnoli))
	}
	return explain(ctx, "write", bucket, key, err)
}

// stored returns an error if the answer to a write is not that of a server which has stored the bytes.
func stored(etag, got string, want uint32) error {
	switch {
	case etag == "":
		return errors.New("the answer has no ETag: it is not from object storage, and nothing was stored; check AWS_ENDPOINT_URL and proxies")
	case got != "" && got != encode(want):
		return fmt.Errorf("the server stored bytes with the checksum %s, want %s", got, encode(want))
	}
	return nil
}

// Remove deletes an object. One that does not exist is no error.
func (c *Client) Remove(ctx context.Context, bucket, key string) error {
	err := explain(ctx, "remove", bucket, key, c.core.RemoveObject(ctx, bucket, key, minio.RemoveObjectOptions{}))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// PartBytes is the size of the parts of an upload. Smaller files are one request.
const PartBytes = 16 << 20

// Streams is the number of parts of a file in flight.
const Streams = 4

// Upload writes size bytes of r as an object, in parts and in parallel, and returns the CRC32C of each
// PartBytes. gate is called before every request; its error ends the upload.
func (c *Client) Upload(ctx context.Context, bucket, key string, r io.ReaderAt, size int64, gate func() error) (sums []uint32, err error) {
	if size <= PartBytes {
		b := make([]byte, size)
		if _, err := r.ReadAt(b, 0); err != nil && err != io.EOF {
			return nil, err
		}
		if err := gate(); err != nil {
			return nil, err
		}
		return []uint32{crc32.Checksum(b, castagnoli)}, c.Write(ctx, bucket, key, b)
	}
	id, err := c.core.NewMultipartUpload(ctx, bucket, key, minio.PutObjectOptions{UserMetadata: map[string]string{"X-Amz-Checksum-Algorithm": "CRC32C"}})
	if err != nil {
		return nil, explain(ctx, "write", bucket, key, err)
	}
	parts, sums, err := c.parts(ctx, bucket, key, id, r, size, gate)
	if err == nil {
		_, err = c.core.CompleteMultipartUpload(ctx, bucket, key, id, parts, minio.PutObjectOptions{})
	}
	if err != nil {
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer stop()
		_ = c.core.AbortMultipartUpload(late, bucket, key, id) // err came first; stores delete old parts by rules of the bucket
		return nil, explain(ctx, "write", bucket, key, err)
	}
	return sums, nil
}

// partsOf returns the number of parts of so many bytes.
func partsOf(size int64) int { return int((size + PartBytes - 1) / PartBytes) }

// parts sends the parts of an upload.
func (c *Client) parts(ctx context.Context, bucket, key, id string, r io.ReaderAt, size int64, gate func() error) ([]minio.CompletePart, []uint32, error) {
	n := partsOf(size)
	parts, sums := make([]minio.CompletePart, n), make([]uint32, n)
	buffers := sync.Pool{New: func() any { return new([PartBytes]byte) }}
	return parts, sums, parallel.For(ctx, n, Streams, func(ctx context.Context, i int) error {
		buf := buffers.Get().(*[PartBytes]byte)
		defer buffers.Put(buf)
		b := buf[:min(PartBytes, size-int64(i)*PartBytes)]
		if _, err := r.ReadAt(b, int64(i)*PartBytes); err != nil && err != io.EOF {
			return err
		}
		sums[i] = crc32.Checksum(b, castagnoli)
		var err error
		parts[i], err = c.part(ctx, bucket, key, id, i, b, sums[i], gate)
		return err
	})
}

// part sends one part, repeatedly if the connection breaks.
func (c *Client) part(ctx context.Context, bucket, key, id string, i int, b []byte, sum uint32, gate func() error) (minio.CompletePart, error) {
	if err := gate(); err != nil {
		return minio.CompletePart{}, err
	}
	p, err := c.core.PutObjectPart(ctx, bucket, key, id, i+1, &body{r: bytes.NewReader(b)}, int64(len(b)),
		minio.PutObjectPartOptions{DisableContentSha256: true, CustomHeader: http.Header{header: {encode(sum)}}})
	if err == nil {
		err = stored(p.ETag, p.ChecksumCRC32C, sum)
	}
	if err != nil {
		return minio.CompletePart{}, err
	}
	return minio.CompletePart{PartNumber: i + 1, ETag: p.ETag, ChecksumCRC32C: p.ChecksumCRC32C}, nil
}
