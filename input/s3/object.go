package s3

import (
	"bytes"
	"cmp"
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

// List returns the objects with a prefix, sorted by key, at most limit of them: more are an error.
func (c *Client) List(ctx context.Context, bucket, prefix string, limit int) (out []Object, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop() // ends the listing's goroutine
	for i := range c.core.Client.ListObjectsIter(ctx, bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if i.Err != nil {
			return nil, explain("list", bucket, prefix, i.Err)
		}
		if len(out) == limit {
			return nil, fmt.Errorf("%s%s/%s: more than %d objects", scheme, bucket, prefix, limit)
		}
		o, err := object(bucket, i)
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b Object) int { return strings.Compare(a.Key, b.Key) })
	return out, ctx.Err()
}

// Any reports whether there is an object with a prefix.
func (c *Client) Any(bucket, prefix string) (bool, error) {
	r, err := c.core.ListObjectsV2(bucket, prefix, "", "", "", 1)
	return len(r.Contents) > 0, explain("list", bucket, prefix, err)
}

// Stat describes an object.
func (c *Client) Stat(ctx context.Context, bucket, key string) (Object, error) {
	i, err := c.core.StatObject(ctx, bucket, key, minio.StatObjectOptions{})
	if err != nil {
		return Object{}, explain("stat", bucket, key, err)
	}
	return object(bucket, i)
}

// attempts is the number of times a transfer that breaks off is repeated.
const attempts = 6

// pause returns the time to wait after attempt i.
func pause(i int) time.Duration { return min(100*time.Millisecond<<i, 5*time.Second) }

// sleep waits, or returns the cause of the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// errReplaced reports that an object was replaced by another version.
var errReplaced = errors.New("the object was replaced while it was read; start again")

// ReadAt fills b with an object's bytes from off. If etag is not empty, an object that has
// changed is an error. If the object ends before, the error is io.EOF.
func (c *Client) ReadAt(ctx context.Context, bucket, key, etag string, b []byte, off int64) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	for try := range attempts {
		var more int
		more, err = c.read(ctx, bucket, key, etag, b[n:], off+int64(n))
		if n += more; n == len(b) || err == io.EOF || errors.Is(err, fs.ErrNotExist) || errors.Is(err, errReplaced) || errors.Is(err, fs.ErrPermission) || ctx.Err() != nil {
			break
		}
		if stopped := sleep(ctx, pause(try)); stopped != nil {
			return n, stopped
		}
	}
	if n == len(b) {
		return n, nil
	}
	return n, err
}

func (c *Client) read(ctx context.Context, bucket, key, etag string, b []byte, off int64) (int, error) {
	o := minio.GetObjectOptions{}
	if err := o.SetRange(off, off+int64(len(b))-1); err != nil {
		return 0, err
	}
	if etag != "" {
		if err := o.SetMatchETag(etag); err != nil {
			return 0, err
		}
	}
	in, have, _, err := c.core.GetObject(ctx, bucket, key, o)
	if r := minio.ToErrorResponse(err); err != nil && (r.Code == "InvalidRange" || r.StatusCode == http.StatusRequestedRangeNotSatisfiable) {
		return 0, io.EOF
	}
	if err = explain("read", bucket, key, err); errors.Is(err, fs.ErrExist) {
		return 0, &fs.PathError{Op: "read", Path: scheme + bucket + "/" + key, Err: errReplaced}
	}
	if err != nil {
		return 0, err
	}
	defer in.Close()
	if etag != "" && have.ETag != etag { // some servers ignore the condition
		return 0, &fs.PathError{Op: "read", Path: scheme + bucket + "/" + key, Err: errReplaced}
	}
	n, err := io.ReadFull(in, b)
	if err == io.ErrUnexpectedEOF { // the end of the object, or of the connection
		err = c.ended(ctx, bucket, key, off+int64(n))
	}
	return n, err
}

// ended returns io.EOF if an object ends at off.
func (c *Client) ended(ctx context.Context, bucket, key string, off int64) error {
	o, err := c.Stat(ctx, bucket, key)
	if err == nil && o.Size > off {
		return io.ErrUnexpectedEOF
	}
	return cmp.Or(err, io.EOF)
}

// ReadFile returns an object of at most limit bytes. If it is replaced meanwhile, it is read again.
func (c *Client) ReadFile(ctx context.Context, bucket, key string, limit int64) (b []byte, err error) {
	for range attempts {
		var o Object
		if o, err = c.Stat(ctx, bucket, key); err != nil {
			return nil, err
		}
		if o.Size > limit {
			return nil, fmt.Errorf("%s%s/%s: %d bytes, at most %d expected", scheme, bucket, key, o.Size, limit)
		}
		b = make([]byte, o.Size)
		if _, err = c.ReadAt(ctx, bucket, key, o.ETag, b, 0); !errors.Is(err, errReplaced) {
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
	_, err := c.core.PutObject(ctx, bucket, key, &body{r: bytes.NewReader(b)}, int64(len(b)), "", "", o)
	return explain("write", bucket, key, err)
}

// Remove deletes an object. One that does not exist is no error.
func (c *Client) Remove(ctx context.Context, bucket, key string) error {
	err := explain("remove", bucket, key, c.core.RemoveObject(ctx, bucket, key, minio.RemoveObjectOptions{}))
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
		return nil, explain("write", bucket, key, err)
	}
	parts, sums, err := c.parts(ctx, bucket, key, id, r, size, gate)
	if err == nil {
		_, err = c.core.CompleteMultipartUpload(ctx, bucket, key, id, parts, minio.PutObjectOptions{})
	}
	if err != nil {
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer stop()
		_ = c.core.AbortMultipartUpload(late, bucket, key, id) // err came first; stores delete old parts by rules of the bucket
		return nil, explain("write", bucket, key, err)
	}
	return sums, nil
}

// parts sends the parts of an upload.
func (c *Client) parts(ctx context.Context, bucket, key, id string, r io.ReaderAt, size int64, gate func() error) ([]minio.CompletePart, []uint32, error) {
	n := int((size + PartBytes - 1) / PartBytes)
	parts, sums, errs := make([]minio.CompletePart, n), make([]uint32, n), make([]error, n)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(n, Streams) {
		wg.Go(func() {
			buf := make([]byte, PartBytes)
			for i := range next {
				b := buf[:min(PartBytes, size-int64(i)*PartBytes)]
				if _, errs[i] = r.ReadAt(b, int64(i)*PartBytes); errs[i] == nil || errs[i] == io.EOF {
					sums[i] = crc32.Checksum(b, castagnoli)
					parts[i], errs[i] = c.part(ctx, bucket, key, id, i, b, sums[i], gate)
				}
				if errs[i] != nil {
					stop(errs[i])
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return parts, sums, cmp.Or(context.Cause(ctx), cmp.Or(errs...))
}

// part sends one part, repeatedly if the connection breaks.
func (c *Client) part(ctx context.Context, bucket, key, id string, i int, b []byte, sum uint32, gate func() error) (minio.CompletePart, error) {
	if err := gate(); err != nil {
		return minio.CompletePart{}, err
	}
	p, err := c.core.PutObjectPart(ctx, bucket, key, id, i+1, &body{r: bytes.NewReader(b)}, int64(len(b)),
		minio.PutObjectPartOptions{DisableContentSha256: true, CustomHeader: http.Header{header: {encode(sum)}}})
	if err != nil {
		return minio.CompletePart{}, err
	}
	return minio.CompletePart{PartNumber: i + 1, ETag: p.ETag, ChecksumCRC32C: p.ChecksumCRC32C}, nil
}
