package checkpoint

import (
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// crcs is a list of CRC32C checksums. In JSON it is one string with 8 hexadecimal digits each.
type crcs []uint32

// MarshalText implements encoding.TextMarshaler.
func (c crcs) MarshalText() ([]byte, error) {
	b := make([]byte, 0, 8*len(c))
	for _, x := range c {
		b = append(b, hex32(x)...)
	}
	return b, nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *crcs) UnmarshalText(b []byte) error {
	if len(b)%8 != 0 {
		return fmt.Errorf("%d digits, not a multiple of 8", len(b))
	}
	*c = make(crcs, 0, len(b)/8)
	for digits := range slices.Chunk(b, 8) {
		x, err := strconv.ParseUint(string(digits), 16, 32)
		if err != nil {
			return fmt.Errorf("invalid checksum %q", digits)
		}
		*c = append(*c, uint32(x))
	}
	return nil
}

func hex32(x uint32) string { return fmt.Sprintf("%08x", x) }
