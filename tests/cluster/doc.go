// Package cluster disturbs jobs on several hosts with one to three processes each. Hosts are
// network namespaces of this machine on an Ethernet that can lose and delay frames and cut links,
// optionally with a proxy in between. docs/lab/cluster.md has the results.
//
//	tests/cluster/faults.sh                       240 seeded faults
//	tests/cluster/faults.sh -seeds 12             one of each kind
//	tests/cluster/faults.sh -first 42 -seeds 1    one of them again
//	RUN=TestDamage tests/cluster/faults.sh -seeds 100    flipped bits that TCP does not notice
//	RUN=TestLosses tests/cluster/faults.sh -losses 60    what is lost joins again, for a job of 12 ranks
//
// The program is built and run as users run it.
package cluster
