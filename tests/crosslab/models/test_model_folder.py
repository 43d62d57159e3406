# SPDX-License-Identifier: Apache-2.0
"""Models as users name them: folders, shards, a hub."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from support import mlc_tree
from support.models.model_folder import change, job_of_model, write_folder, write_sparse
from support.shared_builds import CACHE, PROJECT, tvm_tree

from crosslab.errors import LabError, UserError
from crosslab.host.cost import cost_of
from crosslab.job.model_check import check_model
from crosslab.models.compare import compare
from crosslab.models.config import LlamaConfig, read_family
from crosslab.models.families import chosen
from crosslab.models.llama_params import (
    fuse_weights,
    param_shapes,
    random_weights,
    sources_of,
)
from crosslab.models.params import ReadParams, write_params
from crosslab.models.reference import answer, scaled_frequencies
from crosslab.models.sources.model_folder import import_folder, import_model, name_of
from crosslab.models.weights_file import StoredWeights, save_weights, weight_files
from crosslab.zoo import reference as zoo_reference

COMMIT = "1234567890abcdef1234567890abcdef12345678"


def test_a_folder_is_imported_and_its_weights_stay(plain: Path, tmp_path: Path) -> None:
    made = import_folder(plain, "mine", tmp_path / "cache")
    assert not list(made.folder.glob("*.safetensors"))
    files = weight_files(made.folder)
    assert [file.path for file in files] == sorted(plain.glob("*.safetensors"))
    for file in files:
        sha256 = hashlib.sha256(file.path.read_bytes()).hexdigest()
        assert file.sha256 == sha256 == made.origin.table["files"][file.name]
    assert import_folder(plain, "mine", tmp_path / "cache").folder == made.folder
    check_model(job_of_model(plain, tmp_path / "cache"), made.folder)
    whole = dict(fuse_weights(made.folder, read_family(made.folder / "config.json")))
    stored = StoredWeights.of_model(made.folder)
    name = "model.layers.1.self_attn.qkv_proj.weight"
    np.testing.assert_array_equal(
        whole[name], np.concatenate([stored.read(source) for source in sources_of(name)])
    )
    assert whole[name].dtype == np.float32


def test_weights_that_changed_are_read_anew(plain: Path, tmp_path: Path) -> None:
    made = import_folder(plain, "mine", tmp_path / "cache")
    first = min(plain.glob("*.safetensors"))
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    with pytest.raises(UserError, match="changed since it was read"):
        weight_files(made.folder)
    again = import_folder(plain, "mine", tmp_path / "cache")
    assert again.folder != made.folder
    assert again.origin.sha256 != made.origin.sha256


def test_rotary_embeddings_are_found_under_their_newer_name(plain: Path, tmp_path: Path) -> None:
    """Transformers 5 writes rope_parameters: the imported config.json has what MLC-LLM reads."""
    path = plain / "config.json"
    table = json.loads(path.read_text())
    del table["rope_theta"]
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    for rope in ({"rope_type": "default"}, llama3):
        path.write_text(json.dumps({**table, "rope_parameters": {"rope_theta": 5e5, **rope}}))
        made = import_folder(plain, "mine", tmp_path / "cache").folder / "config.json"
        written = json.loads(made.read_text())
        assert written["rope_theta"] == read_family(made).rope_theta == 5e5
        assert bool(written["rope_scaling"]) == (rope is llama3)
        assert read_family(made).rope == ((8.0, 1.0, 4.0, 8192.0) if rope is llama3 else None)
    wrong = ({**llama3, "factor": 0}, {**llama3, "high_freq_factor": 1.0}, {"type": "yarn"})
    for scaling in (*wrong, "linear", [8.0]):
        path.write_text(json.dumps({**table, "rope_scaling": scaling}))
        with pytest.raises(UserError, match="rope_scaling = "):
            read_family(path)


@pytest.mark.parametrize("name", ["type", "rope_type"])
def test_linear_scaling_divides_all_frequencies(plain: Path, tmp_path: Path, name: str) -> None:
    path = plain / "config.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "rope_scaling": {name: "linear", "factor": 4.0}}))
    rope = read_family(import_folder(plain, "mine", tmp_path / "cache").folder / "config.json").rope
    assert rope is not None
    frequency = 10000.0 ** (-np.arange(32) / 32)
    np.testing.assert_array_equal(scaled_frequencies(frequency, rope), frequency / 4)
    # No other definition of MLC-LLM has the rule that this is expressed by.
    for wrong in ({"factor": 0.0}, {"factor": "4"}, {"factor": 4.0, "model_type": "qwen3"}):
        scaling = {name: "linear", "factor": wrong["factor"]}
        path.write_text(json.dumps({**table, **wrong, "rope_scaling": scaling}))
        with pytest.raises(UserError, match="rope_scaling = "):
            read_family(path)


def test_names_are_those_of_folders(tmp_path: Path) -> None:
    assert name_of("/models/Llama 3.2 (1B)/") == "llama-3.2-1b"
    assert name_of("hf:Qwen/Qwen3-0.6B@main") == "qwen3-0.6b"
    assert name_of("a/SmolLM2.Q4_1.gguf") == "smollm2.q4_1"
    assert name_of("smollm2-135m") == "smollm2-135m"
    (tmp_path / "4f3a").touch()
    (tmp_path / "Qwen3.gguf").symlink_to("4f3a")
    assert name_of(str(tmp_path / "Qwen3.gguf")) == "qwen3"


def test_large_weights_are_written_in_shards(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    weights = {f"w{n}": draw.standard_normal((10, n + 1), dtype=np.float32) for n in range(5)}
    save_weights(weights.items(), tmp_path, shard_bytes=250)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    stored = StoredWeights.of_model(tmp_path)
    assert {name for name, _, _ in stored.shapes()} == set(weights)
    for name, values in weights.items():
        np.testing.assert_array_equal(stored.read(name), values)
    with pytest.raises(UserError, match="lack w9"):
        stored.read("w9")


def test_parameters_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    config = LlamaConfig(32, 32, 2, 1, 16, 1, 64)
    write_params(random_weights(config, 3), tmp_path, shard_bytes=1 << 12)
    kept, read = ReadParams(tmp_path), ReadParams(tmp_path, kept_bytes=0)
    assert list(kept) == list(read)
    for name in kept:
        assert kept[name] is kept[name]
        assert read[name] is not read[name]
        np.testing.assert_array_equal(kept[name], read[name])


def test_the_reference_of_relatives_is_their_definition() -> None:
    """Scaled rotary embeddings by the published rule, worked out pair by pair."""
    frequency = 500000.0 ** (-np.arange(32) / 32)
    factor, low, high, original = 8.0, 1.0, 4.0, 8192.0
    for before, after in zip(
        frequency, scaled_frequencies(frequency, (factor, low, high, original)), strict=True
    ):
        length = 2 * np.pi / before
        if length < original / high:
            wanted = before
        elif length > original / low:
            wanted = before / factor
        else:
            smooth = (original / length - low) / (high - low)
            wanted = (1 - smooth) * before / factor + smooth * before
        assert after == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma"])
def test_each_part_of_a_relative_takes_part(tokenizer: Path, tmp_path: Path, family: str) -> None:
    """The answer changes when a relative is computed as the plain Llama that it is not."""
    folder = write_folder(tmp_path / family, family, tokenizer)
    config = read_family(folder / "config.json")
    stored = StoredWeights.of_model(folder)
    values = {n: stored.read(n) for n in stored.places}
    if family == "gemma":  # whose norms are stored less one
        values = {n: v + 1 if "norm" in n else v for n, v in values.items()}
    for name in list(values):
        if name.endswith(("q_proj.weight", "gate_proj.weight")):
            fused = "qkv_proj" if "q_proj" in name else "gate_up_proj"
            whole = name.replace("q_proj" if "q_proj" in name else "gate_proj", fused)
            values[whole] = np.concatenate([values[source] for source in sources_of(whole)])
    prompt = list(range(3, 90))
    right = answer(config, values, prompt, max_new=2).logits
    for part, without in (("rope", None), ("qk_norm", False), ("gelu", False)):
        plain = LlamaConfig(**{**vars(config), part: without})
        difference = np.abs(answer(plain, values, prompt, max_new=1).logits - right[:1]).max()
        assert (difference > 1e-2) == (plain != config), part


_CONVERT = """
import resource, sys
from pathlib import Path
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
from crosslab.assemble.runner import store_params
from crosslab.job.job_options import MODEL, parse_job
from crosslab.job.model_check import check_model
from crosslab.models.sources.model_folder import import_model
job = parse_job(sys.argv[2:], MODEL)
check_model(job, Path(job.source))
folder = import_model(job.source, "large", job.project, job.cache).folder
print(store_params(job.recipe.of(folder), job.cache))
"""


@pytest.mark.long
@pytest.mark.parametrize("road", ["tvm-only", "mlc-llm"])
def test_8_gb_of_weights_convert_within_4_gb(tokenizer: Path, tmp_path: Path, road: str) -> None:
    """A sparse model; the kernel refuses more than 4 GB of memory to any process that takes part.

    LARGE_MODEL_GB sets another size. What is mapped of the files themselves is the kernel's own
    cache, and no memory of the process's.
    """
    size = float(os.environ.get("LARGE_MODEL_GB", "8")) * 1e9
    layers = round(size / 2 / (4 * 2048 * 2048 + 3 * 2048 * 8192))
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32}
    folder = write_sparse(tmp_path / "large", tokenizer, **sizes, **heads)
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert abs(stored - size) < size / 50
    words = ["--tvm-tree", str(tvm_tree()), "--cache", str(tmp_path / "cache")]
    words += ["--project", str(PROJECT)]
    if road == "mlc-llm":
        words += ["--mlc-tree", str(mlc_tree.tools().mlc_tree), "--quantization", "q4f16_1"]
    command = [sys.executable, "-c", _CONVERT, str(4 * 10**9), str(folder), *words]
    done, cost = cost_of(
        lambda: subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    )
    out = Path(done.stdout.strip()) / "tensor-cache.json"
    index = json.loads(out.read_text(encoding="utf-8"))
    print(
        f"\n{road}: {stored / 1e9:.1f} GB of weights, peak {cost.memory / 1e9:.2f} GB of memory, "
        f"{sum(shard['nbytes'] for shard in index['records']) / 1e9:.1f} GB made"
    )
    assert 0 < cost.memory < 4e9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma"])
def test_the_projects_reference_is_transformers(name: str) -> None:
    """The zoo's small model of the family, where transformers is here to be asked."""
    try:
        question = zoo_reference.ask(chosen([name])[0], CACHE)
    except UserError as error:
        pytest.skip(error.what)
    config = read_family(question.model / "config.json")
    stored = StoredWeights.of_model(question.model)
    values = {n: stored.read(n) for n in stored.places}
    if name == "gemma":  # whose norms are stored less one
        values = {n: v + 1 if "norm" in n else v for n, v in values.items()}
    for kind in ("weight", "bias"):
        for fused in param_shapes(config):
            parts = [source.replace("weight", kind) for source in sources_of(fused)]
            if len(parts) > 1 and set(parts) <= set(values):
                whole = np.concatenate([values[part] for part in parts])
                values[fused.replace("weight", kind)] = whole
    wanted = question.answer
    said = answer(config, values, question.prompt, max_new=len(wanted.tokens))
    assert compare(said.tokens, said.logits, wanted, 1e-5).right


class _Hub(BaseHTTPRequestHandler):
    """As much of a hub as one repository needs."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        content, headers = b"", {}
        if path.startswith("/api/models/me/tiny"):
            files = [{"rfilename": p.name} for p in sorted(self.folder.iterdir())]
            about: Any = {"id": "me/tiny", "sha": COMMIT, "siblings": files}
            about |= {"cardData": {"license": "mit"}}
            if "/tree/" in path:
                about = [
                    {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": "0" * 40}
                    for p in sorted(self.folder.iterdir())
                ]
            content = json.dumps(about).encode()
            headers = {"Content-Type": "application/json"}
        elif path.startswith(f"/me/tiny/resolve/{COMMIT}/"):
            content = (self.folder / Path(path).name).read_bytes()
            etag = hashlib.sha256(content).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(plain: Path) -> Iterator[tuple[str, list[str]]]:
    handler = type("Hub", (_Hub,), {"folder": plain, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler.asked
    server.shutdown()
    thread.join()
    server.server_close()


_DOWNLOAD = """
import json, sys
from pathlib import Path
from crosslab.errors import LabError
from crosslab.models.sources.model_folder import import_model
try:
    found = import_model(sys.argv[1], "tiny", Path(), Path(sys.argv[2]))
    print(json.dumps([str(found.folder), found.origin.licence, dict(found.origin.table)]))
except LabError as error:
    print(json.dumps({"error": error.what, "code": error.exit_code}))
"""


def test_a_model_of_a_hub_is_pinned_at_a_commit(
    hub: tuple[str, list[str]], plain: Path, tmp_path: Path
) -> None:
    """Downloaded by the hub's own library from a server here; the second time without it."""
    endpoint, asked = hub

    def get(source: str, **extra: str) -> Any:
        environment = {**os.environ, "HF_ENDPOINT": endpoint, **extra}
        environment |= {"HF_HUB_DISABLE_XET": "1", "HOME": str(tmp_path)}
        command = [sys.executable, "-c", _DOWNLOAD, source, str(tmp_path / "cache")]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    _, licence, table = get("hf:me/tiny")
    assert (licence, table["repository"], table["revision"]) == ("mit", "me/tiny", COMMIT)
    for name, sha256 in table["files"].items():
        assert hashlib.sha256((plain / name).read_bytes()).hexdigest() == sha256
    before = len(asked)
    _, _, again = get(f"hf:me/tiny@{COMMIT}", HF_HUB_OFFLINE="1")
    assert again["files"] == table["files"]
    assert len(asked) == before
    nobody = get("hf:me/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert nobody["code"] == 2 and "hf:me/tiny cannot be downloaded: " in nobody["error"]
    missing = get("hf:me/other")
    assert missing["code"] == 2 and "hf:me/other cannot be downloaded" in missing["error"]


_FORMAT = """
import sys
from crosslab.job.job_options import MODEL, parse_job
print(parse_job(sys.argv[1:], MODEL).recipe.quantization)
"""


def test_the_format_follows_the_kind_of_a_model_of_a_hub(
    hub: tuple[str, list[str]], plain: Path, tmp_path: Path
) -> None:
    """Weights of a BERT stay in float32; its folder is known after the download."""
    change(plain, model_type="bert")
    environment = {**os.environ, "HF_ENDPOINT": hub[0], "HF_HUB_DISABLE_XET": "1"}
    words = ["hf:me/tiny", "--project", str(PROJECT), "--cache", str(tmp_path / "cache")]
    words += ["--tvm-tree", "tvm", "--mlc-tree", "mlc"]
    done = subprocess.run(
        [sys.executable, "-c", _FORMAT, *words],
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "q0f32\n", done.stderr[-2000:]


def test_a_gguf_file_of_another_kind_is_the_users_mistake(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UserError, match=r"general\.architecture = 'mamba'") as caught:
        import_model(str(tmp_path / "mamba.gguf"), "mamba", PROJECT, tmp_path / "cache")
    assert "supported: baichuan, bert, chatglm" in caught.value.remedy


def test_a_gguf_file_is_named_with_its_hash(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(LabError, match=r"bad\.gguf is not a GGUF file"):
        import_model(str(tmp_path / "bad.gguf"), "bad", PROJECT, tmp_path / "cache")


def test_bfloat16_is_read_as_it_is(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.25], [3e38, 1e-40]], np.float32).astype(ml_dtypes.bfloat16)
    save_weights([("w", values)], tmp_path)
    np.testing.assert_array_equal(
        StoredWeights.of_model(tmp_path).read("w"), values.astype(np.float32)
    )
    shutil.rmtree(tmp_path)
