package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"

	"zeroth/input"
)

// Metrics is metrics.jsonl: a line of JSON for every step and evaluation.
//
//	{"step":1,"loss":5.54,"lr":3e-5,"grad_norm":2.1,"tokens":4096,"tokens_per_second":8000,"step_seconds":0.512,"skipped":0}
//	{"step":2,...,"waited_seconds":0.01,"slowest_rank":1,"behind":0.02}
//	{"step":50,"val_loss":2.71}
//	{"step":1,"memory":{"planned":{...},"ranks":[...],"process":{"peak_rss":...,"held_by_ranks":...,"unattributed":...}}}
//
// The lines of memory are bytes; there is one before that of the first step and
// one at the end, when all else is written.
//
// Numbers have the fewest digits that read back as the same float64, so also
// as the same float32. A value that is no finite number is null. Each line
// reaches the file in one write. What a write that failed has left is written with the
// next line.
type Metrics struct {
	file io.Writer
	end  func() error // closes the file
	line []byte       // with those before it that are not in the file
	err  error        // of the last write
	lost int          // lines, because more than mostLate bytes waited
}

// mostLate is how many bytes wait for a file that does not grow.
const mostLate = 16 << 20

// OpenMetrics appends to a metrics file, made if it is not there.
func OpenMetrics(path string) (*Metrics, error) {
	f, err := input.OpenOwn(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return &Metrics{file: f, end: f.Close}, nil
}

// Start implements Observer; the header is no line of the file.
func (m *Metrics) Start(Header) {}

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
	if s.Waited > 0 {
		m.real("waited_seconds", s.Waited)
		m.whole("slowest_rank", int64(s.Slowest))
		m.real("behind", s.Behind)
	}
	m.flush()
}

// Eval writes the line of an evaluation.
func (m *Metrics) Eval(e Eval) {
	m.line = append(m.line, `{"step":`...)
	m.line = strconv.AppendInt(m.line, int64(e.Step), 10)
	m.real("val_loss", e.ValLoss)
	m.flush()
}

// Memory writes an account of the process's memory.
func (m *Metrics) Memory(a *Account) {
	line, err := json.Marshal(a)
	if err != nil {
		panic("report: metrics: " + err.Error()) // whole numbers and names
	}
	m.line = append(m.line, line[:len(line)-1]...)
	m.flush()
}

// Note implements Observer; notes are for people.
func (m *Metrics) Note(string) {}

// Done implements Observer; Close ends the file.
func (m *Metrics) Done(Summary) {}

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

// Err is the error of the last write. The line is written again with the next one.
func (m *Metrics) Err() error { return m.err }

// Late is how many lines are not in the file, those that are lost included.
func (m *Metrics) Late() int { return m.lost + bytes.Count(m.line, []byte("\n")) }

// Close tries once more to write what is not in the file, and closes it.
func (m *Metrics) Close() error {
	if len(m.line) > 0 {
		m.write()
	}
	if err := m.end(); err != nil && m.err == nil {
		m.err = fmt.Errorf("metrics: %w", err)
	}
	return m.err
}

// ReadMetrics reads the steps and evaluations Metrics wrote; null becomes NaN. A last line without
// its line feed, left by a process that was killed, is not there. A line that
// cannot be read is an error.
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

// longestLine is the most bytes of a line of a step or an evaluation. Those of
// memory, which nothing reads again, may be longer.
const longestLine = 1 << 16

// Log is what can be read of a metrics file.
type Log struct {
	Steps  []Step
	Evals  []Eval
	Ended  int   // the step at which a run had written all it makes, if nothing came after; else 0
	Lost   int   // lines that cannot be read
	Damage error // the first of them, and why
}

// LacksEval tells whether a log, which may be nil, ends with a step after which
// there was no evaluation.
func (l *Log) LacksEval(step int) bool {
	return l != nil && slices.ContainsFunc(l.Steps, func(s Step) bool { return s.Step == step }) &&
		!slices.ContainsFunc(l.Evals, func(e Eval) bool { return e.Step == step })
}

// ReadLog reads a metrics.jsonl as far as it is whole. What is damaged is in the
// log, not an error.
func ReadLog(path string) (*Log, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return &Log{Lost: 1, Damage: fmt.Errorf("metrics: %s is no regular file", path)}, nil
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
	for n := 1; ; n++ {
		line, err := nextLine(in)
		if errors.Is(err, io.EOF) {
			return l, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		if bytes.Contains(line, []byte(`"memory":`)) {
			_, _ = fmt.Sscanf(string(line[:min(len(line), 40)]), `{"step":%d,"memory"`, &l.Ended)
			continue
		}
		l.Ended = 0
		if err == nil {
			err = l.add(line)
		} else {
			err = fmt.Errorf("longer than %d bytes", longestLine)
		}
		if err != nil {
			if l.Lost++; l.Lost == 1 {
				l.Damage = fmt.Errorf("metrics: %s:%d: %w", path, n, err)
			}
		}
	}
}

// nextLine is the next line, valid until the next call; of one that is too long
// its beginning and bufio.ErrBufferFull.
func nextLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	line = bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = in.ReadSlice('\n')
	}
	if err == nil {
		err = bufio.ErrBufferFull
	}
	return line, err
}

// add takes a line.
func (l *Log) add(line []byte) error {
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

// TrimMetrics drops the lines after a step from a metrics file, if there is
// one, those of a process's memory, and what a killed process left unfinished. The file is replaced whole.
// A file with lines that cannot be read is set aside under another name, which
// is told, and those that can be go on.
func TrimMetrics(path string, step int, told func(string)) error {
	l, err := ReadLog(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if l.Damage != nil {
		aside, err := setAside(path)
		if err != nil {
			return fmt.Errorf("%w; it cannot be set aside: %w", l.Damage, err)
		}
		told(fmt.Sprintf("%v: %d lines cannot be read; the file is set aside as %s, and the lines that can be go on", l.Damage, l.Lost, aside))
	}
	f, err := input.Create(path)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	m := &Metrics{file: f}
	m.upTo(step, l.Steps, l.Evals)
	if err := m.Err(); err != nil {
		_ = f.Drop() // err is the one to report
		return err
	}
	return f.Keep()
}

// setAside gives a file a name that is free, and returns it. The file keeps its
// own name too where it can, so that there is one at every instant.
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

// upTo writes the steps and evaluations up to a step, each evaluation after its
// step.
func (m *Metrics) upTo(step int, steps []Step, evals []Eval) {
	for _, s := range steps {
		for len(evals) > 0 && evals[0].Step < s.Step {
			m.evalUpTo(step, evals[0])
			evals = evals[1:]
		}
		if s.Step <= step {
			m.Step(s)
		}
	}
	for _, e := range evals {
		m.evalUpTo(step, e)
	}
}

func (m *Metrics) evalUpTo(step int, e Eval) {
	if e.Step <= step {
		m.Eval(e)
	}
}

// errNoStep and errNoObject are of lines that are not read as JSON: a damaged file may
// have very many.
var (
	errNoStep   = errors.New("there is no step in it")
	errNoObject = errors.New("it is not a JSON object")
)

// parseMetric reads a line: an evaluation if it has a val_loss, else a step.
func parseMetric(line []byte) (Step, *Eval, error) {
	switch {
	case !bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("{")):
		return Step{}, nil, errNoObject
	case !bytes.Contains(line, []byte(`"step"`)):
		return Step{}, nil, errNoStep
	}
	nan := math.NaN()
	s := Step{Loss: nan, LR: nan, GradNorm: nan, TokensPerSecond: nan, StepSeconds: nan}
	raw := struct {
		Step            *int     `json:"step"`
		Loss            *float64 `json:"loss"`
		LR              *float64 `json:"lr"`
		GradNorm        *float64 `json:"grad_norm"`
		Tokens          *int64   `json:"tokens"`
		TokensPerSecond *float64 `json:"tokens_per_second"`
		StepSeconds     *float64 `json:"step_seconds"`
		Skipped         *int     `json:"skipped"`
		Waited          *float64 `json:"waited_seconds"`
		Slowest         *int     `json:"slowest_rank"`
		Behind          *float64 `json:"behind"`
		ValLoss         *float64 `json:"val_loss"`
	}{Step: &s.Step, Loss: &s.Loss, LR: &s.LR, GradNorm: &s.GradNorm, Tokens: &s.Tokens,
		TokensPerSecond: &s.TokensPerSecond, StepSeconds: &s.StepSeconds, Skipped: &s.Skipped, Waited: &s.Waited, Slowest: &s.Slowest, Behind: &s.Behind}
	if err := json.Unmarshal(line, &raw); err != nil {
		return Step{}, nil, err
	}
	if s.Step < 1 {
		return Step{}, nil, errNoStep
	}
	if bytes.Contains(line, []byte(`"val_loss"`)) {
		return Step{}, &Eval{Step: s.Step, ValLoss: or(raw.ValLoss, nan)}, nil
	}
	return s, nil, nil
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
