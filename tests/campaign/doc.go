// Package campaign tries to break the program from outside: thousands of
// damaged checkpoints, kills, odd job files and forged files, each given to the
// built binary in processes of their own. docs/lab/campaign.md has what came of it.
//
//	ZEROTH_NIGHTLY=1 go test -tags campaign -timeout 2h ./tests/campaign   all of it
//	go test -tags campaign ./tests/campaign                                a twentieth
//	go test -tags campaign ./tests/campaign -run Jobs -jobs 6000           a twentieth of more
//
// # What is held against every process
//
// It ends within 10 s and with at most 2 GB, counted twice: of memory it may
// write (RLIMIT_DATA) and of memory that is resident (polled, and the process
// killed beyond). It ends by itself, with an exit code that its command
// documents. Its output has no Go stack and no byte that a terminal would act
// upon. What is beside the folders it was given is as it was before. The trials
// add what is right in their place: TestMutations that damage is named and that
// nothing goes on from other than the newest state, TestKills that the bits are
// those of a run never killed, and so on.
//
// # One case again
//
// Every case is a subtest with a number and draws all it does from that number
// and -seed, so that one that failed is run again by its name, which a failure
// prints:
//
//	go test -tags campaign ./tests/campaign -run 'TestMutations/^123$' -seed 1 -keep
//
// -keep leaves the folder of a case that failed where the failure says. Only the
// instants of kills are the machine's: their delays are repeated, not what the
// process is at.
//
// -record FILE writes the tables of counts into a page that has places for
// them, <!-- TestMutations --> to <!-- end TestMutations -->.
package campaign
