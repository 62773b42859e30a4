//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"zeroth/collective/mpi"
	"zeroth/internal/launch"
	"zeroth/internal/world"
	"zeroth/job/bench"
	"zeroth/tests/nightly"
)

// TestDoctorCluster checks that doctor --cluster describes launched processes and the connections
// between them, and reports when there is only one process.
func TestDoctorCluster(t *testing.T) {
	nightly.Long(t)
	t.Chdir(t.TempDir())
	out, _ := zeroth(t, 0, "doctor", "--cluster")
	for _, want := range []string{"launcher none: ", "data     through memory", "network  ", "nothing to measure with one process"} {
		contains(t, out, want)
	}
	for by, want := range map[string]string{"auto": "0 and 1, one host +unix ", "tcp": "0 and 1, one host +tcp "} {
		out, errs := process(t, 0, "launch", "-n", "2", "--", "doctor", "--cluster", "--transport", by)
		for _, want := range []string{"launcher zeroth, found by the variables it sets\n", "process  0 of 2\n", "address  process 0 listens at 127.0.0.1:", "token    from ZEROTH_TOKEN\n", want + `+\d+\.\d µs +\d+\.\d\d GB/s\n`} {
			if n := len(regexp.MustCompile(want).FindAllString(out, -1)); n != 1 {
				t.Errorf("%s: %d times %q in\n%s%s", by, n, want, out, errs)
			}
		}
	}
	_, errs := process(t, 75, "doctor", "--cluster", "--world", "3", "--rank", "1", "--addr", "127.0.0.1:1", "--join", "100ms")
	contains(t, errs, "rank 0 at 127.0.0.1:1")
	process(t, 2, "doctor", "--cluster", "--world", "3", "--rank", "1", "--addr", "127.0.0.1:1", "--join", "0s")
}

func TestDescribeTransport(t *testing.T) {
	built := "over MPI, which launched the processes"
	if !mpi.Built {
		built = "over sockets: Open MPI launched the processes, but this binary was built without MPI (CGO_ENABLED=1 go build -tags mpi ./cmd/zeroth)"
	}
	for _, c := range []struct {
		place     launch.Process
		transport string
		want      string
	}{
		{launch.Process{World: 1}, "auto", "through memory, within one process"},
		{launch.Process{World: 2, By: "Slurm"}, "auto", "over Unix sockets within a host and TCP between hosts; MPI did not launch the processes"},
		{launch.Process{World: 2, By: "Slurm"}, "tcp", "over tcp, set by --transport"},
		{launch.Process{World: 2, By: "Open MPI"}, "auto", built},
	} {
		if got := describeTransport(&joining{member: member{Process: c.place}, transport: c.transport}); got != c.want {
			t.Errorf("%+v, %s: %s\nwant %s", c.place, c.transport, got, c.want)
		}
	}
}

func TestBindingWarning(t *testing.T) {
	for _, c := range []struct {
		by                  string
		may, all, processes int
		want                string
	}{
		{"Open MPI", 1, 8, 2, "Open MPI has bound this process to 1 of 8 processors; its share among the host's 2 processes is 4: use mpirun --bind-to none"},
		{"Slurm", 2, 64, 4, "Slurm has bound this process to 2 of 64 processors; its share among the host's 4 processes is 16: use srun --cpus-per-task or --cpu-bind=none"},
		{"torchrun", 2, 64, 4, "this process may run on 2 of 64 processors; its share among the host's 4 processes is 16"},
		{"Open MPI", 4, 8, 2, ""},
		{"Open MPI", 1, 2, 4, ""},
		{"Open MPI", 1, 0, 2, ""},
	} {
		if got := world.BindingWarning(c.by, c.may, c.all, c.processes); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestDescribeNetwork checks that network interfaces and RDMA devices are read from /sys.
func TestDescribeNetwork(t *testing.T) {
	root := t.TempDir()
	contains(t, describeNetwork(root), "no RDMA devices found")
	for name, text := range map[string]string{"net/eth0/speed": "25000\n", "net/eth1/speed": "1000\n", "net/down/speed": "-1\n", "infiniband/mlx5_0/fw_ver": "1"} {
		file := filepath.Join(root, "sys/class", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := describeNetwork(root), "the fastest interface carries 3.12 GB/s; RDMA devices: mlx5_0"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestAdvice(t *testing.T) {
	unix, near, apart := bench.Link{SameHost: true, By: "unix"}, bench.Link{SameHost: true, By: "tcp"}, bench.Link{By: "tcp", Rate: 1e9}
	for _, c := range []struct {
		links       []bench.Link
		fast, speed float64
		want        string
	}{
		{[]bench.Link{unix}, 1, 3e9, "no faster option found"},
		{[]bench.Link{{By: "mpi", Rate: 1e8}}, 1, 3e9, "no faster option found"},
		{[]bench.Link{near}, 0, 0, "Unix sockets would be faster"},
		{[]bench.Link{unix, apart}, 1, 3e9, "RDMA devices that MPI would use"},
		{[]bench.Link{unix, apart}, 0, 3e9, "TCP reaches 1.00 of the 3.00 GB/s"},
		{[]bench.Link{unix, apart}, 0, 1.25e9, "no faster option found than TCP between hosts"},
	} {
		got := advice(c.links, [][]float64{{2, 2, 0, 0}, {2, 2, c.fast, c.speed}})
		if len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
}

// TestBenchAcross checks that collectives between processes are compared with a plain stream, and
// that only one process prints the report.
func TestBenchAcross(t *testing.T) {
	nightly.Long(t)
	t.Chdir(t.TempDir())
	out, _ := process(t, 0, "launch", "-n", "2", "--", "bench", "collective", "--seconds", "0.001", "--json")
	var r bench.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Lines) != 20 || r.Between != "2 processes on one host, over unix" {
		t.Fatalf("%v: %d lines, %q\n%s", err, len(r.Lines), r.Between, out)
	}
	for i, l := range r.Lines {
		if l.Rate <= 0 || l.Seconds <= 0 || l.Samples < 2 || (i%4 > 0) != (l.LimitName == "stream" && l.Share > 0) {
			t.Errorf("%+v", l)
		}
	}
}

// TestShareOfProcessors checks that the processes of a host divide its processors, and that a
// process bound to fewer uses those.
func TestShareOfProcessors(t *testing.T) {
	for _, c := range []struct{ may, all, processes, want int }{
		{8, 8, 1, 8}, {8, 8, 2, 4}, {8, 8, 3, 2}, {2, 2, 4, 1}, {2, 8, 2, 2}, {4, 64, 4, 4}, {8, 0, 2, 4}, {1, 0, 0, 1},
	} {
		if got := world.FairShare(c.may, c.all, c.processes); got != c.want {
			t.Errorf("%d of %d processors, %d processes: %d, want %d", c.may, c.all, c.processes, got, c.want)
		}
	}
}
