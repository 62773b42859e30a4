package main

import (
	"context"

	"zeroth/internal/input/hub"
	"zeroth/internal/input/s3"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/state"
)

// machine returns setup.ThisMachine for jobs whose models on the Hub are downloaded until ctx ends.
func (a *app) machine(ctx context.Context, processes, ranks int) spec.Environment {
	e := setup.ThisMachine(processes, ranks)
	e.Fetch = func(name string, files hub.Files) (string, error) { return hub.Fetch(ctx, name, files, a.note) }
	return e
}

// local returns the folder of a model. One on the Hub or in object storage is downloaded; any other name,
// also that of a checkpoint in object storage, is returned unchanged.
func (a *app) local(ctx context.Context, name string, files hub.Files) (string, error) {
	if !hub.Is(name) {
		return name, nil
	}
	if s3.Is(name) {
		if _, err := state.FindCheckpoint(name); err == nil {
			return name, nil
		}
	}
	pinned, err := hub.Fetch(ctx, name, files, a.note)
	return hub.Folder(pinned), err
}
