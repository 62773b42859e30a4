package job

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/state"
)

// Lost is the error of a run that lost or diverged from another process.
type Lost struct {
	Checkpoint string // that --resume latest continues from; empty if there is none
	Begun      bool   // training had begun, and no others go on
	cause      error
}

func (l *Lost) Error() string {
	switch {
	case l.Checkpoint == "" && !l.Begun:
		return l.cause.Error()
	case l.Checkpoint == "":
		return fmt.Sprintf("%v; there is no checkpoint to continue from", l.cause)
	}
	return fmt.Sprintf("%v; continue with --resume latest, from %s", l.cause, l.Checkpoint)
}

func (l *Lost) Unwrap() error { return l.cause }

// ErrElsewhere is the reason for a stop that another process was asked for.
var ErrElsewhere = errors.New("another process of the run was asked to stop")

// failed explains the error of a run, and reports it to the other processes if it is this
// one's own.
func (r *run) failed(err error) error {
	if err == nil {
		return nil
	}
	r.World.Fail(err)
	err = r.World.Explain(err)
	others := causedByPeers(err)
	if r.self.Alone() || !others {
		return err
	}
	var left setup.Left
	l := &Lost{Begun: r.asks.begun.Load() && !(errors.As(err, &left) && left.Others), cause: err}
	if r.c != nil && setup.Saves(r.c) {
		l.Checkpoint = r.latest()
	}
	return l
}

// where returns the host of a rank, for notices.
func (r *run) where(rank int) string {
	if r.self.Alone() {
		return ""
	}
	return fmt.Sprintf("; it is on %q", r.self.Hosts[rank])
}

// causedByPeers reports whether a run ended because of ranks of other processes, or because ranks
// diverged.
func causedByPeers(err error) bool {
	return errors.Is(err, collective.ErrClosed) || errors.As(err, new(rendezvous.Lost)) || errors.As(err, new(collective.ErrDiverged))
}

// shareFolder gives process 0's run folder to all processes. One that was given another folder, under another
// name, is an error.
func (r *run) shareFolder(ctx context.Context) error {
	if err := input.CheckPath(r.Out); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	if r.self.Alone() {
		return nil
	}
	full, err := filepath.Abs(r.Out)
	if err != nil {
		return err
	}
	shared, err := r.World.Share(ctx, r.Out+"\x00"+full)
	if err != nil {
		return err
	}
	name, folder, _ := strings.Cut(shared, "\x00")
	if r.Out == "" || full == folder {
		r.Out = name
	}
	err = r.agree(ctx, []rendezvous.Fact{{Name: "--out", Value: r.Out}})
	if r.self.Process > 0 {
		r.Out = folder
	}
	return err
}

// shareDate gives all processes the date of process 0: theirs may differ around midnight, or in their
// time zone.
func (r *run) shareDate(ctx context.Context) error {
	date, err := r.World.Share(ctx, r.given.Data.Date)
	if err == nil {
		r.given = r.given.WithDate(date)
	}
	return err
}

// mostFact is the longest fact, in bytes, that is exchanged as it is; a longer one is
// exchanged as a hash.
const mostFact = 100

// agreeOnJob fails if the processes were given different jobs, programs or checkpoints.
func (r *run) agreeOnJob(ctx context.Context) error {
	facts := []rendezvous.Fact{{Name: "version", Value: state.Version()}, {Name: "checkpoint to continue from", Value: "none"}}
	if from := r.start.from; from != nil {
		facts[1].Value = fmt.Sprintf("step %d, %s", r.steps, filepath.Base(from.Path))
	}
	for key, value := range r.given.Shared() {
		facts = append(facts, rendezvous.Fact{Name: key, Value: value})
	}
	if spec.FollowsData(r.given) {
		facts = append(facts, rendezvous.Fact{Name: "model.context that the data needs", Value: fmt.Sprint(r.c.Model.Context)})
	}
	if c := r.given; c.Own.Model != nil {
		facts = append(facts, rendezvous.Fact{Name: "the program's network", Value: fmt.Sprint(spec.Parameters(c), spec.Network(c).Metrics)})
	}
	for i, f := range facts {
		if len(f.Value) > mostFact {
			facts[i].Value = fmt.Sprintf("%.60s... (SHA-256 %.12x)", f.Value, sha256.Sum256([]byte(f.Value)))
		}
	}
	return r.agree(ctx, facts)
}

// agree compares facts among processes. A difference is an error of whoever started them.
func (r *run) agree(ctx context.Context, facts []rendezvous.Fact) error {
	err := r.World.Agree(ctx, facts)
	if differ := rendezvous.Differences(""); errors.As(err, &differ) {
		return input.BadInput(err)
	}
	return err
}

// lockFolders locks the folders that the run writes to. Process 0 does that for all, and
// leaves a mark there that the others look for.
func (r *run) lockFolders(context.Context) (err error) {
	if r.self.Process > 0 {
		r.folders = &folders{}
		return probeOffload(r.c)
	}
	r.folders, err = lockFolders(r.c, r.Out, r.Resume == "", r.job.Files())
	if err != nil || !r.marks() {
		return err
	}
	return input.WriteBytes(r.mark(), []byte(r.self.Session))
}

// marks reports whether the processes check that they see the same folder of checkpoints.
func (r *run) marks() bool { return !r.self.Alone() && setup.Saves(r.c) && r.store == nil }

func (r *run) mark() string { return filepath.Join(r.c.Checkpoint.Dir, probeName) }

// agreeOnData fails if the processes read different data, or do not see the same folder of
// checkpoints. The processes first wait until process 0 has locked the folder.
func (r *run) agreeOnData(ctx context.Context) error {
	if _, err := r.World.Share(ctx, "locked"); err != nil {
		return err
	}
	facts := []rendezvous.Fact{{Name: "the data's fingerprint", Value: r.set.Fingerprint}}
	if r.marks() {
		seen := "the same writable folder for all"
		if b, err := os.ReadFile(r.mark()); !r.late && (err != nil || string(b) != r.self.Session) { // the mark has been removed
			seen = fmt.Sprintf("not that of rank 0 (%v)", err)
		} else if err := probe(r.job.Files(), r.mark()+fmt.Sprint("-", r.self.Process)); err != nil {
			seen = fmt.Sprintf("that of rank 0, which is not writable (%v)", input.Cause(err))
		}
		facts = append(facts, rendezvous.Fact{Name: "the folder of checkpoints, " + filepath.Base(r.c.Checkpoint.Dir), Value: seen})
		if r.self.Process == 0 {
			defer os.Remove(r.mark())
		}
	}
	return r.agree(ctx, facts)
}

// openRunFolder opens the files of the run folder on process 0, once all processes have what
// the run needs, and shares what it found there.
func (r *run) openRunFolder(ctx context.Context) error {
	if err := r.World.Agree(ctx, nil); err != nil {
		return err
	}
	rec, err := r.silent(), error(nil)
	if r.self.Process == 0 {
		if rec, err = r.record(r.start.Step, r.Resume == ""); err != nil {
			return err
		}
	}
	owed, err := r.World.Share(ctx, strconv.FormatBool(rec.owed))
	rec.owed, rec.sum.Tokens = owed == "true", r.start.Tokens
	r.rec = rec
	r.flights.begun.Store(true)
	return err
}
