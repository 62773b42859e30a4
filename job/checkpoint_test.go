package job

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/device"
)

// One half of small staging memory is filled while the other is written, and
// not before its own parts are given back.
func TestStagingHalves(t *testing.T) {
	s := &staging{buf: device.OfF32(make([]float32, 10)), halved: true}
	take := func(n int, mark float32) func() {
		room := s.take(n)
		for i := range room {
			room[i] = mark
		}
		return s.giver()
	}
	first, second := take(3, 1), take(2, 2)
	third := take(4, 3) // in the other half
	if all := s.buf.F32(); all[0] != 1 || all[3] != 2 || all[5] != 3 || all[8] != 3 || all[9] != 0 {
		t.Fatalf("staged %v", all)
	}
	second()
	taken := make(chan bool)
	go func() {
		take(4, 4)
		close(taken)
	}()
	select {
	case <-taken:
		t.Fatal("room was given of which a part is not written yet")
	case <-time.After(20 * time.Millisecond):
	}
	first()
	<-taken
	if all := s.buf.F32(); all[0] != 4 || all[3] != 4 || all[4] != 2 || all[5] != 3 {
		t.Errorf("staged %v", all)
	}
	third()
	whole := &staging{buf: device.OfF32(make([]float32, 10))}
	whole.take(6)
	whole.take(4)
	defer func() {
		if recover() == nil {
			t.Error("more was taken than there is")
		}
	}()
	whole.take(1)
}

// Checkpoints that cannot be deleted end the run, or are told of where the job
// says so, at the next save or at the end.
func TestRetentionThatFails(t *testing.T) {
	inFolder(t, least)
	for _, onError := range []string{"stop", "continue"} {
		c := mustLoad(t, "checkpoint.dir=ckpt", "checkpoint.on_error="+onError)
		other, err := checkpoint.Begin("ckpt", 1, checkpoint.Options{}) // holds the lock
		if err != nil {
			t.Fatal(err)
		}
		s := &saver{c: c, rank: &Rank{}, kept: make(chan error, 1)}
		s.kept <- s.retain(nil)
		var out bytes.Buffer
		l := &loop{c: c, rank: &Rank{saver: s}, rec: &recorder{Observers: Observers{NewLines(&out)}}}
		err = l.settled()
		if stop := onError == "stop"; errors.Is(err, vfs.ErrLocked) != stop || strings.Contains(out.String(), "old checkpoints stay: prune ckpt: ") == stop {
			t.Errorf("on_error %s: %v\n%s", onError, err, &out)
		}
		if err := l.settled(); err != nil {
			t.Errorf("told twice: %v", err)
		}
		if s.retain(errors.New("no save")) != nil {
			t.Error("retention after a save that failed")
		}
		other.Abort()
	}
}
