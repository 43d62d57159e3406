#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Link the runner anew, with another C library or a changed one: the GNU C library in it is
# under the LGPL, which gives you that right. ./relink.sh [FILE TO WRITE]
# CXX: the compiler, with its options; LDFLAGS: what comes before its own libraries, such as
# LDFLAGS="-L/where/my/libc.a/is". With neither, the result is ../runner again, byte for byte,
# where compiler and libraries are those that MANIFEST.json names.
set -eu
out=${1-runner}
case $0 in
*/*) here=$(cd "${0%/*}" && pwd) ;;
*) here=$PWD ;;
esac
case $out in
/*) ;;
*) out=$PWD/$out ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
cd "$scratch"
mkdir model
tar -xf "$here/objects.tar"
tar -xf "$here/../model.tar" -C model
# Unquoted: both may hold options.
${CXX-clang++} @link.txt ${LDFLAGS-} -o "$out"
