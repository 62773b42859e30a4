#!/bin/sh
# run.sh [--part 1|2|3] [--from RUNG] [--only RUNGS] [--limit 8m] [--list]: climbs the
# ladder of tests on this machine's GPU. It lies in a folder that scripts/build-gpu-tests
# has made, and builds and downloads nothing. Each rung prints its line when it ends, and
# table.md, results.jsonl and log.txt in the folder that OUT names, or else the current one,
# have all of them. Without --part, --from or --only it goes on where OUT's results end.
# The exit code is 1 if a rung failed or did not run.
set -eu
case $0 in
*/*) here=${0%/*} ;;
*) here=. ;;
esac
here=$(cd "$here" && pwd)
[ -f "$here/gpu" ] || {
	echo "run.sh: $here has no program gpu: make a folder with scripts/build-gpu-tests FOLDER, and run the run.sh in it" >&2
	exit 2
}
ZEROTH_LADDER=$here
export ZEROTH_LADDER
[ ! -x "$here/gpu" ] || exec "$here/gpu" "$@"
# It came by a way that drops modes, or onto a disk without them.
copy=${TMPDIR:-/tmp}/zeroth-ladder-$$
(umask 077 && mkdir "$copy")
cp "$here/gpu" "$copy/gpu"
chmod 700 "$copy/gpu"
code=0
"$copy/gpu" "$@" || code=$?
rm -r "$copy"
exit $code
