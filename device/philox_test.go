package device

import "testing"

// TestPhiloxKnownAnswers compares with the known answers of the Random123 distribution
// (kat_vectors).
func TestPhiloxKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{
			[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, [2]uint32{0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
	} {
		if got := Philox(c.ctr, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.ctr, c.key, got, c.want)
		}
	}
}
