package checkpoint

import (
	"strings"
	"testing"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// codecs returns the codecs used per kind in a checkpoint.
func codecs(t *testing.T, fsys vfs.FS, path string, m *model) map[string]string {
	t.Helper()
	c, err := OpenIn(fsys, path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := m.equals(c); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, x := range m.tensors {
		for _, p := range c.Pieces(x.Name, x.Kind) {
			out[x.Kind] = p.Codec
		}
	}
	return out
}

// TestAutoCompression checks that Auto writes the first save raw and, on slow storage, later ones
// encoded, except kinds that do not shrink.
func TestAutoCompression(t *testing.T) {
	nightly.Long(t)
	m := bigModel(blockBytes, Master, "m", "noise")
	for i := range m.tensors {
		if m.tensors[i].Kind == "noise" {
			m.data[m.tensors[i].key()] = noiseBytes(4*blockBytes, 1)
		}
	}
	mem := &vfstest.Mem{}
	slow := vfstest.Hook{FS: mem, Before: func(o vfstest.Op) error {
		if o.Do == "write" {
			time.Sleep(time.Duration(o.Bytes) * time.Microsecond) // 1 MB/s for each of 4 workers: slower than any codec under the race detector
		}
		return nil
	}}
	tuner := &Tuner{}
	opt := Options{Compress: Auto, Tuner: tuner}
	first := m.mustSave(t, slow, "/c", 1, 2, opt)
	if got := codecs(t, mem, first, m); got[Master] != codecRaw || got["m"] != codecRaw {
		t.Errorf("the first save uses %v", got)
	}
	second := m.mustSave(t, slow, "/c", 2, 2, opt)
	if got := codecs(t, mem, second, m); got[Master] != codecPlanes || got["m"] != codecPlanes || got["noise"] != codecRaw {
		t.Errorf("on slow storage the second save uses %v; %+v", got, tuner.Verdicts())
	}
	v := tuner.Verdicts()
	if len(v) != 3 || v[1].Kind != Master || v[1].Ratio > 0.9 || v[1].Storage < 1e5 || v[1].Storage > 5e6 || v[1].Codec < v[1].Storage || v[2].Pays {
		t.Errorf("verdicts %+v", v)
	}
	tuner.storage = 1e15 // faster than any codec
	third := m.mustSave(t, mem, "/c", 3, 2, opt)
	if got := codecs(t, mem, third, m); got[Master] != codecRaw {
		t.Errorf("on fast storage the save uses %v", got)
	}
	if tuner.Verdicts()[0].Storage == 1e15 {
		t.Error("a raw save did not measure the storage again")
	}
	if got := codecs(t, mem, m.mustSave(t, mem, "/c", 4, 1, Options{Compress: Auto}), m); got[Master] != codecRaw {
		t.Errorf("without a tuner the save uses %v", got)
	}
}

// TestTunerWaitsForAllWriters checks that the codecs of a save are fixed when it begins, since a
// writer that finishes early has measured only its own part of the speed of storage.
func TestTunerWaitsForAllWriters(t *testing.T) {
	m, tuner := bigModel(4*blockBytes, Master), &Tuner{}
	s, err := Begin(t.TempDir(), 1, Options{Compress: Auto, Tuner: tuner, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	var parts []PartFile
	for rank, r := range []shard.Range{{Lo: 0, Hi: 2 * blockBytes}, {Lo: 2 * blockBytes, Hi: 4 * blockBytes}} {
		w := s.Writer(rank)
		time.Sleep(50 * time.Millisecond) // like slow storage
		if err := w.Put(m.tensors[0], r, m.data[m.tensors[0].key()][4*r.Lo:4*r.Hi], nil); err != nil {
			t.Fatal(err)
		}
		p, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	path, err := s.Commit(Commit{Parts: parts})
	if err != nil {
		t.Fatal(err)
	}
	if got := codecs(t, vfs.OS{}, path, m); got[Master] != codecRaw {
		t.Errorf("the first save uses %v", got)
	}
	if v := tuner.Verdicts(); v[0].Storage < float64(parts[0].Data+parts[1].Data)/tuner.took.Seconds()*0.99 {
		t.Errorf("%d and %d bytes in %v give %.3g bytes per second", parts[0].Data, parts[1].Data, tuner.took, v[0].Storage)
	}
}

func TestParseCompression(t *testing.T) {
	for c := Never; c <= Auto; c++ {
		if got, err := ParseCompression(c.String()); err != nil || got != c {
			t.Errorf("%v became %v, %v", c, got, err)
		}
	}
	if _, err := ParseCompression("zip"); err == nil || !strings.Contains(err.Error(), "never, always or auto") {
		t.Errorf("got %v", err)
	}
}
