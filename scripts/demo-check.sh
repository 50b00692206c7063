#!/bin/bash
# demo-check.sh : says which path `softrnic demo` can take here, and what would give it the better one.
# It never fails: the demo runs without privileges too.
set -eu
if [ ! -c /dev/net/tun ]; then
  echo "demo: no /dev/net/tun, so the frames stay in memory ('modprobe tun', or in a container '--device /dev/net/tun --cap-add NET_ADMIN', gives real TAPs)"
elif [ "$(id -u)" = 0 ]; then
  echo "demo: running as root"
elif [ ! -w /dev/net/tun ]; then
  echo "demo: /dev/net/tun is closed to this user, so the frames stay in memory (run as root for real TAPs)"
else
  echo "demo: not root: TAPs in a user and network namespace of its own where the kernel allows that, else in memory"
fi
