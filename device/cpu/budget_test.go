package cpu

import (
	"testing"
	"unsafe"

	"zeroth/device"
)

// TestBudget checks that an allocation above the budget fails with an error that lists the usage;
// freed memory can be allocated again, and a failure allocates nothing.
func TestBudget(t *testing.T) {
	d := NewHost(1)
	defer d.Close()
	d.Budget(1 << 20)
	var held []device.Buffer
	alloc := func(n int, use device.Use) error {
		b, err := d.Alloc(device.F32, n, use)
		if err == nil {
			held = append(held, b)
		}
		return err
	}
	if err := alloc(1<<17, device.Params); err != nil { // half of it
		t.Fatal(err)
	}
	err := alloc(1<<17+1, device.States)
	if want := "1 MiB budget: 512 KiB of optimizer do not fit in addition to 512 KiB"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if err := alloc(1<<17, device.Master); err != nil {
		t.Errorf("all of the budget: %v", err)
	}
	if err := alloc(1, device.Stats); err == nil {
		t.Error("an element over the budget was given")
	}
	d.Free(held[0])
	if err := alloc(1<<17, device.Grads); err != nil {
		t.Errorf("what was freed: %v", err)
	}
	if u := d.Usage(); u.Live.Total() != 1<<20 || u.Peak.Total() != 1<<20 || u.Live[device.States] != 0 {
		t.Errorf("usage %+v", u)
	}
	for _, b := range held[1:] {
		d.Free(b)
	}
	if got := d.Usage().Live.Total(); got != 0 {
		t.Errorf("%d bytes live after all is freed", got)
	}
}

// TestAllocIsAlignedToPages checks the alignment for direct reads from disks.
func TestAllocIsAlignedToPages(t *testing.T) {
	d := NewHost(1)
	defer d.Close()
	for n := 1; n < 1<<16; n *= 3 {
		b, err := d.Alloc(device.BF16, n, device.Staging)
		if err != nil {
			t.Fatal(err)
		}
		if at := uintptr(unsafe.Pointer(b.Ptr)); at%4096 != 0 {
			t.Errorf("%d elements at %#x", n, at)
		}
		d.Free(b)
	}
}

func TestSizesInWords(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 40 << 20: "40 MiB", 1<<30 + 1: "1 GiB", 5<<30 + 1<<29: "5.5 GiB", 1<<20 - 1: "1024 KiB"} {
		if got := size(n); got != want {
			t.Errorf("%d bytes are %s, want %s", n, got, want)
		}
	}
}
