#!/bin/bash
# test-siw.sh : boots a QEMU guest with Linux siw and runs the tests named TestSiw... against it, in both
# roles. Needs root, QEMU and the siw kit (README.md there), found in $SHARED/peer or ../shared/peer. The
# kit builds kernel module and image from Debian packages once, into $SIWPEER_CACHE (its default is
# ~/.cache/siwpeer): about 80 s and 250 MB of packages.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go} TIMEOUT=${TIMEOUT:-10m}
SHARED=$(cd "${SHARED:-../shared}" 2>/dev/null && pwd) || SHARED=
scripts/need-root.sh 'make test-siw'
if [ ! -x "$SHARED/peer/build.sh" ]; then
  echo "make test-siw: no siw kit: set SHARED to the folder that holds peer/build.sh" >&2
  exit 1
fi
missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v ip >/dev/null || missing+=(iproute2)
command -v python3 >/dev/null || missing+=(python3)
if [ ${#missing[@]} -gt 0 ]; then
  echo "make test-siw: missing packages: apt-get install ${missing[*]}" >&2
  exit 1
fi
"$SHARED/peer/build.sh" "${SIW_SERIES:-6.1}"
SIWPEER_RUN=$(mktemp -d)
export SIWPEER_RUN
cleanup() { # what a killed test would leave: the guest, its namespace, its state
  "$SHARED/peer/stop.sh" peer
  ip netns del "$(cat "$SIWPEER_RUN/netns" 2>/dev/null)" 2>/dev/null || true
  rm -rf "$SIWPEER_RUN"
}
trap cleanup EXIT
SHARED=$SHARED SOFTRNIC_SIW=1 "$GO" test -count=1 -timeout "$TIMEOUT" -run '^TestSiw' -v ./integration
