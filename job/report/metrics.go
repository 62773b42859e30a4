package report

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"

	"zeroth/internal/input"
)

// Metrics is metrics.jsonl: a line of JSON for every step and evaluation, and for the beginning,
// the memory and the end of each start of the run. The second key gives the kind of line.
//
//	{"step":0,"start":{"run":"k3v9...","time":1764061233.5,"model":"GPT-2 10.7M","steps":1000,"model_flops":1.9e9,...}}
//	{"step":1,"memory":{"planned":{...},"process":{"peak_rss":...,"held_by_ranks":...,"unattributed":...}}}
//	{"step":1,"loss":5.54,"lr":3e-5,"grad_norm":2.1,"tokens":4096,"tokens_per_second":8000,"step_seconds":0.512,"skipped":0,"time":1764061234.013,"data_seconds":0.001}
//	{"step":2,...,"waited_seconds":0.01,"slowest_rank":1,"behind":0.02,"rank_seconds":{"min":0.5,"min_rank":1,"max":0.512,"max_rank":0},"rank_waits":{...}}
//	{"step":50,...,"measured_seconds":0.52,"compute_seconds":0.4,"exposed_seconds":0.05,"peers_seconds":0.01,"offload_seconds":0,"idle_seconds":0.06}
//	{"step":50,"val_loss":2.71,"metrics":{"accuracy":0.93}}
//	{"step":800,"change":{"time":1764061643.5,"epoch":1,"replicas":7,"lost":[4,5],"seconds":0.05}}
//	{"step":1000,"end":{"time":1764061745.1,"state":"done"}}
//
// docs/watching.md describes every key. The step of a start is the step after which it begins.
// Memory is in bytes; a start writes it before its first step and at its end.
//
// Numbers have the fewest digits that read back as the same float64, and so as the same float32.
// NaN and infinities are null. Each line reaches the file in one write. After a failed write, the
// rest is written with the next line.
type Metrics struct {
	file io.Writer
	end  func() error // closes the file
	line []byte       // this line, and earlier ones that are not in the file yet
	err  error        // error of the last write
	lost int          // lines dropped because more than mostLate bytes were waiting
}

// mostLate limits the bytes that wait for a file that cannot be written.
const mostLate = 16 << 20

// OpenMetrics opens a metrics file for appending, and creates it if needed.
func OpenMetrics(path string) (*Metrics, error) {
	f, err := input.OpenOwn(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return &Metrics{file: f, end: f.Close}, nil
}

// Step writes the line of a step.
func (m *Metrics) Step(s Step) {
	m.line = append(m.line, `{"step":`...)
	m.line = strconv.AppendInt(m.line, int64(s.Step), 10)
	m.real("loss", s.Loss)
	m.real("lr", s.LR)
	m.real("grad_norm", s.GradNorm)
	m.whole("tokens", s.Tokens)
	m.real("tokens_per_second", s.TokensPerSecond)
	m.real("step_seconds", s.StepSeconds)
	m.whole("skipped", int64(s.Skipped))
	m.name("time")
	m.line = strconv.AppendFloat(m.line, s.Time, 'f', -1, 64)
	m.real("data_seconds", s.DataSeconds)
	if s.MFU > 0 {
		m.real("mfu", s.MFU)
	}
	if s.Waited > 0 {
		m.real("waited_seconds", s.Waited)
		m.whole("slowest_rank", int64(s.Slowest))
		m.real("behind", s.Behind)
	}
	m.spread("rank_seconds", s.RankSeconds)
	m.spread("rank_waits", s.RankWaits)
	if p := s.Parts; p.Steps > 0 {
		m.real("measured_seconds", p.Seconds)
		m.real("compute_seconds", p.Compute)
		m.real("exposed_seconds", p.Exposed)
		m.real("peers_seconds", p.Peers)
		m.real("offload_seconds", p.Offload)
		m.real("idle_seconds", p.Idle)
	}
	m.metrics(s.Metrics)
	m.flush()
}

// spread writes the object of a Spread, unless nothing was measured.
func (m *Metrics) spread(key string, s Spread) {
	if s.Most.Seconds <= 0 {
		return
	}
	m.name(key)
	m.line = append(m.line, `{"min":`...)
	m.line = strconv.AppendFloat(m.line, s.Least.Seconds, 'g', -1, 64)
	m.whole("min_rank", int64(s.Least.Rank))
	m.real("max", s.Most.Seconds)
	m.whole("max_rank", int64(s.Most.Rank))
	m.line = append(m.line, '}')
}

// metrics writes an object unless there are none.
func (m *Metrics) metrics(own map[string]float64) {
	if len(own) == 0 {
		return
	}
	m.name("metrics")
	begin := len(m.line)
	for _, name := range slices.Sorted(maps.Keys(own)) {
		m.real(name, own[name])
	}
	m.line[begin] = '{' // in place of the comma
	m.line = append(m.line, '}')
}

// Event writes the line of an evaluation or of a record. Other events have none.
func (m *Metrics) Event(e Event) {
	switch e := e.(type) {
	case Eval:
		m.line = append(m.line, `{"step":`...)
		m.line = strconv.AppendInt(m.line, int64(e.Step), 10)
		m.real("val_loss", e.ValLoss)
		m.metrics(e.Metrics)
		m.flush()
	case *Account:
		m.object(e.Step, "memory", e)
	case Start:
		m.object(e.Step, "start", e)
	case Change:
		m.object(e.Step, "change", e)
	case End:
		m.object(e.Step, "end", e)
	}
}

// object writes a line of any other kind.
func (m *Metrics) object(step int, kind string, of any) {
	text, err := json.Marshal(of)
	if err != nil {
		panic("report: metrics: " + err.Error()) // cannot fail for finite numbers and names
	}
	m.line = append(m.line, `{"step":`...)
	m.line = strconv.AppendInt(m.line, int64(step), 10)
	m.name(kind)
	m.line = append(m.line, text...)
	m.flush()
}

func (m *Metrics) name(key string) {
	m.line = append(m.line, `,"`...)
	m.line = append(m.line, key...)
	m.line = append(m.line, `":`...)
}

func (m *Metrics) whole(key string, n int64) {
	m.name(key)
	m.line = strconv.AppendInt(m.line, n, 10)
}

func (m *Metrics) real(key string, x float64) {
	m.name(key)
	if math.IsNaN(x) || math.IsInf(x, 0) {
		m.line = append(m.line, "null"...)
		return
	}
	m.line = strconv.AppendFloat(m.line, x, 'g', -1, 64)
}

func (m *Metrics) flush() {
	m.line = append(m.line, '}', '\n')
	m.write()
}

func (m *Metrics) write() {
	n, err := m.file.Write(m.line)
	m.line, m.err = append(m.line[:0], m.line[n:]...), nil
	if err != nil {
		m.err = fmt.Errorf("metrics: %w", err)
	}
	if len(m.line) > mostLate {
		last := bytes.LastIndexByte(m.line[:len(m.line)-1], '\n')
		m.line = m.line[:last+1]
		m.lost++
	}
}

// Err returns the error of the last write. The line is written again with the next one.
func (m *Metrics) Err() error { return m.err }

// Late returns the number of lines that are not in the file, including lost ones.
func (m *Metrics) Late() int { return m.lost + bytes.Count(m.line, []byte("\n")) }

// Close tries once more to write the missing lines, and closes the file.
func (m *Metrics) Close() error {
	if len(m.line) > 0 {
		m.write()
	}
	if err := m.end(); err != nil && m.err == nil {
		m.err = fmt.Errorf("metrics: %w", err)
	}
	return m.err
}

// ReadMetrics reads the steps and evaluations of a metrics file; null becomes NaN. It ignores
// a last line without line feed, left by a killed process. Any other line that cannot be read
// is an error.
func ReadMetrics(path string) ([]Step, []Eval, error) {
	l, err := ReadLog(path)
	if err == nil && l.Damage != nil {
		err = l.Damage
	}
	if err != nil {
		return nil, nil, err
	}
	return l.Steps, l.Evals, nil
}

// longestLine is the longest line of a step or evaluation, in bytes. Lines about memory are
// not read and may be longer.
const longestLine = 1 << 16

// Log is the readable content of a metrics file.
type Log struct {
	Steps   []Step
	Evals   []Eval
	Starts  []Start
	Changes []Change
	End     *End   // end of the last start; nil if it is still running or was killed
	Ended   int    // step after which the run had written all its files, if it is the last step; else 0
	Memory  []byte // the last line about memory; nil if there is none
	Lost    int    // lines that cannot be read
	Damage  error  // the first of them, with the reason
	size    int64  // bytes of the lines
}

// Changed returns the last change of the replicas, nil if there was none since the last start.
func (l *Log) Changed() *Change {
	n, starts := len(l.Changes), len(l.Starts)
	if n == 0 || starts > 0 && l.Changes[n-1].Time < l.Starts[starts-1].Time {
		return nil
	}
	return &l.Changes[n-1]
}

// LacksEval reports whether a log, which may be nil, ends with a step that no evaluation
// follows.
func (l *Log) LacksEval(step int) bool {
	return l != nil && slices.ContainsFunc(l.Steps, func(s Step) bool { return s.Step == step }) &&
		!slices.ContainsFunc(l.Evals, func(e Eval) bool { return e.Step == step })
}

// ReadLog reads the readable lines of a metrics.jsonl. Damage is recorded in the log and is
// not an error.
func ReadLog(path string) (*Log, error) { return readLog(path, math.MaxInt64, math.MaxInt) }

// ReadRecent is like ReadLog, but does not parse the steps and evaluations before the last MiB,
// so that a long log is read at the speed of the disk. It includes all starts.
func ReadRecent(path string) (*Log, error) { return readLog(path, 1<<20, math.MaxInt) }

// readLog parses the starts and ends of a log and, of its last bytes, all lines, up to the first one after a step.
func readLog(path string, last int64, step int) (*Log, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return &Log{Lost: 1, Damage: fmt.Errorf("metrics: %s is not a regular file", path)}, nil
	}
	var f *os.File
	if err == nil {
		f, err = input.Open(path, math.MaxInt64)
	}
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	defer f.Close()
	l, in := &Log{}, bufio.NewReaderSize(f, longestLine)
	for n, left := 1, info.Size(); ; n++ {
		line, size, err := nextLine(in)
		if left -= size; left > last && !isBound(line) {
			continue
		}
		if errors.Is(err, io.EOF) || stepOf(line) > step {
			return l, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		l.size += size
		if bytes.Contains(line, []byte(`"memory":`)) {
			if l.Ended = stepOf(line); err == nil {
				l.Memory = bytes.Clone(line)
			}
			continue
		}
		if err == nil {
			err = l.add(line)
		} else {
			l.Ended = 0
			err = fmt.Errorf("longer than %d bytes", longestLine)
		}
		if err != nil {
			if l.Lost++; l.Lost == 1 {
				l.Damage = fmt.Errorf("metrics: %s:%d: %w", path, n, err)
			}
		}
	}
}

// nextLine returns the next line, valid until the next call, and its size. For one that is too long it
// returns its beginning and bufio.ErrBufferFull.
func nextLine(in *bufio.Reader) (line []byte, size int64, err error) {
	line, err = in.ReadSlice('\n')
	if size = int64(len(line)); !errors.Is(err, bufio.ErrBufferFull) {
		return line, size, err
	}
	line = bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		var more []byte
		more, err = in.ReadSlice('\n')
		size += int64(len(more))
	}
	if err == nil {
		err = bufio.ErrBufferFull
	}
	return line, size, err
}

// stepOf returns the step of a line, 0 if it does not begin with one.
func stepOf(line []byte) (step int) {
	digits, ok := bytes.CutPrefix(line, []byte(`{"step":`))
	for _, d := range digits[:min(len(digits), 18)] {
		if !ok || d < '0' || d > '9' {
			break
		}
		step = 10*step + int(d-'0')
	}
	return step
}

// add adds a line.
func (l *Log) add(line []byte) error {
	if isBound(line) {
		return l.addBound(line)
	}
	l.Ended, l.End = 0, nil
	s, e, err := parseMetric(line)
	switch {
	case err != nil:
		return err
	case e != nil:
		l.Evals = append(l.Evals, *e)
	default:
		l.Steps = append(l.Steps, s)
	}
	return nil
}

// isBound reports whether a line is a start, an end or a change of replicas, by its second key.
func isBound(line []byte) bool {
	_, after, _ := bytes.Cut(line[:min(len(line), 40)], []byte(","))
	return bytes.HasPrefix(after, []byte(`"start":{`)) || bytes.HasPrefix(after, []byte(`"end":{`)) || bytes.HasPrefix(after, []byte(`"change":{`))
}

// addBound adds a line about the beginning or the end of a start.
func (l *Log) addBound(line []byte) error {
	var raw struct {
		Step   int
		Start  *Start
		Change *Change
		End    *End
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return err
	}
	l.End = raw.End
	if s := raw.Start; s != nil {
		s.Step, l.Ended = raw.Step, 0
		l.Starts = append(l.Starts, *s)
	}
	if c := raw.Change; c != nil {
		c.Step = raw.Step
		l.Changes = append(l.Changes, *c)
	}
	if raw.End != nil {
		raw.End.Step = raw.Step
	}
	return nil
}

// Run returns the name of the run, empty if an earlier version began it.
func (l *Log) Run() string {
	if len(l.Starts) == 0 {
		return ""
	}
	return l.Starts[0].Run
}

// TrimMetrics removes from a metrics file the first line of a step after the given one and all after it, and the unfinished line
// of a killed process, and returns the rest. It needs no space on the disk. A missing file is not an error. If lines cannot be
// read, the old file is saved under another name, which is reported, and only the readable lines stay.
func TrimMetrics(path string, step int, note func(string)) (*Log, error) {
	l, err := readLog(path, math.MaxInt64, step)
	if errors.Is(err, os.ErrNotExist) {
		return &Log{}, nil
	}
	if err == nil && l.Damage != nil {
		return l, l.mend(path, note)
	}
	if err != nil {
		return nil, err
	}
	f, err := input.OpenOwn(path, os.O_WRONLY)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	defer f.Close()
	return l, f.Truncate(l.size)
}

// mend replaces a damaged file by one with the readable lines.
func (l *Log) mend(path string, note func(string)) error {
	aside, err := setAside(path)
	if err != nil {
		return fmt.Errorf("%w; it cannot be moved away: %w", l.Damage, err)
	}
	note(fmt.Sprintf("%v: %d lines cannot be read; the file was moved to %s, and a new one contains the readable lines", l.Damage, l.Lost, aside))
	f, err := input.Create(path)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	m := &Metrics{file: f}
	l.replay(m)
	if err := m.Err(); err != nil {
		_ = f.Drop() // err is the one to report
		return err
	}
	return f.Keep()
}

// setAside gives a file an unused name, and returns it. If possible the file also keeps its old
// name, so that one exists at every instant.
func setAside(path string) (string, error) {
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s.damaged-%d", path, n)
		if _, err := os.Lstat(aside); errors.Is(err, os.ErrNotExist) {
			if os.Link(path, aside) == nil {
				return aside, nil
			}
			return aside, os.Rename(path, aside)
		} else if err != nil {
			return "", err
		}
	}
}

// replay passes a log on, each start before its first step and each evaluation after its step.
func (l *Log) replay(to Observer) {
	starts, evals, changes := l.Starts, l.Evals, l.Changes
	before := func(step int) {
		for ; len(evals) > 0 && evals[0].Step < step; evals = evals[1:] {
			to.Event(evals[0])
		}
		for ; len(starts) > 0 && starts[0].Step < step; starts = starts[1:] {
			to.Event(starts[0])
		}
		for ; len(changes) > 0 && changes[0].Step < step; changes = changes[1:] {
			to.Event(changes[0])
		}
	}
	for _, s := range l.Steps {
		before(s.Step)
		to.Step(s)
	}
	before(math.MaxInt)
}

// errNoStep and errNoObject are errors of lines that are rejected without parsing: a damaged
// file may have very many.
var (
	errNoStep   = errors.New("there is no step in it")
	errNoObject = errors.New("it is not a JSON object")
)

// parseMetric parses a line as an evaluation if it has a val_loss, otherwise as a step.
func parseMetric(line []byte) (Step, *Eval, error) {
	switch {
	case !bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("{")):
		return Step{}, nil, errNoObject
	case !bytes.Contains(line, []byte(`"step"`)):
		return Step{}, nil, errNoStep
	}
	nan := math.NaN()
	s := Step{Loss: nan, LR: nan, GradNorm: nan, TokensPerSecond: nan, StepSeconds: nan}
	p := &s.Parts
	raw := struct {
		*Step
		ValLoss     *float64            `json:"val_loss"`
		RankSeconds spread              `json:"rank_seconds"`
		RankWaits   spread              `json:"rank_waits"`
		Measured    *float64            `json:"measured_seconds"`
		Compute     *float64            `json:"compute_seconds"`
		Exposed     *float64            `json:"exposed_seconds"`
		Peers       *float64            `json:"peers_seconds"`
		Offload     *float64            `json:"offload_seconds"`
		Idle        *float64            `json:"idle_seconds"`
		Metrics     map[string]*float64 `json:"metrics"`
	}{Step: &s, Measured: &p.Seconds, Compute: &p.Compute, Exposed: &p.Exposed, Peers: &p.Peers, Offload: &p.Offload, Idle: &p.Idle}
	if err := json.Unmarshal(line, &raw); err != nil {
		return Step{}, nil, err
	}
	if s.Step < 1 {
		return Step{}, nil, errNoStep
	}
	if raw.Metrics != nil {
		s.Metrics = map[string]float64{}
		for name, x := range raw.Metrics {
			s.Metrics[name] = *cmp.Or(x, &nan)
		}
	}
	if bytes.Contains(line, []byte(`"val_loss"`)) {
		return Step{}, &Eval{Step: s.Step, ValLoss: *cmp.Or(raw.ValLoss, &nan), Metrics: s.Metrics}, nil
	}
	s.RankSeconds, s.RankWaits = raw.RankSeconds.of(), raw.RankWaits.of()
	if s.Parts.Seconds > 0 {
		s.Parts.Steps = 1
	}
	return s, nil, nil
}

// spread is the JSON form of a Spread.
type spread struct {
	Min     float64
	MinRank int `json:"min_rank"`
	Max     float64
	MaxRank int `json:"max_rank"`
}

func (s spread) of() Spread { return Spread{RankValue{s.Min, s.MinRank}, RankValue{s.Max, s.MaxRank}} }
