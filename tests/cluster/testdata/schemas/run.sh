#!/bin/sh
# Writes tests/repo/testdata/manifests.json again: modules come through the Go module proxy.
set -e
cd "$(dirname "$0")"
go run . ../../../../examples/cluster/*.yaml >/tmp/manifests.$$
mv /tmp/manifests.$$ ../../../repo/testdata/manifests.json
