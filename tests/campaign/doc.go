// Package campaign tries to break the program from outside: thousands of damaged checkpoints,
// kills, signals and failing system calls, each met by the built binary in separate processes.
// Fuzz targets of the packages try job files and forged files. docs/lab/campaign.md has the results.
//
//	ZEROTH_NIGHTLY=1 go test -tags campaign -timeout 2h ./tests/campaign   all of it
//	go test -tags campaign ./tests/campaign                                a twentieth
//	go test -tags campaign ./tests/campaign -run Kills -kills 6000         a twentieth of more
//
// # Rules for every process
//
// It ends within 10 s and with at most 2 GB of memory, both writable (RLIMIT_DATA) and resident
// (polled; the process is killed above the limit). It ends by itself, with an exit code that its
// command documents. Its output contains no Go stack and no byte that a terminal would act on.
// Nothing next to the folders it was given has changed. The trials add their own rules: in
// TestMutations damage is named and only the newest state is resumed, in TestKills the bits are
// those of a run never killed, and so on.
//
// # Repeating a case
//
// Every case is a subtest with a number, and everything it does depends on that number and -seed.
// A failure prints the command that repeats it:
//
//	go test -tags campaign ./tests/campaign -run 'TestMutations/^123$' -seed 1 -keep
//
// With -keep the folder of a failed case is kept and printed. Only the instants of kills are not
// reproducible: the delays are repeated, but the process may be at another point.
//
// -record FILE writes the tables of counts into a page that has places for them, <!--
// TestMutations --> to <!-- end TestMutations -->.
package campaign
