package world

// At is where a process accepts data by TCP, until all are connected.
func (w *World) At(process int) string { return w.star.Members[process].TCP }
