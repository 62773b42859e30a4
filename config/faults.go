package config

// Faults says what happens when processes are lost.
type Faults struct {
	Survive     bool // go on without the lost replicas
	MinReplicas int  // fewest to go on with
	Join        bool // processes that come back join
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
	}
}
