package input

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// CheckPath refuses a path that is an address, anything like name:/ at its beginning: created as a folder
// it would hold what its owner looks for elsewhere. Addresses that begin with one of the schemes, as in
// "s3://", are accepted.
func CheckPath(name string, schemes ...string) error {
	first, _, more := strings.Cut(filepath.ToSlash(name), "/")
	accepted := slices.ContainsFunc(schemes, func(s string) bool { return strings.HasPrefix(name, s) })
	if accepted || !more || !strings.HasSuffix(strings.TrimSpace(first), ":") || filepath.VolumeName(name) != "" {
		return nil
	}
	want := strings.Join(append([]string{"a path"}, schemes...), " or ")
	return BadInput(fmt.Errorf("%.250q is an address that cannot be used here; want %s, or ./ before a folder's name that looks like one", name, want))
}
