package collective_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"zeroth/collective"
)

// TestReasonsOnWires checks that decoded reasons are the errors that callers distinguish, with
// bounded length.
func TestReasonsOnWires(t *testing.T) {
	late := collective.ErrLate{Wait: collective.Wait{Rank: 1, For: []int{2}, GroupName: "shard", Operation: collective.Operation{Group: 1, Seq: 7, Op: "all-gather"}}, Limit: time.Second, Stuck: "rank 3"}
	for _, why := range []error{collective.ErrPeerLost{Rank: 70000}, late, collective.ErrDiverged("operation 1: rank 2 calls"), errors.New("disk full")} {
		if got := collective.DecodeReason(collective.EncodeReason(why)); !reflect.DeepEqual(got, why) {
			t.Errorf("%#v becomes %#v", why, got)
		}
	}
	long := strings.Repeat("x", 2*collective.ReasonLen)
	for _, why := range []error{errors.New(long), collective.ErrDiverged(long), collective.ErrLate{Stuck: long}} {
		if n := len(collective.EncodeReason(why)); n > collective.ReasonLen {
			t.Errorf("%T: %d bytes", why, n)
		}
	}
	for _, b := range []string{"", "r", "r12345", "t{", "e", "zz"} {
		if err := collective.DecodeReason([]byte(b)); err == nil {
			t.Errorf("%q is no reason", b)
		}
	}
}
