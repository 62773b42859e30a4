package shadow

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/dry"
)

// still is a queue of which only copies do something. The second copy of the memory at an address is of
// other bytes, as if an operation had written them between the two.
type still struct {
	dry.Queue
	at    unsafe.Pointer
	times int
	err   error
}

func (s *still) Copy(dst, src device.Buffer) {
	copy(dst.Raw(), src.Raw())
	off := int(uintptr(s.at) - uintptr(src.Ptr))
	if s.at == nil || off < 0 || off >= len(dst.Raw()) {
		return
	}
	if s.times++; s.times == 2 {
		copy(dst.Raw()[off:], bytes.Repeat([]byte{0x7f}, 8)) // a large number of any type
	}
}

func (s *still) Wait() error               { return s.err }
func (s *still) Do(f func() error)         { s.err = f() }
func (s *still) Now(string, func() error)  {}
func (s *still) AfterPeer(device.Event)    {}
func (s *still) Name() string              { return "still" }
func (s *still) Trace(f func(device.Span)) {}
func (s *still) Close()                    {}

// TestEveryOperandIsCompared checks that an error in any operand of any operation is found, whether the
// operation writes it or not.
func TestEveryOperandIsCompared(t *testing.T) {
	host := cpu.NewHost(1)
	defer host.Close()
	exact := map[string]int{"Sum": 0, "SumSquares": 0, "Normalize": 1} // operands that are sums
	kernels, operands := reflect.TypeFor[Kernels](), 0
	for m := range kernels.NumMethod() {
		method := kernels.Method(m)
		for i := 0; method.Name != "Copy"; i++ {
			inner := &still{}
			q := New(inner, &still{}, host)
			var memory []device.Buffer
			buffer := func(is bool) device.Buffer {
				dtype, n := device.F32, 16
				if is {
					dtype, n = device.I64, device.ExactLen
				}
				b, err := host.Alloc(dtype, n, device.Params)
				if err != nil {
					t.Fatal(err)
				}
				clear(b.Raw())
				memory = append(memory, b)
				return b
			}
			var args []reflect.Value
			for a := range method.Type.NumIn() {
				at, sum := reflect.New(method.Type.In(a)).Elem(), false
				if n, ok := exact[method.Name]; ok {
					sum = n == len(memory)
				}
				switch x := at.Addr().Interface().(type) {
				case *device.Buffer:
					*x = buffer(sum)
				case *device.Mat:
					*x = device.Mat{Buf: buffer(false), Rows: 2, Cols: 8, Ld: 8}
				case *device.MatGroup:
					x.Mat = device.Mat{Buf: buffer(false), Rows: 2, Cols: 8, Ld: 8}
				case *device.Rope:
					x.Start = buffer(false)
				case *device.Attn:
					x.Start = buffer(false)
				case *bool:
					*x = true // a gradient is a result
				}
				args = append(args, at)
			}
			done := i >= len(memory)
			if !done {
				operands++
				inner.at = memory[i].Ptr
				reflect.ValueOf(q).MethodByName(method.Name).Call(args)
				workspace := method.Name == "AttentionGrad" && i == 3
				if workspace != (inner.err == nil) || inner.err != nil && !strings.HasPrefix(inner.err.Error(), "shadow: ") {
					t.Errorf("%s, operand %d: %v", method.Name, i, inner.err)
				}
			}
			q.Close()
			for _, b := range memory {
				host.Free(b)
			}
			if done {
				break
			}
		}
	}
	if operands < 100 {
		t.Errorf("only %d operands", operands)
	}
}
