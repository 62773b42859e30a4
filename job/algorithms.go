package job

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"zeroth/internal/input"
	"zeroth/internal/machine"
	"zeroth/internal/setup"
)

// algorithmsFile is the file in the run folder that records the GPU algorithms of matrix
// products.
const algorithmsFile = "algorithms.json"

// chooseAlgorithms decides which algorithms all ranks use for matrix products on GPUs: those
// that the job names, or those of the run that this one continues, so that both give the same
// bits.
func (r *run) chooseAlgorithms(ctx context.Context) error {
	if r.c.On() != "cuda" {
		return nil
	}
	var mine string
	var wrong error
	if r.self.Process == 0 {
		a, err := r.algorithms()
		if wrong = err; a != nil {
			mine = a.Packed()
		}
	}
	if wrong != nil {
		r.World.Fail(wrong)
		return wrong
	}
	all, err := r.World.Share(ctx, mine)
	if err != nil || all == "" {
		return err
	}
	a, err := setup.Unpacked(all)
	if err != nil {
		return fmt.Errorf("the algorithms of process 0: %w", err)
	}
	return r.useAlgorithms(a)
}

// algorithms returns the algorithms of process 0, or nil if there are none.
func (r *run) algorithms() (*setup.Algorithms, error) {
	from := r.c.Parallel.Algorithms
	if from == "" && r.start.from != nil {
		from = r.recorded()
	}
	if from == "" { // of a run that begins, of an earlier version, or on the CPU
		return nil, nil
	}
	text, err := input.Read(from, 4<<20)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("algorithms of products: %w", err))
	}
	a, err := setup.ParseAlgorithms(text)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("algorithms of products: %s: %w", from, err))
	}
	return a, nil
}

// recorded returns the path of the algorithms file of the run that this one continues, in its
// own folder or in that of the checkpoint's run, or "".
func (r *run) recorded() string {
	for _, folder := range []string{r.Out, filepath.Dir(filepath.Dir(r.start.from.Path))} {
		if file := filepath.Join(folder, algorithmsFile); input.Exists(file) {
			return file
		}
	}
	return ""
}

// useAlgorithms gives the algorithms to the ranks if they are for this GPU and library.
// Otherwise those that a run recorded are ignored, and those that the job names are an error.
func (r *run) useAlgorithms(a *setup.Algorithms) error {
	current, err := newAlgorithms(r.job)
	if err != nil {
		return err
	}
	if a.GPU == current.GPU && a.CUBLAS == current.CUBLAS {
		r.job.Algorithms = a
		return nil
	}
	differ := fmt.Sprintf("the algorithms of matrix products are for %s and cuBLAS %s, but this machine has %s and cuBLAS %s", a.GPU, a.CUBLAS, current.GPU, current.CUBLAS)
	if r.c.Parallel.Algorithms != "" {
		return input.BadInput(fmt.Errorf("%v: parallel.algorithms: %s; measure them here with 'zeroth bench gpu --products %s --write-algorithms FILE', or remove the key", r.c.Position("parallel.algorithms"), differ, r.c.Parallel.Algorithms))
	}
	r.observers.Warn(differ + ": cuBLAS chooses new ones, and sums may differ in their last bits")
	return nil
}

// newAlgorithms returns an empty record for this machine.
func newAlgorithms(j *setup.Job) (*setup.Algorithms, error) {
	usable, err := machine.UsableGPUs()
	if err != nil {
		return nil, err
	}
	version, err := machine.CUBLAS()
	on := setup.GPUs(j)
	for _, g := range usable {
		if err == nil && len(on) > 0 && g.Ordinal == on[0] {
			return &setup.Algorithms{GPU: g.Name, CUBLAS: version}, nil
		}
	}
	return nil, err
}

// chosen records in the run folder how the ranks of process 0 compute matrix products, as soon
// as they have done so: a run that is killed then continues with the same algorithms.
type chosen struct {
	mu   sync.Mutex
	file string
	all  *setup.Algorithms // nil: nothing is recorded
	seen map[*setup.Rank]int
}

// recordAlgorithms starts the record.
func (r *run) recordAlgorithms(context.Context) (err error) {
	r.chosen = &chosen{file: filepath.Join(r.Out, algorithmsFile), seen: map[*setup.Rank]int{}}
	if r.c.On() != "cuda" || r.self.Process > 0 {
		return nil
	}
	if r.chosen.all = r.job.Algorithms; r.chosen.all == nil {
		r.chosen.all, err = newAlgorithms(r.job)
	}
	return err
}

// record records the products that a rank has computed. Ranks call it between steps.
func (c *chosen) record(rank *setup.Rank) error {
	if c == nil || c.all == nil {
		return nil
	}
	n := rank.Shapes()
	c.mu.Lock()
	defer c.mu.Unlock()
	if n == c.seen[rank] {
		return nil
	}
	c.seen[rank] = n
	c.all.Add(rank)
	return input.WriteBytes(c.file, c.all.JSON())
}
