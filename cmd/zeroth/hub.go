package main

import (
	"context"

	"zeroth/input/hub"
	"zeroth/job/config"
	"zeroth/job/setup"
)

// machine returns setup.ThisMachine for jobs whose models on the Hub are downloaded until ctx ends.
func (a *app) machine(ctx context.Context, processes, ranks int) config.Environment {
	e := setup.ThisMachine(processes, ranks)
	e.Fetch = func(name string, files hub.Files) (string, error) { return hub.Fetch(ctx, name, files, a.note) }
	return e
}

// local returns the folder of a model. One on the Hub is downloaded; any other name is returned
// unchanged.
func (a *app) local(ctx context.Context, name string, files hub.Files) (string, error) {
	if !hub.Is(name) {
		return name, nil
	}
	pinned, err := hub.Fetch(ctx, name, files, a.note)
	return hub.Folder(pinned), err
}
