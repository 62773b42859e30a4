package report

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/internal/input"
)

// Events is an Observer that writes the steps and evaluations of metrics.jsonl for TensorBoard,
// under the same names, and the job as a text. The file is rewritten from metrics.jsonl when a
// run starts, so that both contain every step once.
//
// A file is a sequence of records: the length of the data (uint64), a checksum of these 8 bytes
// (uint32), the data, and a checksum of the data, all little-endian. The data is a protocol
// buffer, Event{1: wall time, 2: step, 3: file version or 5: Summary{1: Value{1: tag, 2:
// number}}}.
type Events struct {
	file  io.Writer
	end   func() error // closes the file
	value []byte       // scratch for one Value,
	sum   []byte       // the Values of an event,
	event []byte       // the Event,
	line  []byte       // and the record
	time  float64      // time of the last step
	err   error        // first write error
}

// eventFiles is the name of event files; TensorBoard reads every file with tfevents in its name.
const eventFiles = "events.out.tfevents."

// IsEvents reports whether a file name is that of an event file.
func IsEvents(name string) bool { return strings.HasPrefix(name, eventFiles) }

// OpenEvents creates the event file of a run folder from its trimmed metrics, removes older ones,
// and appends to it.
func OpenEvents(out string, job []byte, l *Log) (*Events, error) {
	old, err := os.ReadDir(out)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	path := filepath.Join(out, fmt.Sprintf("%s%.3f.zeroth", eventFiles, Now())) // a reader that follows the old file continues with this one
	f, err := input.Create(path)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	e := &Events{file: f, time: Now()}
	if len(l.Steps) > 0 {
		e.time = l.Steps[0].Time
	}
	e.bytes(3, []byte("brain.Event:2"))
	e.write(0)
	e.text("job", job)
	l.replay(e)
	if err := e.err; err != nil {
		return nil, errors.Join(err, f.Drop())
	}
	if err := f.Keep(); err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	for _, entry := range old {
		if name := filepath.Join(out, entry.Name()); IsEvents(entry.Name()) && name != path {
			if err := os.Remove(name); err != nil {
				return nil, fmt.Errorf("events: %w", err)
			}
		}
	}
	file, err := input.OpenOwn(path, os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	e.file, e.end = file, file.Close
	return e, nil
}

// Step writes the numbers of a step.
func (e *Events) Step(s Step) {
	e.time = s.Time
	scalars(s, e.real)
	e.write(s.Step)
}

// scalars calls f for each number of a step that experiment trackers show.
func scalars(s Step, f func(name string, x float64)) {
	f("loss", s.Loss)
	f("lr", s.LR)
	f("grad_norm", s.GradNorm)
	f("tokens", float64(s.Tokens))
	f("tokens_per_second", s.TokensPerSecond)
	f("step_seconds", s.StepSeconds)
	f("skipped", float64(s.Skipped))
	f("data_seconds", s.DataSeconds)
	if s.MFU > 0 {
		f("mfu", s.MFU)
	}
	if s.Waited > 0 {
		f("waited_seconds", s.Waited)
		f("behind", s.Behind)
	}
	if p := s.Parts; p.Steps > 0 {
		f("compute_seconds", p.Compute)
		f("exposed_seconds", p.Exposed)
		f("idle_seconds", p.Idle)
	}
	own("metrics/", s.Metrics, f)
}

// own calls f for each metric of a program's network.
func own(under string, metrics map[string]float64, f func(name string, x float64)) {
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		f(under+name, metrics[name])
	}
}

// Event writes an evaluation.
func (e *Events) Event(of Event) {
	if v, ok := of.(Eval); ok {
		e.real("val_loss", v.ValLoss)
		own("val_metrics/", v.Metrics, e.real)
		e.write(v.Step)
	}
}

// The wire types of protocol buffers in use.
const (
	wireVarint = 0
	wire64     = 1
	wireBytes  = 2
	wire32     = 5
)

// real adds a number to the event.
func (e *Events) real(tag string, x float64) {
	e.value = field(e.value[:0], 1, tag)
	e.value = append(e.value, 2<<3|wire32)
	e.value = binary.LittleEndian.AppendUint32(e.value, math.Float32bits(float32(x)))
	e.sum = field(e.sum, 1, e.value)
}

// text writes a text event for TensorBoard's text plugin: a tensor of one string.
func (e *Events) text(tag string, text []byte) {
	const dataClassTensor, dtString = 2, 7
	text = append(append([]byte("```yaml\n"), text...), "```\n"...) // the plugin shows Markdown
	plugin := field(nil, 1, "text")
	meta := append(field(nil, 1, plugin), 4<<3|wireVarint, dataClassTensor)
	tensor := []byte{1<<3 | wireVarint, dtString}
	tensor = field(tensor, 2, field(nil, 2, []byte{1<<3 | wireVarint, 1})) // one dimension, of size 1
	tensor = field(tensor, 8, text)
	value := field(field(nil, 1, tag+"/text_summary"), 8, tensor)
	e.sum = field(e.sum, 1, field(value, 9, meta))
	e.write(0)
}

// bytes adds a field of bytes to the event itself.
func (e *Events) bytes(number int, b []byte) { e.event = field(e.event, number, b) }

// field appends a field of bytes.
func field[T string | []byte](to []byte, number int, value T) []byte {
	to = append(to, byte(number<<3|wireBytes))
	to = binary.AppendUvarint(to, uint64(len(value)))
	return append(to, value...)
}

// write appends the event as a record, in one write. It does nothing after an error.
func (e *Events) write(step int) {
	if len(e.sum) > 0 {
		e.bytes(5, e.sum)
	}
	e.event = append(e.event, 1<<3|wire64)
	e.event = binary.LittleEndian.AppendUint64(e.event, math.Float64bits(e.time))
	e.event = append(e.event, 2<<3|wireVarint)
	e.event = binary.AppendUvarint(e.event, uint64(step))
	e.line = binary.LittleEndian.AppendUint64(e.line[:0], uint64(len(e.event)))
	e.line = binary.LittleEndian.AppendUint32(e.line, masked(e.line))
	e.line = append(e.line, e.event...)
	e.line = binary.LittleEndian.AppendUint32(e.line, masked(e.event))
	e.event, e.sum = e.event[:0], e.sum[:0]
	if e.err != nil {
		return
	}
	if _, err := e.file.Write(e.line); err != nil {
		e.err = fmt.Errorf("events: %w", err)
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked returns the masked checksum of records: data that contains its own checksum would
// otherwise have a weak one.
func masked(b []byte) uint32 {
	sum := crc32.Checksum(b, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

// Err returns the first write error; no events are written after it.
func (e *Events) Err() error { return e.err }

// Close closes the file.
func (e *Events) Close() error {
	err := e.end()
	if e.err == nil && err != nil {
		e.err = fmt.Errorf("events: %w", err)
	}
	return e.err
}
