#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run the model in this folder.
# Answer one prompt:                     ./run.sh "PROMPT" [options of ./runner]
# Chat turn by turn:                     ./run.sh chat [options of ./runner]
# Serve programs with OpenAI's protocol: ./run.sh serve [options of ./runner serve]
# Measure its speed on this machine:     ./run.sh bench [options of ./runner bench]
# Serve from now on, as a service of systemd for this user, and stop doing so:
#                                        ./run.sh install --user [options of ./runner serve]
#                                        ./run.sh uninstall --user
# Download another model beside this one, go on after an interruption, and check its files:
#                                        ./run.sh pull URL [SHA256]
# Compare the files with SHA256SUMS:     ./run.sh verify
# On a computer that is not riscv64, set MLC_RVV_EMULATOR to an emulator with its options, which
# README.md has: their names depend on the version of QEMU.
set -eu
self=$0
if [ -L "$self" ]; then self=$(readlink -f -- "$self"); fi
case $self in
*/*) here=${self%/*} ;;
*) here=. ;;
esac

fail() { # EXIT_CODE MESSAGE
  echo "run.sh: $2" >&2
  exit "$1"
}

usage() {
  echo 'usage: ./run.sh "PROMPT" [options; ./runner --help lists them]'
  echo '       ./run.sh chat [options; ./runner --help lists them]'
  echo '       ./run.sh serve [options; ./runner serve --help lists them]'
  echo '       ./run.sh bench [options; ./runner bench --help lists them]'
  echo '       ./run.sh install --user [options of serve]'
  echo '       ./run.sh uninstall --user'
  echo '       ./run.sh pull URL [SHA256]'
  echo '       ./run.sh verify'
  echo '       ./run.sh -- "PROMPT" [options], if the prompt looks like an option or a command'
}

# True if a letter is missing, added, wrong or swapped with the next one: WORD VERB
# With the shell alone: a board may have no other tool.
is_near() {
  a=$1 b=$2
  while [ "$a" ] && [ "${a%"${a#?}"}" = "${b%"${b#?}"}" ]; do a=${a#?} b=${b#?}; done
  case ${b#?} in "$a" | "${a#?}") return 0 ;; esac
  [ "${a#?}" = "$b" ] && return 0
  c=${a#?}
  [ "${a#??}" = "${b#??}" ] && [ "${c%"${c#?}"}${a%"$c"}" = "${b%"${b#??}"}" ]
}

# Refuse a first word that is an option or a misspelt command, which the model would get as a prompt.
check_prompt() { # WORD
  case $1 in
  -*) fail 2 "options come after the prompt. For a prompt that begins with -, type ./run.sh -- '$1'" ;;
  esac
  for verb in chat serve bench install uninstall pull verify; do
    ! is_near "$1" "$verb" ||
      fail 2 "there is no command '$1'; did you mean $verb? For the prompt '$1', type ./run.sh -- '$1'"
  done
}

# Refuse another kind of computer: the shell of busybox would read the runner as a script.
check_computer() {
  machine=$(uname -m 2>/dev/null) || machine=riscv64
  [ "$machine" != riscv64 ] && [ -z "${MLC_RVV_EMULATOR-}" ] || return 0
  for handler in /proc/sys/fs/binfmt_misc/*riscv64*; do
    [ ! -e "$handler" ] || return 0
  done
  fail 2 "the runner is a riscv64 program, and this computer is $machine. Copy the folder to the
board, or name an emulator first; README.md has the lines:
$(grep -hs '^ *export MLC_RVV_EMULATOR=' "$here/README.md")"
}

# Download the rest of a file: URL PART
fetch() {
  if command -v curl >/dev/null 2>&1; then
    curl --fail --location --show-error --continue-at - --output "$2" -- "$1" || {
      # 33: the server sends only whole files, as that of Python does.
      [ $? = 33 ] || return 1
      rm -- "$2"
      curl --fail --location --show-error --output "$2" -- "$1"
    }
  elif command -v wget >/dev/null 2>&1; then
    wget -c -O "$2" -- "$1"
  else
    fail 1 'there is neither curl nor wget: install one, or copy the tarball by hand'
  fi
}

# Download a tarball of an artefact, and unpack it beside this folder: URL [SHA256]
pull() {
  [ $# = 1 ] || [ $# = 2 ] || fail 2 'type ./run.sh pull URL [SHA256]'
  tarball=${1##*/}
  name=${tarball%.tar}
  case $1 in http://?*/?* | https://?*/?*) ;; *) fail 2 "'$1' is not a URL of http or https" ;; esac
  case $name in
  "$tarball" | '' | .* | -* | *[!A-Za-z0-9._-]*)
    fail 2 "'$tarball' is not the name of a tarball: the URL ends with NAME.tar, as nox -s package wrote it" ;;
  esac
  sha256=${2-}
  case $sha256 in *[!0-9A-Fa-f]*) digits= ;; *) digits=${#sha256} ;; esac
  [ $# = 1 ] || [ "$digits" = 64 ] ||
    fail 2 "'$sha256' is not a SHA-256: give 64 hexadecimal digits"
  cd -- "$here/.."
  [ ! -e "$name" ] || fail 2 "$PWD/$name is there already; to download it again, remove it"
  # A tarball that lies there may be an older one.
  whole=.$tarball.whole
  if [ ! -e "$whole" ]; then
    [ ! -e "$tarball.part" ] || echo "going on at $(($(wc -c <"$tarball.part"))) bytes"
    fetch "$1" "$tarball.part" ||
      fail 1 "the download did not end; type the command again, and it goes on"
    mv -- "$tarball.part" "$whole"
  fi
  [ -z "$sha256" ] || echo "$sha256  $whole" | sha256sum -c - >/dev/null 2>&1 || {
    rm -- "$whole"
    fail 1 "the download has another SHA-256 than $sha256; it was deleted, type the command again"
  }
  scratch=.$name.new
  rm -rf -- "$scratch"
  mkdir -- "$scratch"
  # Only one folder, with the name of the tarball, and all its files as SHA256SUMS says.
  if ! { tar -xf "$whole" -C "$scratch" && [ "$(ls -A "$scratch")" = "$name" ] &&
    (cd -- "$scratch/$name" && sha256sum -c SHA256SUMS >/dev/null); }; then
    rm -rf -- "$scratch" "$whole"
    fail 1 "the download is damaged, or the disk is full; it was deleted, type the command again"
  fi
  mv -- "$scratch/$name" "$name"
  rm -r -- "$scratch" "$whole"
  echo "all files are as they were made; type $PWD/$name/run.sh chat"
}

unit=mlc-rvv.service

# Set folder (the real path of this one) and target (of the installed unit), or end: VERB [--user]
find_service() {
  [ "${2-}" = --user ] ||
    fail 2 "$1 needs --user: type ./run.sh $1 --user (a service of this user, without root)"
  command -v systemctl >/dev/null 2>&1 ||
    fail 1 'this system has no systemd (systemctl is missing): start the server with ./run.sh serve'
  systemctl --user show-environment >/dev/null 2>&1 ||
    fail 1 "systemd does not manage services of $(id -un) in this session: log in as $(id -un), \
not by su or sudo, or start the server with ./run.sh serve"
  folder=$(cd -- "$here" && pwd -P)
  target=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/$unit
}

# Print a text as one word of a unit's command line.
quoted() {
  printf '"%s"' "$(printf %s "$1" | sed 's/[\\"]/\\&/g; s/[%$]/&&/g')"
}

# By sh: systemd escapes the path of a program otherwise than its arguments.
start_of_line() { printf 'ExecStart=/bin/sh %s' "$(quoted "$folder/run.sh")"; }

# Print the words of serve, where paths do not depend on the folder that run.sh is called in.
service_options() {
  file=
  for word; do
    if [ "$file" ]; then
      case $word in /*) ;; *) word=$PWD/$word ;; esac
    fi
    case $word in --api-key-file | --alias-file | --cache-dir | --map-params | --models | --params | --tokenizer | --lib) file=1 ;; *) file= ;; esac
    printf ' '
    quoted "$word"
  done
}

install_service() { # --user OPTIONS
  find_service install "$@"
  shift
  [ -z "${MLC_RVV_EMULATOR-}" ] ||
    fail 2 'install needs a riscv64 computer: MLC_RVV_EMULATOR is set; unset it, or use serve'
  check_computer
  case "$folder$*" in *'
'*) fail 2 'a path or an option contains a line break; a service cannot use it' ;; esac
  line="$(start_of_line) serve$(service_options "$@")"
  mkdir -p -- "${target%/*}"
  while IFS= read -r one; do
    case $one in ExecStart=*) one=$line ;; esac
    printf '%s\n' "$one"
  done <"$folder/$unit" >"$target.new"
  mv -- "$target.new" "$target"
  systemctl --user daemon-reload
  systemctl --user enable --quiet "$unit"
  echo "installed $target; loading the model ..."
  if ! systemctl --user restart "$unit"; then
    journalctl --user -u "$unit" -n 5 -o cat >&2 || :
    fail 1 'the service does not start; its last lines are above. Type ./run.sh install --user
again with other options, or ./run.sh uninstall --user'
  fi
  echo "the server runs; its log: journalctl --user -u $unit"
  if [ "$(loginctl show-user "$(id -un)" -p Linger --value 2>/dev/null)" != yes ]; then
    echo "it stops when you log out; to keep it, and to start it with the board: loginctl enable-linger"
  fi
}

uninstall_service() { # --user
  find_service uninstall "$@"
  [ $# = 1 ] || fail 2 "uninstall --user has no more options; remove '$2'"
  [ -e "$target" ] || fail 1 "there is no $target: nothing to remove"
  grep -qF -- "$(start_of_line) " "$target" ||
    fail 1 "$target serves another folder; use the run.sh of that one:
$(grep '^ExecStart=' -- "$target")"
  systemctl --user disable --quiet --now "$unit"
  rm -- "$target"
  systemctl --user daemon-reload
  echo "removed $target"
}

if [ $# -lt 1 ]; then
  usage >&2
  exit 2
fi
case $1 in
-h | --help | help)
  usage
  exit 0
  ;;
verify)
  [ $# = 1 ] || fail 2 "verify has no options; remove '$2'"
  cd -- "$here"
  # Without long options, which sha256sum of busybox lacks.
  lines=$(sha256sum -c SHA256SUMS) || {
    printf '%s\n' "$lines" | grep -Ev '^$|: OK$' || :
    fail 1 'files are damaged: copy the artefact again'
  }
  echo "$(wc -l <SHA256SUMS) files are as they were made"
  exit 0
  ;;
pull)
  shift
  pull "$@"
  exit 0
  ;;
install)
  shift
  install_service "$@"
  exit 0
  ;;
uninstall)
  shift
  uninstall_service "$@"
  exit 0
  ;;
chat)
  shift
  set -- --chat "$@"
  ;;
serve)
  shift
  check_computer
  exec ${MLC_RVV_EMULATOR-} "$here/runner" serve --params "$here/params" \
    --tokenizer "$here/tokenizer.bin" "$@"
  ;;
bench)
  shift
  check_computer
  exec ${MLC_RVV_EMULATOR-} "$here/runner" bench --params "$here/params" "$@"
  ;;
*)
  if [ "$1" = -- ]; then
    shift
    [ $# -gt 0 ] || fail 2 'the prompt is missing after --'
  else
    check_prompt "$1"
  fi
  prompt=$1
  shift
  set -- --prompt "$prompt" "$@"
  ;;
esac
check_computer
# Unquoted: MLC_RVV_EMULATOR holds a command with options, or is empty.
exec ${MLC_RVV_EMULATOR-} "$here/runner" --params "$here/params" \
  --tokenizer "$here/tokenizer.bin" "$@"
