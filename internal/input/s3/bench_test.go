package s3_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"zeroth/internal/input/s3"
	"zeroth/internal/input/s3/s3test"
)

// BenchmarkUpload compares uploads of 256 MiB with those of minio-go's own PutObject, with as many parts of the
// same size in flight, in turns. It reports the medians and their ratio.
func BenchmarkUpload(b *testing.B) {
	server := s3test.Serve(b)
	c, err := s3.Connect()
	if err != nil {
		b.Fatal(err)
	}
	theirs, err := minio.New(strings.TrimPrefix(server.URL, "http://"), &minio.Options{Creds: credentials.NewStaticV4("tester", "very-secret", ""), Region: "us-east-1"})
	if err != nil {
		b.Fatal(err)
	}
	data := bytes.Repeat([]byte("weights."), 32<<20)
	upload := func() error {
		_, err := c.Upload(b.Context(), s3test.Bucket, "bench/ours", bytes.NewReader(data), int64(len(data)), always)
		return err
	}
	theirUpload := func() error {
		_, err := theirs.PutObject(b.Context(), s3test.Bucket, "bench/theirs", bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{PartSize: s3.PartBytes, NumThreads: s3.Streams, DisableContentSha256: true})
		return err
	}
	var seconds [2][]float64
	for b.Loop() {
		for i, f := range []func() error{upload, theirUpload} {
			begin := time.Now()
			if err := f(); err != nil {
				b.Fatal(err)
			}
			seconds[i] = append(seconds[i], time.Since(begin).Seconds())
		}
	}
	for i := range seconds {
		slices.Sort(seconds[i])
	}
	ours, other := seconds[0][len(seconds[0])/2], seconds[1][len(seconds[1])/2]
	b.ReportMetric(float64(len(data))/ours/1e6, "ours-MB/s")
	b.ReportMetric(float64(len(data))/other/1e6, "minio-go-MB/s")
	b.ReportMetric(other/ours, "ours/minio-go")
}
