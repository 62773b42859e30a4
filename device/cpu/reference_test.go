//go:build reference && linux && amd64

package cpu

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"zeroth/device"
)

// Libraries against which this package is measured, if installed (Debian: libopenblas0-pthread,
// libdnnl2): nothing is linked, and only this file knows of them.
//
//	OPENBLAS_CORETYPE=SkylakeX go test -tags reference ./device/cpu -run Reference -bench Reference -benchtime 1x -timeout 1h
//
// OpenBLAS 0.3.21 treats newer processors as Haswell without this setting.

func library(t testing.TB, name string) uintptr {
	lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		t.Skipf("%v", err)
	}
	return lib
}

// referee computes the same as q.MatMul without bias and addition.
type referee struct {
	name string
	f32  func(workers int, p *product) func()
	bf16 func(workers int, p *product) func()
}

const rowMajor, noTrans, trans = 101, 111, 112

func openBLAS(t testing.TB) referee {
	lib := library(t, "libopenblas.so.0")
	var threads func(int)
	var sgemm func(order, ta, tb, m, n, k int32, alpha float32, a unsafe.Pointer, lda int32, b unsafe.Pointer, ldb int32, beta float32, c unsafe.Pointer, ldc int32)
	purego.RegisterLibFunc(&threads, lib, "openblas_set_num_threads")
	purego.RegisterLibFunc(&sgemm, lib, "cblas_sgemm")
	form := map[bool]int32{false: noTrans, true: trans}
	return referee{name: "OpenBLAS", f32: func(workers int, p *product) func() {
		threads(workers)
		return func() {
			sgemm(rowMajor, form[p.a.Trans], form[p.b.Trans], int32(p.m), int32(p.n), int32(p.k), 1, p.a.Buf.Ptr, int32(p.a.Ld),
				p.b.Buf.Ptr, int32(p.b.Ld), 0, p.c.Buf.Ptr, int32(p.c.Ld))
		}
	}}
}

// oneDNN returns a referee that uses version 2 of its C interface with plain layouts.
func oneDNN(t testing.TB) referee {
	lib := library(t, "libdnnl.so.2")
	var threads func(int32)
	purego.RegisterLibFunc(&threads, library(t, "libgomp.so.1"), "omp_set_num_threads")
	call := func(name string, args ...uintptr) {
		sym, err := purego.Dlsym(lib, name)
		if err != nil {
			t.Fatal(err)
		}
		if status, _, _ := purego.SyscallN(sym, args...); int32(status) != 0 {
			t.Fatalf("%s: status %d", name, int32(status))
		}
	}
	at := func(x any) uintptr {
		switch x := x.(type) {
		case *uintptr:
			return uintptr(unsafe.Pointer(x))
		case *[12]int64:
			return uintptr(unsafe.Pointer(x))
		case *[4096]byte:
			return uintptr(unsafe.Pointer(x))
		case *[6]uintptr:
			return uintptr(unsafe.Pointer(x))
		}
		panic("unknown")
	}
	engine, stream := new(uintptr), new(uintptr)
	call("dnnl_engine_create", at(engine), 1, 0)
	call("dnnl_stream_create", at(stream), *engine, 1)
	types := map[device.DType]uintptr{device.F32: 3, device.BF16: 2}
	prepare := func(workers int, p *product) func() {
		threads(int32(workers))
		memory := func(m device.Mat) (*[4096]byte, *uintptr) {
			rows, cols := m.Dims()
			dims, strides := &[12]int64{int64(rows), int64(cols)}, &[12]int64{int64(m.Ld), 1}
			if m.Trans {
				strides = &[12]int64{1, int64(m.Ld)}
			}
			desc, mem := new([4096]byte), new(uintptr)
			call("dnnl_memory_desc_init_by_strides", at(desc), 2, at(dims), types[m.Buf.Type], at(strides))
			call("dnnl_memory_create", at(mem), at(desc), *engine, uintptr(m.Buf.Ptr))
			return desc, mem
		}
		a, am := memory(p.a)
		b, bm := memory(p.b)
		c, cm := memory(p.c.Mat)
		desc, pd, primitive := new([4096]byte), new(uintptr), new(uintptr)
		call("dnnl_matmul_desc_init", at(desc), at(a), at(b), 0, at(c))
		call("dnnl_primitive_desc_create", at(pd), at(desc), 0, *engine, 0)
		call("dnnl_primitive_create", at(primitive), *pd)
		args := &[6]uintptr{1, *am, 33, *bm, 17, *cm}
		return func() {
			call("dnnl_primitive_execute", *primitive, *stream, 3, at(args))
			call("dnnl_stream_wait", *stream)
			runtime.KeepAlive(p)
		}
	}
	return referee{"oneDNN", prepare, prepare}
}

// TestReference checks that the referees compute the same results.
func TestReference(t *testing.T) {
	for name, r := range map[string]func(testing.TB) referee{"OpenBLAS": openBLAS, "oneDNN": oneDNN} {
		t.Run(name, func(t *testing.T) {
			r := r(t)
			for _, dt := range []device.DType{device.F32, device.BF16} {
				prepare := r.f32
				if dt == device.BF16 {
					prepare = r.bf16
				}
				if prepare == nil {
					continue
				}
				for _, s := range []benchShape{{"NN", 33, 65, 70}, {"NT", 64, 96, 128}, {"TN", 40, 50, 60}} {
					p := s.flat(dt)
					prepare(1, p)()
					theirs := append([]byte(nil), p.c.Buf.Raw()...)
					q := testQueue(t, 1)
					q.MatMul(p.c.Mat, p.a, p.b, device.Buffer{}, false)
					if err := q.Wait(); err != nil {
						t.Fatal(err)
					}
					old := device.Buffer{Ptr: unsafe.Pointer(&theirs[0]), Type: p.c.Buf.Type, N: p.c.Buf.N, Host: true}
					for i := range p.c.Buf.N {
						if d := math.Abs(value(p.c.Buf, i) - value(old, i)); d > 0.03 {
							t.Fatalf("%s %v %v: element %d differs by %g", r.name, dt, s, i, d)
						}
					}
				}
			}
		})
	}
}

// BenchmarkReference compares each shape with the referees.
func BenchmarkReference(b *testing.B) {
	runtime.LockOSThread() // OpenMP creates a thread pool for every calling thread
	defer runtime.UnlockOSThread()
	seconds := 3 * time.Second
	if s := os.Getenv("REFERENCE_SECONDS"); s != "" {
		seconds, _ = time.ParseDuration(s + "s")
	}
	for _, make := range []func(testing.TB) referee{openBLAS, oneDNN} {
		for _, dt := range []device.DType{device.F32, device.BF16} {
			for _, workers := range []int{1, 2} {
				for _, s := range referenceShapes {
					b.Run(fmt.Sprintf("%v/%dw/%s/%dx%dx%d", dt, workers, s.form, s.m, s.n, s.k), func(b *testing.B) {
						r := make(b)
						prepare := r.f32
						if dt == device.BF16 {
							prepare = r.bf16
						}
						if prepare == nil {
							b.Skip("not by " + r.name)
						}
						p := s.flat(dt)
						q := testQueue(b, workers)
						theirs := prepare(workers, p)
						ours := func(reps int) {
							for range reps {
								q.MatMul(p.c.Mat, p.a, p.b, device.Buffer{}, false)
							}
							if err := q.Wait(); err != nil {
								b.Fatal(err)
							}
						}
						others := func(reps int) {
							for range reps {
								theirs()
							}
						}
						b.ResetTimer()
						for range b.N {
							x := inTurns(workers, seconds, 2*float64(s.m)*float64(s.n)*float64(s.k), ours, others)
							x.report(b, r.name)
						}
						b.ReportMetric(0, "ns/op")
					})
				}
			}
		}
	}
}
