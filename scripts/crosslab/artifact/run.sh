#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ask the model that lies beside this file: ./run.sh "PROMPT" [options of ./runner]
# Talk to it turn by turn: ./run.sh chat [options of ./runner]
# or let programs ask it by OpenAI's protocol: ./run.sh serve [options of ./runner serve]
# Where the kernel cannot run riscv64 programs, MLC_RVV_EMULATOR names what can, with its
# options: MLC_RVV_EMULATOR="qemu-riscv64 -cpu rv64,v=true,vlen=256,vext_spec=v1.0"
# (with ,zfh=true,zvfh=true at the end for an artefact whose name says zvfh)
set -eu
case $0 in
*/*) here=${0%/*} ;;
*) here=. ;;
esac
if [ $# -lt 1 ] || [ "$1" = -h ] || [ "$1" = --help ]; then
  echo 'usage: ./run.sh "PROMPT" [options of ./runner; ./runner --help lists them]' >&2
  echo '       ./run.sh chat [options of ./runner]' >&2
  echo '       ./run.sh serve [options; ./runner serve --help lists them]' >&2
  exit 2
fi
case $1 in
chat)
  shift
  set -- --chat "$@"
  ;;
serve)
  shift
  exec ${MLC_RVV_EMULATOR-} "$here/runner" serve --params "$here/params" \
    --tokenizer "$here/tokenizer.bin" "$@"
  ;;
*)
  prompt=$1
  shift
  set -- --prompt "$prompt" "$@"
  ;;
esac
# Unquoted: the emulator is a command with options, or nothing.
exec ${MLC_RVV_EMULATOR-} "$here/runner" --params "$here/params" \
  --tokenizer "$here/tokenizer.bin" "$@"
