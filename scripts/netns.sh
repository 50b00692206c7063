#!/bin/bash
# netns.sh up|down|run COMMAND... : a place for hands-on work, as root. One namespace, "rnic", with:
#
#     rn0 (TAP) ── br0 (bridge, 10.76.0.254/24) ── rn1 (TAP)
#
# Two RNICs, one on each TAP, reach each other, and the kernel at 10.76.0.254; nothing else of the
# machine is reached or touched. For example, in two terminals:
#
#     scripts/netns.sh run bin/softrnic serve ping --tap rn0 --addr 10.76.0.1/24
#     scripts/netns.sh run bin/softrnic ping 10.76.0.1 --tap rn1 --addr 10.76.0.2/24 --count 1000 --validate
set -eu
NS=${NS:-rnic}
case ${1:-} in
up)
  ip netns add "$NS"
  ip -n "$NS" link set lo up
  ip -n "$NS" link add br0 type bridge mcast_snooping 0
  # A packet filter on the bridge costs as much as the bridge.
  ip netns exec "$NS" sh -c 'for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $f ] || echo 0 >$f; done'
  ip -n "$NS" addr add 10.76.0.254/24 dev br0
  ip -n "$NS" link set br0 up
  for t in rn0 rn1; do
    ip -n "$NS" tuntap add dev "$t" mode tap
    ip -n "$NS" link set "$t" master br0 up
  done
  ;;
down) ip netns del "$NS" ;;
run)
  shift
  exec ip netns exec "$NS" "$@"
  ;;
*)
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
