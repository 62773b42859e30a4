package config

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"zeroth/input"
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
		parts = append(parts, fmt.Sprintf("%s of the optimizer on %s", formatReal(o.Ratio), o.Optimizer))
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

// checkOffload rejects a path that is not an existing folder.
func (r *reader) checkOffload() {
	o := r.Config.Zero.Offload
	if !o.Disk() || o.Path == "" {
		return
	}
	switch info, err := os.Stat(o.Path); {
	case err != nil:
		r.refuse(fmt.Sprintf("%s: %v", o.Path, input.Cause(err)), OffloadPath, "zero.offload.path")
	case !info.IsDir():
		r.refuse(o.Path+" is not a folder", OffloadPath, "zero.offload.path")
	}
}

func fraction(x float64) bool { return x >= 0 && x <= 1 }

// bound is a number of bytes with its unit, or auto, stored as 0.
type bound struct{ p *int64 }

func (v bound) set(n *node) string {
	if n.kind == scalar && n.text == "auto" {
		*v.p = 0
		return ""
	}
	if n.kind == scalar {
		if b, err := ParseSize(n.text); err == nil {
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
