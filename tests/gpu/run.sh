#!/bin/sh
# run.sh [--part 1|2|3] [--from RUNG] [--only RUNGS] [--limit 8m] [--list]: climbs the
# ladder of tests on this machine's GPU. It lies in a folder that scripts/build-gpu-tests
# has made, and builds and downloads nothing. Each rung prints its line when it ends, and
# table.md, results.jsonl and log.txt in the folder that OUT names, or else the current one,
# have all of them. Without --part, --from or --only it goes on where OUT's results end.
# The exit code is 1 if a rung failed or did not run.
# run.sh --unpack FOLDER only unpacks the programs into a new folder.
set -eu
case $0 in
*/*) here=${0%/*} ;;
*) here=. ;;
esac
here=$(cd "$here" && pwd)
[ -f "$here/carry" ] || {
	echo "run.sh: $here has no program carry: make a folder with scripts/build-gpu-tests FOLDER, and run the run.sh in it" >&2
	exit 2
}
carry=$here/carry copy=
[ -x "$carry" ] || { # it came by a way that drops modes, or onto a disk without them
	copy=${TMPDIR:-/tmp}/zeroth-carry-$$
	(umask 077 && mkdir "$copy")
	cp "$carry" "$copy/carry"
	carry=$copy/carry
	chmod 700 "$carry"
}
to=${TMPDIR:-/tmp}/zeroth-ladder-$$
[ "${1:-}" != --unpack ] || to=$2
"$carry" unpack "$to" <"$here/carried.tar.zst"
[ -z "$copy" ] || rm -r "$copy"
[ "${1:-}" != --unpack ] || exit 0
ZEROTH_LADDER=$to exec "$to/gpu" "$@" # which removes the folder
