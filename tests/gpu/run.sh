#!/usr/bin/env bash
# run.sh [-small] [-only PARTS] [-limit 8m]: tells in one table what zeroth does on
# this machine's GPU. It lies in a folder that scripts/build-gpu-tests has made, builds
# and downloads nothing, and ends with 1 if a line of the table says FAILED. Where OUT
# names a folder, table.md and log.txt are written there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for packed in "$here"/*.gz; do
	[ ! -f "$packed" ] || gunzip -f "$packed"
done
[ -x "$here/gpu" ] || {
	echo "run.sh: $here has no program gpu: make a folder with scripts/build-gpu-tests FOLDER, and run the run.sh in it" >&2
	exit 2
}
exec "$here/gpu" "$@"
