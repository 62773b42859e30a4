package hf

import (
	"cmp"
	"math"

	"zeroth/device"
)

// longrope follows transformers' _compute_longrope_parameters: Phi-3's positions, also used by
// other classes. Versions of transformers differ in whether factor applies in addition to the
// two lengths, so it must equal their quotient, unless attention_factor gives the amplitude.
func (o *object) longrope(above *object, m *Model) device.RopeScaling {
	inside, outside := maybe(o, originalContext, 0), maybe(above, originalContext, 0)
	if m.Fused && outside == 0 {
		outside = 4096 // Phi3Config's default, which takes precedence over the inner value
	}
	if inside != 0 {
		o.sameContext(outside, inside)
	}
	s := device.RopeScaling{Kind: device.RopeLong, Context: cmp.Or(inside, outside, m.Context), Amplitude: 1}
	if s.Context < 2 {
		o.refuse("%s %d is out of range", originalContext, s.Context)
		return s
	}
	times := float64(m.Context) / float64(s.Context)
	if times > 1 {
		s.Amplitude = math.Sqrt(1 + math.Log(times)/math.Log(float64(s.Context)))
	}
	if !o.null("attention_factor") {
		s.Amplitude = o.number("attention_factor", 0, Positive)
		o.raw("factor")
	} else if f := maybe(o, "factor", times); f != times {
		o.refuse("%sfactor %v differs from max_position_embeddings %d / %s %d: programs disagree on which one applies", o.in, f, m.Context, originalContext, s.Context)
	}
	s.Factors, s.Beyond = o.factors("short_factor", m), o.factors("long_factor", m)
	return s
}

// factors reads a list of numbers, one for each rotated pair of a head.
func (o *object) factors(key string, m *Model) []float64 {
	all := get[[]float64](o, key, nil)
	if pairs := cmp.Or(m.RotaryDim, m.Head()) / 2; len(all) != pairs {
		o.refuse("%s%s has %d numbers; want one for each of the %d rotated pairs", o.in, key, len(all), pairs)
	}
	for _, x := range all {
		if !Positive(x) {
			o.refuse("%s%s has %v, which is out of range", o.in, key, x)
			break
		}
	}
	return all
}

// partial reads the rotated fraction of a head, with the class's default: at the top level, in rope_parameters, or in both.
func (o *object) partial(m *Model, part float64) {
	const key = "partial_rotary_factor"
	for _, in := range []*object{o.object("rope_scaling"), o.object("rope_parameters"), o} {
		if in != nil {
			part = maybe(in, key, part)
		}
	}
	turned := int(part * float64(m.Head()))
	switch {
	case turned == m.Head():
	case turned < 2 || turned > m.Head() || turned%2 != 0:
		o.refuse("%s %v is out of range: it rotates %d of the %d elements of a head; want an even number", key, part, turned, m.Head())
	default:
		m.RotaryDim = turned
	}
}
