#!/bin/bash
# test-netns.sh : runs the tests named TestNetns... as root. They make their own network namespaces, TAPs
# and bridges, and leave nothing behind. Where the caller is not root but has sudo, only the built test
# binaries run as root, never the compiler.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go} TIMEOUT=${TIMEOUT:-10m}
exec=()
if [ "$(id -u)" = 0 ]; then
  scripts/need-root.sh 'make test-netns'
elif sudo -n true 2>/dev/null; then
  exec=(-exec 'sudo -n --preserve-env=CI')
else
  echo "make test-netns: needs root for network namespaces, TAPs and a bridge. Run it as root, or with sudo set up without a password." >&2
  exit 1
fi
# Only packages that have such tests; in one run, as the namespaces are all their own.
pkgs=$(grep -rl --include='*_test.go' '^func TestNetns' . | xargs -n1 dirname | sort -u)
[ -n "$pkgs" ] || { echo "make test-netns: no TestNetns found" >&2; exit 1; }
# -p 1: the two cores are busy enough with one of them.
# shellcheck disable=SC2086
"$GO" test -p 1 -count=1 -timeout "$TIMEOUT" "${exec[@]}" -run '^TestNetns' -v $pkgs
