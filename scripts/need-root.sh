#!/bin/bash
# need-root.sh WHAT : fails with the remedy unless run as root with /dev/net/tun at hand.
set -eu
if [ "$(id -u)" != 0 ]; then
  echo "$1: needs root for network namespaces, TAPs and a bridge. Run it as root." >&2
  exit 1
fi
if [ ! -c /dev/net/tun ]; then
  echo "$1: no /dev/net/tun. Try 'modprobe tun'; in a container add '--device /dev/net/tun --cap-add NET_ADMIN'." >&2
  exit 1
fi
