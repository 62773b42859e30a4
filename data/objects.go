package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"zeroth/internal/input/s3"
)

// object is an input file in object storage, which is read from a local copy.
type object struct {
	s3.Object
	bucket string
}

func (o *object) name() string { return "s3://" + o.bucket + "/" + o.Key }

// mostObjects is the limit of the number of objects that a search lists.
const mostObjects = 1_000_000

// matchObjects returns the objects that match a pattern with a bucket. Wildcards are as in patterns
// of files; the bucket has none.
func matchObjects(ctx context.Context, pattern string, refuseEmpty bool) (files []file, err error) {
	bucket, key, err := s3.Split(pattern)
	if err != nil {
		return nil, err
	}
	c, err := s3.Connect()
	if err != nil {
		return nil, err
	}
	folder, rest := doublestar.SplitPattern(key)
	prefix := strings.TrimPrefix(folder+"/", "./")
	if literal := strings.IndexAny(rest, `*?[{\`); literal >= 0 {
		rest = rest[:literal]
	}
	all, err := c.List(ctx, bucket, prefix+rest, mostObjects)
	if err != nil {
		return nil, err
	}
	empty := ""
	for _, o := range all {
		switch ok, err := doublestar.Match(key, o.Key); {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", pattern, err)
		case !ok && o.Key != key || strings.HasSuffix(o.Key, "/"):
		case o.Size == 0 && refuseEmpty:
			return nil, fmt.Errorf("s3://%s/%s is empty", bucket, o.Key)
		case o.Size == 0:
			empty = o.Key
		default:
			_, plain, err := s3.Split("s3://" + bucket + "/" + o.Key)
			if err != nil {
				return nil, err
			}
			if plain != o.Key {
				return nil, fmt.Errorf("s3://%s/%s: the local copy would be that of s3://%[1]s/%[3]s; rename the object, or use a pattern that does not match it", bucket, o.Key, plain)
			}
			path, err := c.Local(bucket, o.Key)
			if err != nil {
				return nil, err
			}
			files = append(files, file{path: path, size: o.Size, object: &object{o, bucket}})
		}
	}
	if len(files) == 0 && empty != "" {
		return nil, fmt.Errorf("%s: no text: s3://%s/%s is empty", pattern, bucket, empty)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no object matches %s", pattern)
	}
	return files, nil
}

// fetch makes local copies of the files in object storage, and checks that the key accepts them. It
// uses copies that exist.
func fetch(ctx context.Context, key string, files []file, progress func(done, total int64)) error {
	m := meter{report: progress}
	for _, f := range files {
		if f.object != nil {
			m.total += f.size
		}
	}
	if m.total == 0 {
		return nil
	}
	c, err := s3.Connect()
	if err != nil {
		return err
	}
	objects := map[string][]s3.Object{}
	for _, f := range files {
		if f.object != nil {
			objects[f.object.bucket] = append(objects[f.object.bucket], f.object.Object)
		}
	}
	if err := c.Room(objects); err != nil {
		return &Problem{key, err}
	}
	var errs []error
	for _, f := range files {
		if f.object == nil {
			continue
		}
		_, err := c.Fetch(ctx, f.object.bucket, f.object.Object, m.add)
		if err == nil {
			err = checkKind(key, f.path)
		}
		if err != nil {
			errs = append(errs, &Problem{fmt.Sprintf("%s[%d]", key, f.pattern), err})
		}
		if refused := errors.Is(err, fs.ErrPermission); refused || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}
