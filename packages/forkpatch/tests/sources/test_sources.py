# SPDX-License-Identifier: Apache-2.0
"""The same tree from every source; refusal of forged and incomplete sources."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forklab import CORE, FILES, ForkLab, Repo, core, git, make_wheel, start

from forkpatch.git.calls import GitError, init_repository
from forkpatch.git.objects import read_blobs
from forkpatch.model.lock import read_lock
from forkpatch.sources.cache import Cache
from forkpatch.sources.repository import fetch


def source_of(lab: ForkLab, *args: str) -> str:
    (one,) = lab.ok("apply", "--json", "-", *args).json["upstreams"]
    return str(one["source"])


def drop_tree(lab: ForkLab) -> None:
    shutil.rmtree(lab.root / ".work", ignore_errors=True)


def test_wheel_and_git_give_one_and_the_same_tree(lab: ForkLab, tmp_path: Path) -> None:
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    trees = {}
    for source in ("wheel", "git"):
        lab.forget()
        drop_tree(lab)
        (one,) = lab.ok("apply", "--json", "-", "--source", f"calc={source}").json["upstreams"]
        assert one["source"] == ("wheel" if source == "wheel" else "mirror") or source == "git"
        trees[source] = one["tree"]
    assert trees["wheel"] == trees["git"]
    assert source_of(lab, "--source", "calc=wheel") == "wheel"


def test_wheel_whose_content_differs_from_git_is_named_by_lock(
    lab: ForkLab, tmp_path: Path
) -> None:
    other = {**FILES, "python/calc/core.py": core(mul="a"), "python/calc/more.py": b""}
    lab.write_lock(wheel=make_wheel(tmp_path / "wheels", other))
    done = lab.run("lock")
    assert done.code == 1
    assert "the wheel and git give different trees" in done.err
    assert "python/calc/core.py differs" in done.err
    assert "only the wheel has python/calc/more.py" in done.err


def test_wheel_with_another_hash_stops_everything(lab: ForkLab, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", FILES)
    lab.locked(wheel=wheel)
    lab.forget()
    make_wheel(tmp_path / "wheels", {**FILES, "LICENSE": b"changed\n"})
    done = lab.run("apply", "--source", "calc=wheel")
    assert done.code == 1
    assert "is pinned" in done.err and "sha256" in done.err
    assert not lab.tree.exists()


@pytest.mark.parametrize("member", ["../evil.py", "/etc/evil.py", "calc/../../evil", "calc/.git/x"])
def test_wheel_with_a_hostile_member_is_refused(lab: ForkLab, tmp_path: Path, member: str) -> None:
    wheel = make_wheel(tmp_path / "wheels", FILES)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(member, b"evil")
    lab.write_lock(wheel=wheel)
    done = lab.run("lock")
    assert done.code == 1
    assert "refused path" in done.err and member in done.err


def test_mirror_is_remembered_and_its_objects_are_kept(lab: ForkLab, tmp_path: Path) -> None:
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    lab.forget()
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--bare", str(lab.repo.path), str(clone))
    assert source_of(lab, "--mirror", f"calc={clone}") == "mirror"
    shutil.rmtree(clone)
    drop_tree(lab)
    assert source_of(lab, "--offline") == "cache (mirror)"


def test_mirror_that_was_not_needed_is_told(lab: ForkLab) -> None:
    told = "--mirror calc: remembered, but not used now: 1.0 is in the cache"
    assert told not in lab.ok("apply").err
    mirror = f"calc={lab.repo.path}"
    assert told in lab.ok("apply", "--mirror", mirror).err
    shutil.rmtree(lab.root / ".work")
    assert told in lab.ok("apply", "--mirror", mirror).err  # the cache has it


def test_remembered_mirror_serves_after_the_trees_are_lost(
    lab: ForkLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    monkeypatch.chdir(lab.repo.path.parent)
    lab.ok("apply", "--mirror", f"calc={lab.repo.path.name}")
    monkeypatch.chdir("/")
    lab.forget(mirrors=False)
    drop_tree(lab)
    assert source_of(lab) == "mirror"


def partial_clone(lab: ForkLab, target: Path, *, keep: tuple[str, ...]) -> Path:
    """A clone without the contents of files, but those below ``keep``; its origin is gone."""
    git(lab.repo.path, "config", "uploadpack.allowFilter", "true")
    git(lab.repo.path, "config", "uploadpack.allowAnySHA1InWant", "true")
    url = f"file://{lab.repo.path}"
    git(target.parent, "clone", "-q", "--no-checkout", "--filter=blob:none", url, str(target))
    for line in git(target, "ls-tree", "-r", "HEAD", "--", *keep).splitlines():
        git(target, "cat-file", "blob", line.split()[2])
    git(target, "config", "remote.origin.url", f"file://{lab.repo.path}-gone")
    return target


def test_partial_mirror_serves_when_it_has_the_included_paths(lab: ForkLab, tmp_path: Path) -> None:
    mirror = partial_clone(lab, tmp_path / "mirror", keep=("python", "src/run.c", "LICENSE"))
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    lab.forget()
    assert source_of(lab, "--mirror", f"calc={mirror}") == "mirror"
    assert (lab.tree / "python/calc/core.py").read_bytes() == CORE


def test_partial_mirror_that_lacks_an_included_file_says_so(lab: ForkLab, tmp_path: Path) -> None:
    mirror = partial_clone(lab, tmp_path / "mirror", keep=("src",))
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    lab.forget()
    done = lab.run("apply", "--mirror", f"calc={mirror}")
    assert done.code == 2
    assert f"mirror {mirror}: it is partial and lacks" in done.err


def test_mirror_with_objects_deleted_outside_the_paths_serves(lab: ForkLab, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    git(tmp_path, "clone", "-q", "--no-local", "--bare", str(lab.repo.path), str(mirror))
    pack = next((mirror / "objects/pack").glob("*.pack"))
    moved = pack.rename(tmp_path / "pack")
    for other in (mirror / "objects/pack").iterdir():
        other.unlink()
    git(mirror, "unpack-objects", "-q", stdin=moved.read_bytes())
    readme = git(mirror, "rev-parse", "HEAD:README.md")
    (mirror / "objects" / readme[:2] / readme[2:]).unlink()
    lab.forget()
    assert source_of(lab, "--mirror", f"calc={mirror}") == "mirror"


def test_shallow_mirror_serves(lab: ForkLab, tmp_path: Path) -> None:
    url = f"file://{lab.repo.path}"
    lab.repo.commit({"README.md": b"more\n"}, "More")
    lab.locked(tag="")
    git(tmp_path, "clone", "-q", "--depth=1", url, str(tmp_path / "shallow"))
    lab.forget()
    assert source_of(lab, "--mirror", f"calc={tmp_path}/shallow") == "mirror"


def test_branch_with_the_name_of_the_commit_does_not_mislead(lab: ForkLab) -> None:
    pinned = lab.repo.head
    lab.repo.commit({"LICENSE": b"another\n"}, "Later")
    for name in (pinned, "v1.0"):
        git(lab.repo.path, "update-ref", f"refs/heads/{name}", "HEAD")
    lab.forget()
    lab.ok("apply", "--mirror", f"calc={lab.repo.path}")
    assert (lab.tree / "LICENSE").read_bytes() == FILES["LICENSE"]
    assert lab.ok("lock", "--check").code == 0


@pytest.fixture
def served(lab: ForkLab) -> Iterator[str]:
    """The upstream's URL on a git server of this machine."""
    for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        git(lab.repo.path, "config", key, "true")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = f"--base-path={lab.repo.path.parent}"
    command = ["git", "daemon", "--export-all", "--listen=127.0.0.1", f"--port={port}", base]
    server = subprocess.Popen(
        [*command, "--reuseaddr", "--verbose", str(lab.repo.path)],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stderr is not None
    assert b"Ready to rumble" in server.stderr.readline()
    yield f"git://127.0.0.1:{port}/upstream"
    os.killpg(server.pid, signal.SIGKILL)  # git runs the daemon as its child
    server.communicate()


def test_url_is_fetched_sparse_and_pinned(lab: ForkLab, served: str, tmp_path: Path) -> None:
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{served}"')
    lab.repo.commit({"LICENSE": b"another\n"}, "Later")
    lab.forget()
    assert source_of(lab) == "git"
    assert (lab.tree / "LICENSE").read_bytes() == FILES["LICENSE"]
    target = init_repository(tmp_path / "fetched.git")
    upstream = read_lock(lab.root / "VERSIONS.lock").upstream("calc", "1.0")
    fetch(upstream, served, target)
    kinds = target.text("cat-file", "--batch-all-objects", "--batch-check").splitlines()
    commits = [line.split()[0] for line in kinds if line.split()[1] == "commit"]
    assert commits == [upstream.commit]
    here = {line.split()[0] for line in kinds}
    assert git(lab.repo.path, "rev-parse", "v1.0:python/calc/core.py") in here
    assert git(lab.repo.path, "rev-parse", "v1.0:README.md") not in here


def test_url_serves_as_mirror_and_for_lock(lab: ForkLab, served: str, tmp_path: Path) -> None:
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    lab.forget()
    assert source_of(lab, "--mirror", f"calc={served}") == "mirror"
    assert lab.ok("lock", "--check").out.splitlines() == ["VERSIONS.lock: up to date"]


def test_instead_of_is_the_only_setting_heeded(lab: ForkLab, tmp_path: Path) -> None:
    lab.edit_lock(f'url = "{lab.repo.path}"', 'url = "https://upstream.invalid/calc"')
    lab.forget()
    marker = tmp_path / "ran"
    (lab.home / ".gitconfig").write_text(
        f'[url "{lab.repo.path}"]\n\tinsteadOf = https://upstream.invalid/calc\n'
        f"[core]\n\tfsmonitor = touch {marker}\n\tautocrlf = true\n\tpager = touch {marker}\n"
        f'[filter "x"]\n\tsmudge = touch {marker}; cat\n[diff]\n\tnoprefix = true\n'
    )
    assert source_of(lab) == "mirror"
    assert (lab.tree / "python/calc/core.py").read_bytes() == CORE
    assert not marker.exists()


def test_instead_of_is_heeded_in_variables_of_git(
    lab: ForkLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.edit_lock(f'url = "{lab.repo.path}"', 'url = "https://upstream.invalid/calc"')
    lab.forget()
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{lab.repo.path}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://upstream.invalid/calc")
    assert source_of(lab) == "mirror"


def test_hooks_filters_and_monitors_of_the_upstream_do_not_run(
    lab: ForkLab, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    hostile = Repo(lab.repo.path)
    hooks = hostile.path / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "reference-transaction", "post-index-change", "pre-commit"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {marker}\n")
        (hooks / name).chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.sshCommand",
        "core.alternateRefsCommand",
        "filter.x.smudge",
    ):
        git(hostile.path, "config", key, f"touch {marker}")
    hostile_tree = {".gitattributes": b"* filter=x text eol=crlf ident\n"}
    git(hostile.path, "config", "core.hooksPath", "/dev/null")
    hostile.commit(
        {**hostile_tree, "python/calc/.gitattributes": hostile_tree[".gitattributes"]}, "Attributes"
    )
    git(hostile.path, "config", "--unset", "core.hooksPath")
    marker.unlink(missing_ok=True)
    lab.locked(tag="")
    lab.forget()
    lab.ok("apply")
    lab.ok("status")
    assert (lab.tree / "python/calc/core.py").read_bytes() == CORE
    assert not marker.exists()


def test_one_line_says_that_an_optional_upstream_is_missing_and_a_file_says_why(
    lab: ForkLab, tmp_path: Path
) -> None:
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    lab.edit_lock("optional = false", "optional = true")
    lab.forget()
    done = lab.ok("apply")
    first, second = done.out.splitlines()[:2]
    assert first.startswith("calc 1.0 was left out (.work/calc-1.0.missing says why): supply it")
    assert "--mirror calc=PATH_OR_URL" in first and "calc" not in second
    cache, mirror, wheel, git, *_ = (lab.root / ".work/calc-1.0.missing").read_text().splitlines()
    assert cache == "cache: not in the cache"
    assert mirror == "mirror: none was named"
    assert wheel == "wheel: the lock pins none: this version is available from git only"
    assert git.startswith(f"git {tmp_path}/nowhere: ")
    (one,) = lab.ok("apply", "--json", "-").json["upstreams"]
    assert (one["state"], one["path"]) == ("missing", None)
    assert "nowhere" in one["reason"] and "--mirror" in one["remedy"]
    done = lab.run("apply", "--require", "calc")
    assert done.code == 2
    assert "calc 1.0 is not available from any source" in done.err


def test_offline_asks_neither_index_nor_upstream(lab: ForkLab, tmp_path: Path) -> None:
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    lab.forget()
    done = lab.run("apply", "--offline")
    assert done.code == 2
    assert "wheel calc 1.0: the wheel is not in the cache, and this run is offline" in done.err
    assert "not asked: this run is offline" in done.err


def test_damaged_cache_is_made_anew(lab: ForkLab) -> None:
    lab.ok("apply")
    drop_tree(lab)
    pack = next(lab.cache.glob("trees/*/objects/pack/*.pack"))
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.chmod(0o644)
    pack.write_bytes(bytes(data))
    done = lab.ok("apply", "--json", "-")
    assert "is damaged, and is made again" in done.err
    assert done.json["upstreams"][0]["source"] == "mirror"
    assert (lab.tree / "python/calc/core.py").read_bytes() == CORE


def test_wrong_tree_in_the_lock_stops_everything(lab: ForkLab) -> None:
    lock = (lab.root / "VERSIONS.lock").read_text()
    tree = lock.split('tree = "')[1].split('"')[0]
    lab.edit_lock(tree, "0" * 40)
    done = lab.run("apply")
    assert done.code == 1
    assert f"gives the tree {tree}, but the lock pins {'0' * 40}" in done.err


def test_damaged_wheel_in_the_cache_is_said_and_fetched_again(lab: ForkLab, tmp_path: Path) -> None:
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    lab.forget()
    lab.ok("apply", "--source", "calc=wheel")
    (kept,) = lab.cache.glob("wheels/*/*.whl")
    good = kept.read_bytes()
    for damage in (good[: len(good) // 2], good[:-1] + b"!", b""):
        kept.write_bytes(damage)
        shutil.rmtree(lab.cache / "trees")
        drop_tree(lab)
        done = lab.ok("apply", "--source", "calc=wheel")
        assert f"{kept.name} is damaged in the cache" in done.err
        assert kept.read_bytes() == good
    kept.write_bytes(b"")
    shutil.rmtree(lab.cache / "trees")
    drop_tree(lab)
    done = lab.run("apply", "--source", "calc=wheel", "--offline")
    assert done.code == 2
    assert "is damaged in the cache" in done.err and "this run is offline" in done.err


def test_pip_opens_no_wheel_of_another_hash(lab: ForkLab, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", FILES)
    lab.locked(wheel=wheel)
    lab.forget()
    # Not even a zip: whoever looked into it would complain of that.
    wheel.write_bytes(b"no wheel at all")
    done = lab.run("apply", "--source", "calc=wheel")
    assert done.code == 1
    assert "the index's calc 1.0 has the sha256" in done.err and "is pinned" in done.err
    assert "forkpatch lock --check" in done.err


def forged_mirror(lab: ForkLab, target: Path, name: str) -> Path:
    """A clone in which the object ``name`` has the content of another commit's object."""
    pinned = git(lab.repo.path, "rev-parse", name)
    lab.repo.commit({"python/calc/core.py": core(mul="evil")}, "Evil")
    evil = git(lab.repo.path, "rev-parse", name.replace("v1.0", "HEAD"))
    git(target.parent, "clone", "-q", "--no-local", "--bare", str(lab.repo.path), str(target))
    pack = next((target / "objects/pack").glob("*.pack")).rename(target.with_name("pack"))
    for other in (target / "objects/pack").iterdir():
        other.unlink()
    git(target, "unpack-objects", "-q", stdin=pack.read_bytes())
    loose = target / "objects" / pinned[:2] / pinned[2:]
    loose.unlink()
    shutil.copyfile(target / "objects" / evil[:2] / evil[2:], loose)
    return target


@pytest.mark.parametrize("name", ["v1.0^{commit}", "v1.0^{tree}", "v1.0:python/calc/core.py"])
def test_mirror_with_other_content_under_a_pinned_name_is_refused(
    lab: ForkLab, tmp_path: Path, name: str
) -> None:
    mirror = forged_mirror(lab, tmp_path / "mirror", name)
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    lab.forget()
    done = lab.run("apply", "--mirror", f"calc={mirror}")
    assert done.code in (1, 2)
    assert str(mirror) in done.err, done.err
    assert not lab.tree.exists()
    assert not list(lab.cache.glob("trees/*"))


@pytest.mark.parametrize("source", ["wheel", "git"])
def test_runs_that_fetch_the_same_at_once_share_one_good_copy(
    lab: ForkLab, tmp_path: Path, source: str
) -> None:
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    lab.forget()
    targets = [tmp_path / f"tree{number}" for number in range(4)]
    from_there = ("--source", f"calc={source}")
    runs = [start(lab.root, "tree", "calc", *from_there, "--output", str(path)) for path in targets]
    assert [os.waitpid(run, 0)[1] for run in runs] == [0, 0, 0, 0]
    assert {(path / "python/calc/core.py").read_bytes() for path in targets} == {CORE}
    assert len(list(lab.cache.glob("trees/*.git"))) == 1
    assert len(list(lab.cache.glob("wheels/*/*.whl"))) == (source == "wheel")
    assert not list((lab.cache / "scratch").iterdir())
    git_folder = next(lab.cache.glob("trees/*.git"))
    git(git_folder, "fsck", "--strict")


def test_a_cut_object_is_an_error_and_a_missing_one_is_none(tmp_path: Path) -> None:
    repository, data, lacking = init_repository(tmp_path / "x.git"), os.urandom(1 << 17), "1" * 40
    oid = repository.run("hash-object", "-w", "--stdin", stdin=data).stdout.decode().strip()
    assert read_blobs(repository, [oid, lacking]) == {oid: data, lacking: None}
    place = tmp_path / "x.git/objects" / oid[:2] / oid[2:]
    place.chmod(0o644)
    place.write_bytes(place.read_bytes()[: 1 << 16])
    with pytest.raises(GitError, match="is cut off"):
        read_blobs(repository, [oid])


@pytest.mark.parametrize("text", ["null", "1", '{"calc": 1}', '{"calc": "x"}'])
def test_damaged_notes_of_the_cache_are_none(lab: ForkLab, text: str) -> None:
    for name in ("mirrors.json", "seen.json"):
        (lab.cache / name).write_text(text)
    lab.ok("lock", "--mirror", f"calc={lab.repo.path}")
    assert Cache(lab.cache).mirrors() == {"calc": (str(lab.repo.path),)}


def test_mirrors_that_two_processes_remember_are_both_kept(lab: ForkLab, tmp_path: Path) -> None:
    cache = Cache(lab.cache)
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda n: cache.remember({f"m{n}": str(tmp_path)}), range(40)))
        list(pool.map(lambda n: cache.note(f"n{n}", f"{n:040}"), range(40)))
    assert {f"m{n}" for n in range(40)} <= set(cache.mirrors())
    assert [cache.seen(f"n{n}") for n in range(40)] == [f"{n:040}" for n in range(40)]


def test_a_linked_worktree_is_a_mirror(lab: ForkLab, tmp_path: Path) -> None:
    lab.change("turn.patch", {"python/calc/core.py": core(sub="b - a")}, subject="Turn")
    lab.repo.commit({"python/calc/core.py": CORE}, "Back")
    git(lab.repo.path, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"), "v1.0")
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    (lab.cache / "mirrors.json").unlink()
    mirror = ("--mirror", f"calc={tmp_path / 'linked'}")
    output = tmp_path / "out"
    lab.ok("submit", "calc", "--onto", "HEAD", "--output", str(output), *mirror)
    assert [path.name for path in output.iterdir()] == ["0001-turn.patch"]
    lab.ok("record")
    git(tmp_path, "init", "-q", "--bare", "remote.git")
    lab.ok("push", "calc", str(tmp_path / "remote.git"), "ours")
