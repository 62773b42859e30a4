package collective

import "zeroth/device"

// Dry is a rank of a group whose other ranks do not exist: its operations move
// nothing. On a device that only counts that is what they should do.
type Dry struct{ At, Of int }

func (d Dry) Rank() int                                        { return d.At }
func (d Dry) Size() int                                        { return d.Of }
func (d Dry) AllGather(_ device.Queue, _, _ device.Buffer)     {}
func (d Dry) ReduceScatter(_ device.Queue, _, _ device.Buffer) {}
func (d Dry) Close() error                                     { return nil }
