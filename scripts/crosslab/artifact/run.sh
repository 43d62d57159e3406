#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run the model in this folder.
# Answer one prompt:                     ./run.sh "PROMPT" [options of ./runner]
# Chat turn by turn:                     ./run.sh chat [options of ./runner]
# Serve programs with OpenAI's protocol: ./run.sh serve [options of ./runner serve]
# Measure its speed on this machine:     ./run.sh bench [options of ./runner bench]
# Compare the files with SHA256SUMS:     ./run.sh verify
# On a computer that is not riscv64, set MLC_RVV_EMULATOR to an emulator with its options:
# MLC_RVV_EMULATOR="qemu-riscv64 -cpu rv64,v=true,vlen=256,vext_spec=v1.0"
# (append ,zfh=true,zvfh=true for an artefact whose name contains zvfh)
set -eu
self=$0
if [ -L "$self" ]; then self=$(readlink -f -- "$self"); fi
case $self in
*/*) here=${self%/*} ;;
*) here=. ;;
esac
if [ $# -lt 1 ] || [ "$1" = -h ] || [ "$1" = --help ]; then
  echo 'usage: ./run.sh "PROMPT" [options; ./runner --help lists them]' >&2
  echo '       ./run.sh chat [options; ./runner --help lists them]' >&2
  echo '       ./run.sh serve [options; ./runner serve --help lists them]' >&2
  echo '       ./run.sh bench [options; ./runner bench --help lists them]' >&2
  echo '       ./run.sh verify' >&2
  exit 2
fi
case $1 in
verify)
  if [ $# -gt 1 ]; then
    echo "run.sh: verify has no options; remove '$2'" >&2
    exit 2
  fi
  cd -- "$here"
  if ! sha256sum -c --quiet SHA256SUMS; then
    echo 'run.sh: files are damaged: copy the artefact again' >&2
    exit 1
  fi
  echo "$(wc -l <SHA256SUMS) files are as they were made"
  exit 0
  ;;
chat)
  shift
  set -- --chat "$@"
  ;;
serve)
  shift
  exec ${MLC_RVV_EMULATOR-} "$here/runner" serve --params "$here/params" \
    --tokenizer "$here/tokenizer.bin" "$@"
  ;;
bench)
  shift
  exec ${MLC_RVV_EMULATOR-} "$here/runner" bench --params "$here/params" "$@"
  ;;
*)
  prompt=$1
  shift
  set -- --prompt "$prompt" "$@"
  ;;
esac
# Unquoted: MLC_RVV_EMULATOR holds a command with options, or is empty.
exec ${MLC_RVV_EMULATOR-} "$here/runner" --params "$here/params" \
  --tokenizer "$here/tokenizer.bin" "$@"
