package data

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Token files come in three formats, told apart by their first four bytes:
//
//   - llm.c, GPT-2: a header of 256 int32 (20240520, version 1, number of
//     tokens, zeros), then the ids as uint16.
//   - llm.c, Llama 3: the same with 20240801, version 7, and ids as uint32.
//   - nanoGPT: nothing but ids as uint16. No GPT-2 text begins like one of the
//     headers, whose first two bytes would be an id above 55000.
//
// All numbers are little-endian.
const headerBytes = 256 * 4

var llmc = map[uint32]struct {
	version uint32
	width   int
}{
	20240520: {1, 2},
	20240801: {7, 4},
}

// mapTokens maps token files. The caller calls all of release, also on error.
func mapTokens(files []file) (segments []segment, release []func() error, err error) {
	var errs []error
	for _, f := range files {
		data, unmap, err := mapFile(f)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		release = append(release, unmap)
		s, err := parseTokens(f.path, data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.path, err))
		}
		segments = append(segments, s)
	}
	return segments, release, errors.Join(errs...)
}

// parseTokens finds the ids in a token file's bytes.
func parseTokens(name string, b []byte) (segment, error) {
	var magic uint32
	if len(b) >= 4 {
		magic = binary.LittleEndian.Uint32(b)
	}
	format, ok := llmc[magic]
	if !ok {
		if len(b)%2 != 0 {
			return segment{}, fmt.Errorf("%d bytes are no whole number of uint16 ids, and no llm.c header begins the file", len(b))
		}
		return segment{name, b, 2}, nil
	}
	if len(b) < headerBytes {
		return segment{}, fmt.Errorf("an llm.c file of %d bytes ends within its header of %d", len(b), headerBytes)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != format.version {
		return segment{}, fmt.Errorf("llm.c magic number %d with version %d; version %d is known", magic, v, format.version)
	}
	n := int64(int32(binary.LittleEndian.Uint32(b[8:])))
	if want := headerBytes + n*int64(format.width); n < 1 || want != int64(len(b)) {
		return segment{}, fmt.Errorf("its header says %d tokens of %d bytes, %d bytes in all, but the file has %d", n, format.width, want, len(b))
	}
	return segment{name, b[headerBytes:], format.width}, nil
}
