# SPDX-License-Identifier: Apache-2.0
"""A riscv64 Linux machine to try a tarball on: Debian's busybox alone in a root of its own.

Two of them: in namespaces of this machine, whose kernel hands riscv64 programs to QEMU
(binfmt_misc, for these namespaces alone), and under QEMU's system emulation with Debian's kernel.
"""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from crosslab.cached_build import cached_build
from crosslab.host.toolchain import require_qemu
from crosslab.run.emulator import GuestMachine
from groundwork.hashing import digest
from support.archives import unpack
from support.shared_builds import CACHE

# The first Debian with riscv64 among its machines.
SUITE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
APPLETS = ("cat", "insmod", "ip", "mkdir", "mount", "poweroff", "sh", "uname")
KERNEL = r"linux-image-6[0-9.]+\+deb13-riscv64"
# Modules of a network card of QEMU's, in the order that they need each other.
MODULES = ("failover", "net_failover", "virtio_mmio", "virtio_net")
# The card's address in QEMU's own network, which it hands connections to.
ADDRESS = "10.0.2.15/24"
# 64-bit little-endian ELF programs and libraries for RISC-V go to the emulator in the root.
RULE = (
    r":riscv64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xf3\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:"
)
EMULATOR = "emulator/qemu-riscv64"
INSIDE = """
set -eu
mount -t binfmt_misc none "$1"
printf %s "$2" > "$1/register"
shift 2
exec "$@"
"""
INIT = """#!/bin/sh
/bin/mkdir -p /proc /tmp
/bin/mount -t proc proc /proc
{network}
/bin/uname -srm
echo answer:
{command}
/bin/poweroff -f
"""
# Bytes of the booted machine, beside its root. QEMU 7.2 holds an initrd's size against the memory
# less the address it goes to, 2.5 GiB: with less than that it loads it or not, by chance.
MEMORY = 3 << 30


def skip_unless(tools: Sequence[str], what: str) -> None:
    """Skip where one of the programs is missing."""
    missing = [name for name in tools if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{what}: {', '.join(missing)} is missing")


@cache
def unpacked(package: str, inner: str) -> Path:
    """Files of Debian's riscv64 package (a regular expression) that match ``inner``; a folder.

    By apt, against Debian's signatures, with lists and state of its own.
    """
    skip_unless(["apt-get", "apt-cache", "dpkg-deb"], "no riscv64 packages of Debian here")
    if not KEYRING.is_file():
        pytest.skip(f"no riscv64 packages of Debian here: {KEYRING} is missing")

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="apt-") as at:
            apt = _apt(Path(at))
            subprocess.run(["apt-get", *apt, "--quiet=2", "update"], check=True, timeout=300)
            search = ["apt-cache", *apt, "search", "--names-only", f"^{package}$"]
            found = subprocess.run(search, check=True, capture_output=True, text=True).stdout
            name = sorted(found.splitlines())[-1].split()[0]
            fetch = ["apt-get", *apt, "--quiet=2", "download", name]
            subprocess.run(fetch, cwd=at, check=True, timeout=600)
            (deb,) = Path(at).glob("*.deb")
            whole = Path(at) / "whole"
            subprocess.run(["dpkg-deb", "--extract", str(deb), str(whole)], check=True)
            for path in sorted(whole.rglob("*")):
                name = path.relative_to(whole)
                if path.is_file() and not path.is_symlink() and re.search(inner, str(name)):
                    (out / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(path, out / name)

    try:
        return cached_build(CACHE, f"debian-{SUITE}-riscv64", digest(package, inner), make)
    except (subprocess.SubprocessError, IndexError) as error:
        pytest.skip(f"no riscv64 package {package} of Debian to be had: {error}")


def debian_root(root: Path, packages: Sequence[str]) -> None:
    """Unpack Debian's riscv64 packages, and those they need, into a root that systemd boots.

    None is configured, as that runs riscv64 programs: the tables of users and of names are copied.
    """
    skip_unless(["apt-get", "dpkg-deb"], "no riscv64 packages of Debian here")

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="apt-") as at:
            apt = _apt(Path(at))
            subprocess.run(["apt-get", *apt, "--quiet=2", "update"], check=True, timeout=300)
            words = ["install", "--download-only", "--yes", "--no-install-recommends", *packages]
            words += ["?essential"]  # no package names these among those it needs
            subprocess.run(["apt-get", *apt, "--quiet=2", *words], check=True, timeout=900)
            for deb in Path(at).glob("cache/archives/*.deb"):
                shutil.move(deb, out)

    try:
        debs = cached_build(CACHE, f"debian-{SUITE}-root", digest(*packages), make)
    except subprocess.SubprocessError as error:
        pytest.skip(f"no riscv64 packages {', '.join(packages)} of Debian to be had: {error}")
    # The first has the links such as /bin, which the others' files go through.
    for deb in sorted(debs.glob("*.deb"), key=lambda deb: not deb.name.startswith("base-files_")):
        subprocess.run(["dpkg-deb", "--extract", str(deb), str(root)], check=True)
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    shutil.copy(root / "usr/share/libc-bin/nsswitch.conf", root / "etc")
    (root / "etc/machine-id").touch()
    (root / "var/lib/dpkg/status").touch()


def _apt(folder: Path) -> list[str]:
    """Options that part apt from this machine's own lists and packages."""
    for name in ("state/lists/partial", "cache/archives/partial", "parts"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    ask = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    known = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.split()
    archive = next((uri for uri in known if uri.rstrip("/").endswith("/debian")), "")
    if not archive:
        pytest.skip("no riscv64 packages of Debian here: apt's sources name no archive of Debian")
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {archive} {SUITE} main\n", encoding="utf-8")
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": folder / "parts",
        "Dir::Etc::preferences": folder / "none",
        "Dir::Etc::preferencesparts": folder / "parts",
        "APT::Architecture": "riscv64",
        "APT::Architectures": "riscv64",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def bare_root(root: Path, tarball: Path) -> str:
    """Fill a root: busybox, and the unpacked tarball; the path of run.sh in it."""
    (busybox,) = unpacked("busybox-static", "bin/busybox$").rglob("busybox")
    (root / "bin").mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in APPLETS:
        (root / "bin" / name).symlink_to("busybox")
    unpack(tarball, root / "home")
    (model,) = (root / "home").iterdir()
    return f"/home/{model.name}/run.sh"


def put(program: Path, root: Path, name: str) -> None:
    """Put a program of this machine into the root, with the libraries that it loads."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, root / name)
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True)
    for library in re.findall(r"(/\S+) \(0x", listed.stdout):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)


def in_namespaces(root: Path, words: Sequence[str], vlen: int) -> tuple[int, str]:
    """Run a riscv64 program in the root, as on a riscv64 machine; exit code and what it says."""
    skip_unless(["unshare", "mount", "chroot"], "no namespaces of its own can be made here")
    put(require_qemu().path, root, EMULATOR)
    chroot = str(shutil.which("chroot"))
    with tempfile.TemporaryDirectory() as at:
        enter = ["unshare", "--user", "--map-root-user", "--net", "--mount", "/bin/sh", "-c"]
        enter += [INSIDE, "sh", at, f"{RULE}/{EMULATOR}:"]
        tried = subprocess.run([*enter, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            why = " ".join(tried.stderr.split()) or f"exit code {tried.returncode}"
            pytest.skip(f"binfmt_misc in namespaces of its own (Linux 6.7 has it): {why}")
        done = subprocess.run(
            [*enter, chroot, str(root), *words],
            env={"QEMU_CPU": GuestMachine(vlen=vlen).cpu, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=900,
            check=False,
        )
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


@contextmanager
def booted(
    root: Path, words: Sequence[str], vlen: int, forward: tuple[int, int] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Boot the root with Debian's kernel and run a program; the console is the process's output.

    Args:
        root: what :func:`bare_root` filled; it is the machine's only file system.
        words: the program and its arguments, free of single quotes.
        vlen: bits in a vector register.
        forward: a port of this machine's loopback, and the port there that it leads to.
    """
    skip_unless(["qemu-system-riscv64"], "no riscv64 machine can be booted here")
    debian = unpacked(KERNEL, rf"boot/vmlinu|/({'|'.join(MODULES)})\.ko")
    (kernel,) = debian.rglob("vmlinu*")
    network, card = "", ["-nic", "none"]
    if forward:
        network = _modules(debian, root)
        network += f"/bin/ip address add {ADDRESS} dev eth0; /bin/ip link set eth0 up"
        card = [
            "-netdev",
            f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{forward[0]}-:{forward[1]}",
        ]
        card += ["-device", "virtio-net-device,netdev=net"]
    init = root / "init"
    command = " ".join(f"'{word}'" for word in words)
    init.write_text(INIT.format(command=command, network=network), encoding="utf-8")
    init.chmod(0o755)
    with tempfile.TemporaryDirectory(dir=root.parent) as at:
        initrd = Path(at) / "initrd"
        with initrd.open("wb") as stream:
            for block in _cpio(root):
                stream.write(block)
        memory = (MEMORY + 4 * initrd.stat().st_size) >> 20
        qemu = ["qemu-system-riscv64", "-M", "virt", "-cpu", GuestMachine(vlen=vlen).cpu]
        qemu += ["-m", f"{memory}M", "-nodefaults", "-nographic", "-no-reboot", *card]
        qemu += ["-serial", "stdio", "-kernel", str(kernel), "-initrd", str(initrd)]
        machine = subprocess.Popen(
            [*qemu, "-append", "console=ttyS0 quiet panic=-1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        with machine:
            try:
                yield machine
            finally:
                machine.kill()


def _modules(debian: Path, root: Path) -> str:
    """Put the network card's modules into the root; the commands that load them."""
    commands = ""
    for name in MODULES:
        (packed,) = debian.rglob(f"{name}.ko.xz")
        (root / f"{name}.ko").write_bytes(lzma.decompress(packed.read_bytes()))
        commands += f"/bin/insmod /{name}.ko\n"
    return commands


def _cpio(root: Path) -> Iterator[bytes]:
    """An initramfs of a folder: the kernel's "newc" (Documentation/driver-api/early-userspace)."""
    yield _member("dev", 0o40755)
    yield _member("dev/console", 0o20600, device=(5, 1))
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            yield _member(name, 0o120777, str(path.readlink()).encode())
        elif path.is_dir():
            yield _member(name, 0o40755)
        else:
            yield _member(name, path.stat().st_mode, path.read_bytes())
    yield _member("TRAILER!!!", 0)


def _member(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    raw = name.encode() + b"\0"
    # inode (no links: any will do), mode, owner, group, links, time, size, device of the file,
    # device that it is, length of the name, checksum.
    fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0]
    header = b"070701" + b"".join(b"%08X" % value for value in fields) + raw
    return header + b"\0" * (-len(header) % 4) + data + b"\0" * (-len(data) % 4)
