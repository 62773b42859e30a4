package world

import "zeroth/collective/rendezvous"

// At is where a process accepts data by TCP, until all are connected.
func (w *World) At(process int) string { return w.star.Members[process].TCP }

// Numbers are those of hosts, for tests.
func Numbers(all []rendezvous.Member) []int { return numbers(all) }

// Sees are the names of what this process sees, for tests.
func Sees(folder string) []string { return sees(folder) }
