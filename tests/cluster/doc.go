// Package cluster disturbs jobs of several hosts, which are network namespaces of this
// machine on an Ethernet that drops, delays and cuts as a test says. docs/cluster.md
// has what came of it.
//
//	tests/cluster/faults.sh                       200 seeded faults
//	tests/cluster/faults.sh -seeds 8              fewer
//	tests/cluster/faults.sh -first 42 -seeds 1    one of them again
//
// What never enters: the program itself. It is built and run as users run it.
package cluster
