package flight

import "testing"

func TestWhere(t *testing.T) {
	for want, d := range map[string]Dump{
		"has not communicated yet": dump(0, 2),
		"has been in all-gather of 96 fp32 (unit h.0: gather) of step 3 for 5s":        dump(0, 2, op(0, 0, "done"), op(0, 1, "started"), op(0, 2, "issued")),
		"has computed for 4s since all-gather of 96 fp32 (unit h.0: gather) of step 3": dump(0, 2, op(0, 0, "done"), op(0, 1, "done"), op(0, 2, "issued")),
	} {
		if got := d.Where(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
