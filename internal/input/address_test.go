package input

import "testing"

func TestCheckPath(t *testing.T) {
	for _, name := range []string{"s3://b/k", "s3:/b", "S3://b/k", " gs://b", "gs://b/k", "file:///a", "node1:/a", "me@node1:/a", "{s3,gs}://b", "10.0.0.1:/a"} {
		if err := CheckPath(name); err == nil || !IsInput(err) {
			t.Errorf("%q: %v", name, err)
		}
		if err := CheckPath("./" + name); err != nil {
			t.Error(err)
		}
		if err := CheckPath(name, "s3://"); (err == nil) != (name == "s3://b/k") {
			t.Errorf("%q with s3://: %v", name, err)
		}
	}
	for _, name := range []string{"", "a", "/", "a/b:/c", "/a:/b", "a:b/c", "12:30", "hf:x", "latest"} {
		if err := CheckPath(name); err != nil {
			t.Error(err)
		}
	}
}
