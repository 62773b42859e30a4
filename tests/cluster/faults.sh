#!/usr/bin/env bash
# Faults between hosts, which are network namespaces: processes that are killed or
# stopped, links that go down, drop one way, lose or delay, data connections that are
# reset or half-closed, proxies that keep connections half-open, at seeded instants. It
# needs root, iproute2 and /dev/net/tun; where it cannot have them it says so.
#
#   tests/cluster/faults.sh [-first SEED] [-seeds N] [-only KIND] [-hosts WORLDS] [-silent DURATION] [-strict]
#   RUN=TestRestart tests/cluster/faults.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
exec go test -tags faults -count 1 -timeout 2h -v ./tests/cluster -run "${RUN:-^TestFaults$}" -args "${@:--strict}"
