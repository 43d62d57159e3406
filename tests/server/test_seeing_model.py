# SPDX-License-Identifier: Apache-2.0
"""LLaVA in the engine and the server: pictures follow their prompts; transformers judges."""

from __future__ import annotations

import base64
import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import served
from support import shared_builds, tiny_runner
from support.mlc_tree import host_library, tools, tools_and_reference
from support.models.llava_folder import IMAGE, write_llava

from crosslab.assemble.link import LinkRequest
from crosslab.compile.mlc import MlcCompileRequest, compile_model, convert_weight, device_of
from crosslab.compile.targets import LabTarget
from crosslab.host.toolchain import Toolchain
from crosslab.models.llava import LlavaConfig, read_llava
from crosslab.models.pictures import Pixels, prepare, sample_picture, write_png
from crosslab.models.sources.model_folder import import_folder
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import device_tokenizer

CONTEXT, CHUNK = 256, 64
# The largest distance of a chosen token's logit from the largest, as a part of the largest: a tie.
TIE = 1e-3
NEW = 8


@dataclass(frozen=True)
class Seeing:
    """The compiled model, transformers' one of the same weights, and two pictures."""

    probe: Path
    params: Path
    library: Path | None
    tokenizer: Path
    config: LlavaConfig
    torch_model: Any
    pictures: dict[str, tuple[Path, Pixels]]
    folder: Path

    def on_riscv64(self) -> Seeing:
        """The model in a program for riscv64, whose runtime reads rows of the cache back."""
        request = MlcCompileRequest(
            *(self.folder, "q0f32", device_of(LabTarget("riscv64", 256)), CONTEXT),
            prefill_chunk=CHUNK,
        )
        library = compile_model(tools(), request, shared_builds.CACHE).library
        parts = (shared_builds.runtime(), shared_builds.cross())
        linked = LinkRequest(*parts, library=library, vlens=(256,))
        return replace(self, probe=tiny_runner.build_engine_probe(linked), library=None)

    def run(self, requests: list[dict[str, Any]], **plan: Any) -> list[dict[str, Any]]:
        sizes = {"tokens": CONTEXT, "chunk": CHUNK, "steps": 0, **plan}
        told = tiny_runner.run_plan(
            *(self.probe, self.params),
            library=self.library,
            emulated=self.library is None,
            requests=requests,
            **sizes,
        )
        answers: list[dict[str, Any]] = told["answers"]
        return answers

    def asked(self, prompt: list[int], *pictures: str, **more: Any) -> dict[str, Any]:
        files = [str(self.pictures[name][0]) for name in pictures]
        return {"tokens": prompt, "pictures": files, "max_tokens": NEW, **more}

    def check(self, prompt: list[int], answer: list[int], *pictures: str) -> None:
        """Each token of the answer has the largest logit, or one as large."""
        torch = importlib.import_module("torch")
        # A random model may write the token of a picture, which transformers takes for one.
        answer = answer[: (*answer, self.config.token).index(self.config.token)]
        whole: list[int] = []
        for token in prompt:
            whole += self.config.with_picture([token]) if token == self.config.token else [token]
        shown = {}
        if pictures:
            about, side = self.config.picture, self.config.side
            numbers = [prepare(self.pictures[name][1], about, side) for name in pictures]
            shown = {"pixel_values": torch.tensor(np.stack(numbers)).float()}
        with torch.no_grad():
            logits = self.torch_model(torch.tensor([whole + answer]), **shown).logits[0]
        rows = logits[len(whole) - 1 : -1].double()
        chosen = rows.gather(1, torch.tensor(answer)[:, None])[:, 0]
        distance = (rows.max(dim=1).values - chosen) / rows.abs().max()
        assert float(distance.max()) < TIE, f"token {int(distance.argmax())} of the answer"


@pytest.fixture(scope="module")
def seeing(sanitizers: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    trees = tools_and_reference()
    root, cache = tmp_path_factory.mktemp("seeing"), shared_builds.CACHE
    model = write_llava(root / "model")
    folder = import_folder(root / "model", "llava", cache).folder
    params = convert_weight(trees, folder, "q0f32", cache)
    library = host_library(folder, CONTEXT, CHUNK)
    assert all(entry["symbol"] for entry in library.tensorized)
    pixels = {"first": sample_picture(), "second": sample_picture()[::-1].copy()}
    pictures = {}
    for name, each in pixels.items():
        write_png(each, root / f"{name}.png")
        pictures[name] = (root / f"{name}.png", each)
    table = device_tokenizer(folder, cache, ChatTokenizer.load(folder))
    config = read_llava(folder / "config.json")
    probe = tiny_runner.build_engine_probe(tiny_runner.host_request())
    return Seeing(probe, params, library.library, table, config, model, pictures, folder)


def prompt_of(seeing: Seeing, *lengths: int) -> list[int]:
    """Texts of these lengths with places for pictures between them."""
    choice = np.random.default_rng(lengths)
    texts = [choice.integers(3, 90, length).tolist() for length in lengths]
    prompt: list[int] = texts[0]
    for text in texts[1:]:
        prompt = [*prompt, seeing.config.token, *text]
    return prompt


@pytest.mark.parametrize("chunk", [1, 3, CHUNK])
@pytest.mark.parametrize("lengths", [(5, 9), (0, 1), (60, 7), (4, 0, 3)])
def test_pictures_are_read_in_chunks_of_any_size(
    seeing: Seeing, lengths: tuple[int, ...], chunk: int
) -> None:
    prompt = prompt_of(seeing, *lengths)
    names = ("first", "second")[: len(lengths) - 1]
    (got,) = seeing.run([seeing.asked(prompt, *names)], chunk=chunk)
    assert len(got["tokens"]) == NEW, got["error"]
    seeing.check(prompt, got["tokens"], *names)


def test_a_cache_entry_belongs_to_one_picture(seeing: Seeing) -> None:
    """The same ids, and the beginning before the picture is shared; so is the same picture."""
    prompt = prompt_of(seeing, 20, 20)
    shows = ("first", "second", "first", "second")
    asked = [seeing.asked(prompt, name, step=40 * i) for i, name in enumerate(shows)]
    answers = seeing.run(asked, sequences=2, steps=200)
    for name, got in zip(shows, answers, strict=True):
        assert len(got["tokens"]) == NEW, got["error"]
        seeing.check(prompt, got["tokens"], name)
    whole = 20 + 4 + 20 - 1
    assert [got["cached"] for got in answers] == [0, 20, whole, whole]
    assert answers[0]["tokens"] != answers[1]["tokens"]


def test_several_pictures_and_texts_are_answered_at_once(seeing: Seeing) -> None:
    shown = [("first",), (), ("second",), ("second", "first")]
    prompts = [prompt_of(seeing, *([30 + i] * (len(names) + 1))) for i, names in enumerate(shown)]
    pairs = list(zip(prompts, shown, strict=True))
    asked = [seeing.asked(prompt, *names, step=i) for i, (prompt, names) in enumerate(pairs)]
    for (prompt, names), got in zip(pairs, seeing.run(asked, sequences=4), strict=True):
        assert len(got["tokens"]) == NEW, got["error"]
        seeing.check(prompt, got["tokens"], *names)


@pytest.mark.thorough
def test_files_of_prompts_end_before_a_picture(seeing: Seeing, tmp_path: Path) -> None:
    prompt, emulated = prompt_of(seeing, 40, 40), seeing.on_riscv64()
    (first,) = emulated.run([seeing.asked(prompt, "first")], files=str(tmp_path))
    assert len(list(tmp_path.glob("*.rows"))) == 40 // 16
    (again,) = emulated.run([seeing.asked(prompt, "second")], files=str(tmp_path))
    assert (first["cached"], again["cached"]) == (0, 32)
    seeing.check(prompt, again["tokens"], "second")


def test_a_prompt_has_as_many_places_as_pictures(seeing: Seeing) -> None:
    for prompt, names in (([5, 6], ("first",)), (prompt_of(seeing, 3, 3), ())):
        (got,) = seeing.run([seeing.asked(prompt, *names)])
        assert "places for pictures" in got["refused"]


def _shows(picture: bytes, text: str = "abc", kind: str = "png") -> dict[str, Any]:
    url = f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": NEW, "temperature": 0}


def test_the_server_answers_about_pictures(
    seeing: Seeing, host_runner: Path, tmp_path: Path
) -> None:
    command = [str(host_runner), "serve", "--params", str(seeing.params), "--port", "0"]
    command += ["--tokenizer", str(seeing.tokenizer), "--lib", str(seeing.library)]
    first, second = (seeing.pictures[name][0].read_bytes() for name in ("first", "second"))
    with served.serving(command, tmp_path, tiny_runner.host_environment()) as server:
        replies = [server.post(served.CHAT, _shows(file)) for file in (first, second, first)]
        texts = [reply.json()["choices"][0]["message"]["content"] for reply in replies]
        assert texts[0] == texts[2] != texts[1]
        usage = replies[2].json()["usage"]
        asked = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": NEW}
        plain = server.post(served.CHAT, {**asked, "temperature": 0}).json()["usage"]
        assert plain["prompt_tokens"] < usage["prompt_tokens"] - 4
        encoded = base64.b64encode(first).decode()
        options = {"stream": False, "options": {"num_predict": NEW, "temperature": 0}}
        message = {"role": "user", "content": "abc", "images": [encoded]}
        chat = server.post("/api/chat", {"messages": [message], **options}).json()
        assert chat["message"]["content"] == texts[0]
        generate = {"prompt": "abc", "images": [encoded], **options}
        assert server.post("/api/generate", generate).json()["response"] == texts[0]
        assert "vision" in server.post("/api/show", {}).json()["capabilities"]
        counted = server.post("/tokenize", {"messages": _shows(first)["messages"]}).json()
        assert counted["count"] == usage["prompt_tokens"]
        refused = [
            (_shows(first[:60]), "messages[0].content[0].image_url.url: is damaged"),
            (_shows(b"text"), "messages[0].content[0].image_url.url: is not a PNG or JPEG file"),
            (_shows(first, f"{IMAGE} abc"), "messages: the prompt has 2 places for pictures"),
        ]
        for body, why in refused:
            reply = server.post(served.CHAT, body)
            assert (reply.status, reply.json()["error"]["message"][: len(why)]) == (400, why)
