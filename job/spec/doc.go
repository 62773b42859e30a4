// Package spec turns a job file into a job: it derives the settings that the file leaves open,
// rejects combinations that cannot work, and answers which network, mesh and data the job describes.
//
// Devices, running ranks and written files are outside this package.
//
// Begin with job.go: Job is a configuration with what a run finds out, and Load reads one. resolve.go
// is the order in which settings are derived; network.go is the network that a job trains.
package spec
