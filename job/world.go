package job

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"zeroth/checkpoint"
	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/data"
	"zeroth/input"
	"zeroth/job/build"
	"zeroth/job/config"
	"zeroth/job/report"
	"zeroth/job/state"
)

// World is the processes of a run. Process 0 has rank 0, writes the run folder and
// tells what happens.
type World interface {
	build.Launch
	// Process is this one's number.
	Process() int
	// Session is a name that no other start of a world has.
	Session() string
	// Agree is an error, on all, if the processes state different facts.
	Agree(context.Context, []rendezvous.Fact) error
	// Share is what process 0 passes to it.
	Share(ctx context.Context, mine string) (string, error)
	// Fail tells the others why this process ends, if the reason is its own.
	Fail(error)
	// Explain adds what is known of who was lost.
	Explain(error) error
	// Host is where a rank is.
	Host(rank int) string
	// Ended is closed when a process was lost or has failed.
	Ended() <-chan struct{}
}

// alone is the World of one process.
type alone struct{ build.OneProcess }

func (alone) Process() int                                         { return 0 }
func (alone) Session() string                                      { return "" }
func (alone) Agree(context.Context, []rendezvous.Fact) error       { return nil }
func (alone) Share(_ context.Context, mine string) (string, error) { return mine, nil }
func (alone) Fail(error)                                           {}
func (alone) Explain(err error) error                              { return err }
func (alone) Host(int) string                                      { return "" }
func (alone) Ended() <-chan struct{}                               { return nil }

// Lost is the error of a run that ended because it lost another process, or parted
// from it.
type Lost struct {
	Checkpoint string // that --resume latest goes on from; empty if there is none
	cause      error
}

func (l *Lost) Error() string {
	if l.Checkpoint == "" {
		return fmt.Sprintf("%v: there is no checkpoint to go on from", l.cause)
	}
	return fmt.Sprintf("%v: --resume latest goes on from %s", l.cause, l.Checkpoint)
}

func (l *Lost) Unwrap() error { return l.cause }

// ErrElsewhere is why a run stops whose own process nobody asked to.
var ErrElsewhere = errors.New("another process of the run was asked to stop")

// why is the reason to stop, nil if the run has not.
func (r *run) why(ctx context.Context, stopped bool) error {
	if !stopped {
		return nil
	}
	return cmp.Or(context.Cause(ctx), ErrElsewhere)
}

// ended is a failed run's error, which the other processes hear if it is this
// one's own.
func (r *run) ended(err error) error {
	if err == nil {
		return nil
	}
	r.World.Fail(err)
	err = r.World.Explain(err)
	others := parted(err)
	if _, one := r.World.(alone); one || !others {
		return err
	}
	l := &Lost{cause: err}
	if r.c != nil && build.Saves(r.c) {
		l.Checkpoint, _ = checkpoint.Resolve(r.c.Checkpoint.Dir, "latest") // empty if there is none
	}
	return l
}

// where is the host of a rank, for notices.
func (r *run) where(rank int) string {
	if host := r.World.Host(rank); host != "" {
		return fmt.Sprintf("; it is on %q", host)
	}
	return ""
}

// parted is whether a run ended because of other ranks than the process's own, or
// because its ranks did not do the same.
func parted(err error) bool {
	return errors.Is(err, collective.ErrClosed) || errors.As(err, new(rendezvous.Lost)) || errors.As(err, new(collective.ErrDiverged))
}

// oneFolder is process 0's run folder on all.
func (r *run) oneFolder(ctx context.Context) error {
	out := r.Out
	if _, one := r.World.(alone); !one {
		var err error
		if out, err = filepath.Abs(out); err != nil {
			return err
		}
	}
	shared, err := r.World.Share(ctx, out)
	if err == nil && r.World.Process() > 0 {
		r.Out = shared
	}
	return err
}

// mostFact is the bytes of a fact that are told as they are; of longer ones a hash
// is.
const mostFact = 100

// ownKeys are a process's own: hosts have their own addresses and files.
var ownKeys = []string{"parallel.bind", "parallel.token_file", "parallel.tls.cert", "parallel.tls.key", "parallel.tls.ca"}

// oneJob is an error if the processes have other jobs, programs or checkpoints
// before them.
func (r *run) oneJob(ctx context.Context, c *config.Config) error {
	facts := []rendezvous.Fact{{Name: "version", Value: state.Version()}, {Name: "checkpoint to go on from", Value: "none"}}
	if from := r.start.from; from != nil {
		facts[1].Value = fmt.Sprintf("step %d, %s", r.steps, filepath.Base(from.Path))
	}
	for _, key := range config.Keys() {
		if slices.Contains(ownKeys, key) {
			continue
		}
		facts = append(facts, rendezvous.Fact{Name: key, Value: c.Text(key)})
	}
	for i, f := range facts {
		if len(f.Value) > mostFact {
			facts[i].Value = fmt.Sprintf("%.60s... (SHA-256 %.12x)", f.Value, sha256.Sum256([]byte(f.Value)))
		}
	}
	return r.agree(ctx, facts)
}

// agree is the World's; what the processes differ in is theirs who started them.
func (r *run) agree(ctx context.Context, facts []rendezvous.Fact) error {
	err := r.World.Agree(ctx, facts)
	if differ := rendezvous.Differences(""); errors.As(err, &differ) {
		return input.BadInput(err)
	}
	return err
}

// lock takes the folders that the run writes to, which process 0 does for all, and
// leaves a mark there that the others look for.
func (r *run) lock() (*folders, error) {
	if r.World.Process() > 0 {
		return &folders{}, probeOffload(r.c)
	}
	f, err := lockFolders(r.c, r.Out, r.Resume == "", r.Hooks.Saves)
	if err != nil || r.World.Session() == "" || !build.Saves(r.c) {
		return f, err
	}
	if err := os.WriteFile(r.mark(), []byte(r.World.Session()), 0o666); err != nil {
		f.release()
		return nil, err
	}
	return f, nil
}

func (r *run) mark() string { return filepath.Join(r.c.Checkpoint.Dir, probeName) }

// oneData is an error if the processes read other data, or do not see one folder
// of checkpoints. Process 0 has it locked by now, and the others wait for that.
func (r *run) oneData(ctx context.Context, set *data.Set) error {
	if _, err := r.World.Share(ctx, "locked"); err != nil {
		return err
	}
	facts := []rendezvous.Fact{{Name: "the data's fingerprint", Value: set.Fingerprint}}
	if r.World.Session() != "" && build.Saves(r.c) {
		seen := "one for all, that can be written to"
		if b, err := os.ReadFile(r.mark()); err != nil || string(b) != r.World.Session() {
			seen = fmt.Sprintf("not that of rank 0 (%v)", err)
		} else if err := probe(r.Hooks.Saves, r.mark()+fmt.Sprint("-", r.World.Process())); err != nil {
			seen = fmt.Sprintf("that of rank 0, in which nothing can be written (%v)", input.Cause(err))
		}
		facts = append(facts, rendezvous.Fact{Name: "the folder of checkpoints, " + filepath.Base(r.c.Checkpoint.Dir), Value: seen})
		if r.World.Process() == 0 {
			defer os.Remove(r.mark())
		}
	}
	return r.agree(ctx, facts)
}

// record opens the run folder's files on process 0, once all have what the run needs; the
// others know what it found there.
func (r *run) record(ctx context.Context) (rec *recorder, err error) {
	if err := r.World.Agree(ctx, nil); err != nil {
		return nil, err
	}
	if r.World.Process() == 0 {
		rec, err = record(r.Out, r.file, r.Resume == "", r.start.Step, r.Observer)
		if err != nil {
			return nil, err
		}
	} else {
		rec = &recorder{Observers: report.Observers{r.Observer}, out: r.Out, sum: report.Summary{Steps: r.start.Step, Loss: math.NaN(), ValLoss: math.NaN()}}
	}
	owed, err := r.World.Share(ctx, strconv.FormatBool(rec.owed))
	rec.owed = owed == "true"
	return rec, err
}
