package s3_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"zeroth/input/s3"
	"zeroth/input/s3/s3test"
)

// BenchmarkUpload compares uploads of 256 MiB with those of minio-go's own PutObject, with as many parts of the
// same size in flight. ZEROTH_S3 is the address of another server than that in this process, with the bucket
// runs and the keys of package s3test.
func BenchmarkUpload(b *testing.B) {
	server := s3test.Serve(b)
	address := server.URL
	if other := os.Getenv("ZEROTH_S3"); other != "" {
		address = other
		b.Setenv("AWS_ENDPOINT_URL_S3", other)
	}
	c, err := s3.Connect()
	if err != nil {
		b.Fatal(err)
	}
	theirs, err := minio.New(strings.TrimPrefix(address, "http://"), &minio.Options{Creds: credentials.NewStaticV4("tester", "very-secret", ""), Region: "us-east-1"})
	if err != nil {
		b.Fatal(err)
	}
	data := bytes.Repeat([]byte("weights."), 32<<20)
	for name, upload := range map[string]func() error{
		"zeroth": func() error {
			_, err := c.Upload(b.Context(), s3test.Bucket, "bench/ours", bytes.NewReader(data), int64(len(data)), always)
			return err
		},
		"minio-go": func() error {
			_, err := theirs.PutObject(b.Context(), s3test.Bucket, "bench/theirs", bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{PartSize: s3.PartBytes, NumThreads: s3.Streams, DisableContentSha256: true})
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if err := upload(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
