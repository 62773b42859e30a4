package torchfile

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"zeroth/tests/nightly"
)

const plain = "../foreign/testdata/dcp/plain"

func open(path string) (*File, error) {
	left := int64(Slack)
	return Open(path, &left)
}

// TestViews checks that views and element types are read as by PyTorch.
func TestViews(t *testing.T) {
	f, err := open(filepath.Join(plain, "views_and_types.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	whole, err := open(filepath.Join(plain, "pytorch_model.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	all := whole.Object.(*Dict)
	wte := floats(t, all.At("transformer.wte.weight"))
	d := f.Object.(*Dict)
	weird, slice := floats(t, d.At("weird")), floats(t, d.At("slice"))
	for i := range 14 {
		for j := range 53 {
			if weird[i*53+j] != wte[j*14+i] {
				t.Fatalf("element (%d, %d) of the transposed view is %v, want %v", i, j, weird[i*53+j], wte[j*14+i])
			}
		}
	}
	for i := range 6 {
		for j := range 4 {
			if slice[i*4+j] != wte[(3+i)*14+1+j] {
				t.Fatalf("element (%d, %d) of the slice is %v", i, j, slice[i*4+j])
			}
		}
	}
	for name, want := range map[string]string{"bool": "BOOL 0100", "i64": "I64 00000000000000000100000000000000", "f64": "F64 000000000000f03f", "fp8": "F8_E4M3 38383838", "param": "F32 0000803f"} {
		x := d.At(name).(*Tensor)
		b, err := x.Bytes(1 << 10)
		kind, hex, _ := strings.Cut(want, " ")
		if err != nil || string(x.DType) != kind || !strings.HasPrefix(hexOf(b), hex) {
			t.Errorf("%s is %s %x (%v), want %s", name, x.DType, b, err, want)
		}
	}
	head, body := all.At("lm_head.weight").(*Tensor), all.At("transformer.wte.weight").(*Tensor)
	if head.Storage != body.Storage {
		t.Error("tied tensors have two storages")
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, x := range b {
		s.WriteByte(digits[x>>4])
		s.WriteByte(digits[x&15])
	}
	return s.String()
}

func floats(t *testing.T, v any) []float32 {
	t.Helper()
	b, err := v.(*Tensor).Bytes(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// TestRefused checks that files that ask for unsupported operations are refused by name, without
// allocating memory.
func TestRefused(t *testing.T) {
	nightly.Long(t)
	if _, err := open("testdata/trainer_like.pt"); err == nil || !strings.Contains(err.Error(), `"argparse.Namespace"`) || !strings.Contains(err.Error(), "trainer_like.pt") {
		t.Errorf("a class that is not on the list: %v", err)
	}
	for name, pickle := range map[string]string{
		"system":         "\x80\x02cposix\nsystem\n(X\x02\x00\x00\x00lstR.",
		"4 GiB":          "\x80\x04\x8e\xff\xff\xff\xff\x00\x00\x00\x00.",
		"long string":    "\x80\x02X\xff\xff\xff\x7f.",
		"eval":           "\x80\x02c__builtin__\neval\n.",
		"getattr":        "\x80\x02c__builtin__\ngetattr\nctorch\nSize\nX\x01\x00\x00\x00x\x86R.",
		"stack":          "\x80\x02R.",
		"memo":           "\x80\x02h\x05.",
		"no end":         "\x80\x02]",
		"protocol":       "\x80\x05N.",
		"tuple of marks": "\x80\x02(((((.",
		"lists":          "\x80\x02" + strings.Repeat("]", 1<<20) + ".",
		"nested":         "\x80\x02)" + strings.Repeat("\x85", 1<<20) + ".",
		"paths":          "\x80\x02cpathlib\nPosixPath\nq\x00X\x00\x07\x00\x00" + strings.Repeat("x", 1792) + "q\x02h\x02\x86q\x01](" + strings.Repeat("h\x00h\x01R", 1<<18) + "e.",
		"memos":          "\x80\x04N" + strings.Repeat("\x94", 1<<20) + ".",
	} {
		var a, b runtime.MemStats
		runtime.ReadMemStats(&a)
		_, _, _, err := decode([]byte(pickle), Slack, nil)
		runtime.ReadMemStats(&b)
		said.Same(t, name, err)
		if took := b.TotalAlloc - a.TotalAlloc; took > 64<<20 {
			t.Errorf("%s: %d bytes", name, took)
		}
	}
}

// An object may contain itself, as a mesh that was flattened does; a value may be used twice in
// another, but must not change after its first use.
func TestRepeated(t *testing.T) {
	const mesh = "\x80\x02](ctorch.distributed.device_mesh\nDeviceMesh\n)\x81q\x01}(X\x04\x00\x00\x00selfh\x01X\x01\x00\x00\x00xK\x07ubh\x01e."
	v, _, _, err := decode([]byte(mesh), Slack, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range Items(v) {
		if o, _ := v.(*Object); o.Field("x") != int64(7) || !o.Field("self").(*Object).Is("DeviceMesh") {
			t.Errorf("object %d is %v", i, v)
		}
	}
	if v, _, _, err = decode([]byte("\x80\x02](]q\x01K\x07ah\x01e."), Slack, nil); err != nil || len(Items(Items(v)[1])) != 1 {
		t.Errorf("[a, a] is %v: %v", v, err)
	}
	for _, changed := range []string{"]q\x01h\x01a.", "](]q\x01h\x01K\x07ae.", "}q\x01(K\x01h\x01u."} {
		if _, _, _, err := decode([]byte("\x80\x02"+changed), Slack, nil); err == nil || !strings.Contains(err.Error(), "changes after its first use") {
			t.Errorf("%q: %v", changed, err)
		}
	}
}

// TestDirectory checks that an archive with a huge directory and little else is refused before
// memory is allocated.
func TestDirectory(t *testing.T) {
	nightly.Long(t)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := range 200000 {
		if _, err := z.CreateHeader(&zip.FileHeader{Name: strconv.Itoa(i), Method: zip.Store}); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSmall("x.pt", bytes.NewReader(b.Bytes()), int64(b.Len())); !errors.Is(err, errBudget) {
		t.Errorf("%d bytes: %v", b.Len(), err)
	}
}

// TestKind checks that Kind describes values.
func TestKind(t *testing.T) {
	for want, v := range map[string]any{"None": nil, "3": int64(3), "0.5": 0.5, "true": true, `"x"`: "x", "a tuple": Tuple{}, "a list": &List{}, "a dictionary": &Dict{}} {
		if got := Kind(v); got != want {
			t.Errorf("%#v is %s, want %s", v, got, want)
		}
	}
}

// TestWritten checks that the reader reads the output of the writer, with any alignment.
func TestWritten(t *testing.T) {
	var b bytes.Buffer
	specs := []Spec{{Name: "a", DType: "F32", Shape: []int{2, 3}}, {Name: "ünï", DType: "BF16", Shape: []int{5}},
		{Name: "none", DType: "F32", Shape: []int{0, 4}}, {Name: "scalar", DType: "I64"}}
	data := map[string][]byte{"a": []byte(strings.Repeat("abcd", 6)), "ünï": []byte("0123456789"), "scalar": {7, 0, 0, 0, 0, 0, 0, 0}}
	err := Write(&b, "model", specs, func(s Spec, w func([]byte) error) error {
		x := data[s.Name]
		if err := w(x[:len(x)/2]); err != nil {
			return err
		}
		return w(x[len(x)/2:])
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.pt")
	if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := f.Object.(*Dict)
	for _, s := range specs {
		x, _ := d.At(s.Name).(*Tensor)
		if x == nil || x.DType != s.DType || len(x.Shape) != len(s.Shape) {
			t.Fatalf("%s is %v", s.Name, x)
		}
		if x.Storage.at%64 != 0 {
			t.Errorf("%s begins at %d", s.Name, x.Storage.at)
		}
		if got, err := x.Bytes(100); err != nil || string(got) != string(data[s.Name]) {
			t.Errorf("%s has %q (%v)", s.Name, got, err)
		}
	}
}
