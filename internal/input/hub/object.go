package hub

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"zeroth/internal/input"
	"zeroth/internal/input/s3"
)

// objectsFolder returns the folder of local copies of a model in object storage.
func objectsFolder(name string) string {
	bucket, key, err := s3.Split(name)
	c, noClient := s3.Connect()
	if err = cmp.Or(err, noClient); err != nil {
		return name // Fetch reports it
	}
	folder, err := c.Local(bucket, key)
	if err != nil {
		return name
	}
	return folder
}

// fetchObjects downloads the files of a model in object storage whose local copies are missing or of
// another version.
func fetchObjects(ctx context.Context, name string, files Files, note func(string)) error {
	bucket, key, err := s3.Split(name)
	if err != nil {
		return err
	}
	c, err := s3.Connect()
	if err != nil {
		return err
	}
	prefix := strings.TrimSuffix(key, "/") + "/"
	if key == "" {
		prefix = ""
	}
	found, err := c.List(ctx, bucket, prefix, mostObjects)
	if err != nil {
		return badObjects(err)
	}
	f, t := &fetcher{note: note}, tree{1, map[string]file{}}
	objects := map[string]s3.Object{}
	for _, o := range found {
		at := strings.TrimPrefix(o.Key, prefix)
		t.Files[at], objects[at] = file{Size: o.Size}, o
	}
	if t.first("config.json", "adapter_config.json") == "" {
		return input.BadInput(fmt.Errorf("%s has no config.json; want the folder of a model", name))
	}
	f.bucket, f.objects, f.store = bucket, objects, c
	if err := f.copies(ctx, name, t.small(files), maxSmall); err != nil || files < Weights {
		return err
	}
	if t.weights() == "" {
		return input.BadInput(fmt.Errorf("%s has no %s", name, single))
	}
	weights, err := t.large(model{repo: name}, objectsFolder(name))
	if err != nil {
		return err
	}
	return f.copies(ctx, name, weights, maxFile)
}

// mostObjects is the limit of the number of files of a model.
const mostObjects = 100_000

// copies downloads files of a model in object storage.
func (f *fetcher) copies(ctx context.Context, name string, names []string, limit int64) error {
	total := int64(0)
	var all []s3.Object
	for _, n := range names {
		if size := f.objects[n].Size; size > limit {
			return input.BadInput(fmt.Errorf("%s: %s has %d bytes; the limit for such a file is %d", name, n, size, limit))
		}
		total += f.objects[n].Size
		all = append(all, f.objects[n])
	}
	if err := f.store.Room(map[string][]s3.Object{f.bucket: all}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	p := &progress{total: total, begin: time.Now(), note: func(s string) { f.note(name + ": " + s) }}
	for _, n := range names {
		if _, err := f.store.Fetch(ctx, f.bucket, f.objects[n], p.add); err != nil {
			return badObjects(err)
		}
	}
	return nil
}

// badObjects marks the errors of a store that the user can correct.
func badObjects(err error) error {
	if s3.Lasting(err) {
		return input.BadInput(err)
	}
	return err
}
