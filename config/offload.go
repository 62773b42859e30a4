package config

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/config/tree"
	"zeroth/offload"
)

// Offload selects what is moved out of device memory between uses.
type Offload struct {
	Optimizer  string  // "none", "host" or "disk": master copies and optimizer states; if offloaded, their gradients are on the host
	Parameters string  // "none", "host" or "disk": the shards, at stage 3
	Path       string  // folder of the files on disk
	Buffers    int     // pieces staged at the same time
	Ratio      float64 // offloaded fraction of the optimizer state
}

// TierNames lists the names of offload's places, in its order.
var TierNames = []string{"none", "host", "disk"}

// TierOf returns the tier with a name in TierNames.
func TierOf(name string) offload.Tier { return offload.Tier(slices.Index(TierNames, name)) }

// Config returns the offload configuration without devices, queues and files.
func (o Offload) Config() offload.Config {
	return offload.Config{Optimizer: TierOf(o.Optimizer), Params: TierOf(o.Parameters), Ratio: o.Ratio, Buffers: o.Buffers}
}

// Any reports whether anything is offloaded.
func (o Offload) Any() bool { return o.Optimizer != "none" || o.Parameters != "none" }

// Disk reports whether anything is offloaded to disk.
func (o Offload) Disk() bool { return o.Optimizer == "disk" || o.Parameters == "disk" }

// String describes what is offloaded, empty for nothing: "optimizer on disk, parameters on host".
func (o Offload) String() string {
	var parts []string
	if o.Optimizer != "none" && o.Ratio < 1 {
		parts = append(parts, fmt.Sprintf("%s of the optimizer on %s", FormatReal(o.Ratio), o.Optimizer))
	} else if o.Optimizer != "none" {
		parts = append(parts, "optimizer on "+o.Optimizer)
	}
	if o.Parameters != "none" {
		parts = append(parts, "parameters on "+o.Parameters)
	}
	return strings.Join(parts, ", ")
}

// OffloadPath is the advice given when offloading needs a folder.
const OffloadPath = "want path: an existing folder on the disk to use"

func fraction(x float64) bool { return x >= 0 && x <= 1 }

// bound is a number of bytes with its unit, or auto, stored as 0.
type bound struct{ p *int64 }

func (v bound) set(n *tree.Node) string {
	if n.Kind == tree.Scalar && n.Text == "auto" {
		*v.p = 0
		return ""
	}
	if n.Kind == tree.Scalar {
		if b, err := ParseSize(n.Text); err == nil {
			*v.p = b
			return ""
		}
	}
	return n.String() + " is not a number of bytes"
}

func (v bound) want() string { return "auto, or a number with its unit, such as 512MiB or 4GB" }
func (v bound) yaml() string {
	if *v.p == 0 {
		return "auto"
	}
	for _, u := range memoryUnits {
		if one := int64(u.bytes); *v.p%one == 0 {
			return fmt.Sprintf("%d%s", *v.p/one, u.name)
		}
	}
	panic("config: a size that is no multiple of a byte")
}

// memoryUnits lists the units of memory. A bare G is rejected as ambiguous.
var memoryUnits = []struct {
	name  string
	bytes float64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// ParseSize reads a number of bytes with its unit, such as 80GiB or 80GB.
func ParseSize(s string) (int64, error) {
	for _, u := range memoryUnits {
		at := len(s) - len(u.name)
		if at < 0 || !strings.EqualFold(s[at:], u.name) {
			continue
		}
		x, wrong := tree.Number(&tree.Node{Kind: tree.Scalar, Text: strings.TrimSpace(s[:at])})
		if b := x * u.bytes; wrong == "" && b >= 1 && b <= MostMemory {
			return int64(b), nil
		}
		break
	}
	return 0, fmt.Errorf("%q is not a size; want a number with its unit, such as 80GiB (2^30 bytes) or 80GB (10^9)", s)
}
