package config

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"zeroth/input"
	"zeroth/offload"
)

// Offload is what leaves a rank's device memory between its uses.
type Offload struct {
	Optimizer  string  // "none", "host" or "disk": master copies and states; their gradients then rest on the host
	Parameters string  // "none", "host" or "disk": the shards, at stage 3
	Path       string  // folder of the files on disk
	Buffers    int     // pieces that are staged at once
	Ratio      float64 // of the optimizer's state that is offloaded
}

// PlacesNamed are where something can rest, in offload's order.
var PlacesNamed = []string{"none", "host", "disk"}

// PlaceOf is the place that one of PlacesNamed names.
func PlaceOf(name string) offload.Place { return offload.Place(slices.Index(PlacesNamed, name)) }

// Config is what leaves the device, without devices, queues and files.
func (o Offload) Config() offload.Config {
	return offload.Config{Optimizer: PlaceOf(o.Optimizer), Params: PlaceOf(o.Parameters), Ratio: o.Ratio, Buffers: o.Buffers}
}

// Any says whether something leaves the device.
func (o Offload) Any() bool { return o.Optimizer != "none" || o.Parameters != "none" }

// Disk says whether something leaves the device for the disk.
func (o Offload) Disk() bool { return o.Optimizer == "disk" || o.Parameters == "disk" }

// String is what is offloaded in words, empty for nothing: "optimizer on disk,
// parameters on host".
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

// OffloadPath says what is wanted where offloading lacks its folder.
const OffloadPath = "want path: an existing folder on the disk to use"

// checkOffload refuses a folder that is none.
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

// bound is a number of bytes with its unit, or auto, which is 0.
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
