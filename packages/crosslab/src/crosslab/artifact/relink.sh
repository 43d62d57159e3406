#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Link the runner again, with another or a changed C library: the runner contains the GNU C
# library, whose license (LGPL 2.1, section 6) gives you that right. Usage: ./relink.sh [OUTPUT FILE]
# CXX sets the compiler and its options. LDFLAGS sets options that come before the compiler's
# own libraries, such as LDFLAGS="-L/folder/of/my/libc.a". If neither is set and the compiler
# and its libraries are those that MANIFEST.json names, the result equals the model's runner byte
# for byte.
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
tar -xf "$here/model.tar" -C model
# Unquoted: both may hold several options.
${CXX-clang++} @link.txt ${LDFLAGS-} -o "$out"
