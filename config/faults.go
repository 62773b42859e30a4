package config

// Faults says what happens when processes are lost.
type Faults struct {
	Survive     bool    // go on without the lost replicas
	MinReplicas int     // fewest to go on with
	Join        bool    // processes that come back join
	LeaveBehind float64 // go on without a replica that prolongs steps by this part of their time (2 triples it); 0: never
}

// faultKeys returns the keys of losses.
func (c *Config) faultKeys() []field {
	f := &c.Faults
	return []field{
		{key: "faults.survive", value: flag(&f.Survive), initial: "false",
			doc: "when a process is lost, go on without the replicas that it belonged to, in the same step; " +
				"their samples go to the others"},
		{key: "faults.min_replicas", value: count(&f.MinReplicas, 1, MostRanks), initial: "1",
			doc:  "fewest replicas to go on with; fewer, or no majority of the last ones, end the run as without survive",
			only: onlyIf("with faults.survive", f.Survive, "faults.survive", "the run ends with the first loss")},
		{key: "faults.join", value: flag(&f.Join), initial: "false",
			doc: "take in processes that come back, between two steps: they get the state from the others, and their replica its samples; " +
				"launch starts lost processes again",
			only: onlyIf("with faults.survive", f.Survive, "faults.survive", "the run ends with the first loss")},
		{key: "faults.leave_behind", value: least0(&f.LeaveBehind), initial: "0", like: "2",
			doc: "go on without a replica that is this far behind (as in metrics.jsonl; 2: steps take three times as long) " +
				"in 20 of the last 100 steps, if more than half of the replicas stay; launch does not start it again; 0: never",
			only: onlyIf("with faults.survive", f.Survive, "faults.survive", "slow replicas are not left out")},
	}
}
