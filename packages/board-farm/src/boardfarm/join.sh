#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Join a tracker of TVM's RPC with this board: ./join.sh HOST:PORT --key KEY   [--help]
# A program that can connect to the tracker can run code here, so HOST is this board's end of a tunnel.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
if ! command -v python3 >/dev/null; then
  echo 'join.sh: python3 is not installed here: apt-get install python3' >&2
  exit 2
fi
PYTHONPATH=$here/agent exec python3 -m boardfarm.real_board "$@"
