package checkpoint

import (
	"fmt"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// crcs is a list of CRC32C checksums. In JSON it is one string with 8 hexadecimal digits each.
type crcs []uint32

func (c crcs) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 8*len(c)+2), '"')
	for _, x := range c {
		b = append(b, hex32(x)...)
	}
	return append(b, '"'), nil
}

func hex32(x uint32) string { return fmt.Sprintf("%08x", x) }
