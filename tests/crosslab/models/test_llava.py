# SPDX-License-Identifier: Apache-2.0
"""LLaVA's reference and its preparation of pictures against transformers; unsupported configs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.llava_folder import IMAGE, PROCESSOR, SIDE, TEXT, VISION, write_llava

from crosslab.errors import UserError
from crosslab.models.llava import (
    LanguageParams,
    LlavaWeights,
    ReferenceLlava,
    imported_fields,
    read_llava,
    states_of_picture,
)
from crosslab.models.pictures import FILTERS, prepare, sample_picture, write_png
from crosslab.models.sources.model_folder import import_folder
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer


@pytest.mark.parametrize("filter_", FILTERS)
@pytest.mark.parametrize(
    ("shape", "shortest"), [((45, 70), SIDE), ((70, 45), 33), ((28, 28), SIDE), ((9, 200), SIDE)]
)
def test_pictures_are_prepared_as_by_transformers(
    tmp_path: Path, shape: tuple[int, int], shortest: int, filter_: str
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    image = importlib.import_module("PIL.Image")
    pixels = np.random.default_rng(shape).integers(0, 256, (*shape, 3)).astype("u1")
    table = {**PROCESSOR, "size": {"shortest_edge": shortest}, "resample": 2}
    table["resample"] += list(FILTERS).index(filter_)
    processor = transformers.CLIPImageProcessorPil(**table)
    write_png(pixels, tmp_path / "picture.png")
    with image.open(tmp_path / "picture.png") as picture:
        wanted = processor(picture, return_tensors="np")["pixel_values"][0]
    about = {"shortest": shortest, "filter": filter_, "scale": 1 / 255}
    about |= {"mean": PROCESSOR["image_mean"], "deviation": PROCESSOR["image_std"]}
    np.testing.assert_allclose(prepare(pixels, about, SIDE), wanted, atol=1e-6)


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model = write_llava(tmp_path / "model")
    folder = import_folder(tmp_path / "model", "llava", tmp_path / "cache").folder
    config = read_llava(folder / "config.json")
    ids = ChatTokenizer.load(folder).chat_ids("Hello", pictures=1)
    tokens = config.with_picture(ids)
    assert len(tokens) == len(ids) + 3
    numbers = prepare(sample_picture(), config.picture, config.side)
    with torch.no_grad():
        pixels = torch.from_numpy(numbers[None]).double()
        wanted = model.double()(torch.tensor([tokens]), pixel_values=pixels).logits[0].numpy()
    params = LanguageParams(LlavaWeights(folder, config))
    states = states_of_picture(config, params, numbers)
    logits = ReferenceLlava(config, params, picture=states).read_all(tokens)
    np.testing.assert_allclose(logits, wanted, atol=2e-5 * np.abs(wanted).max())
    # The picture is not ignored.
    other = ReferenceLlava(config, params, picture=states[::-1]).read_all(tokens)
    assert np.abs(other - logits).max() > 0.01 * np.abs(wanted).max()


def _folder(path: Path, **changes: Any) -> Path:
    table: dict[str, Any] = {"model_type": "llava", "image_token_index": 9}
    table |= {"text_config": dict(TEXT, vocab_size=10), "vision_config": dict(VISION)}
    processor: dict[str, Any] = dict(PROCESSOR)
    for name, value in changes.items():
        part, _, field = name.rpartition("__")
        {"": table, "processor": processor}.get(part, table.get(part))[field] = value
    (path / "config.json").write_text(json.dumps(table))
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("projector_hidden_act", "silu"),
        ("vision_feature_layer", -1),
        ("vision_feature_select_strategy", "full"),
        ("image_token_index", None),
        ("vision_config", None),
        ("text_config__model_type", "mistral"),
        ("text_config__rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("vision_config__model_type", "siglip_vision_model"),
        ("vision_config__image_size", 30),
        ("vision_config__image_size", 14),
        ("vision_config__hidden_size", "64"),
        ("vision_config__hidden_act", "gelu"),
        ("processor__do_normalize", False),
        ("processor__size", {"height": 28, "width": 28}),
        ("processor__size", {"shortest_edge": 20}),
        ("processor__crop_size", {"height": 28, "width": 30}),
        ("processor__resample", 1),
        ("processor__image_mean", [0.5, 0.5]),
        ("processor__image_std", 0.5),
        ("processor__rescale_factor", "1/255"),
    ],
)
def test_what_the_compiler_does_not_compute_is_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    imported_fields(_folder(tmp_path))
    folder = _folder(tmp_path, **{name: value})
    field = name.rpartition("__")[2].removeprefix("image_").removeprefix("hidden_")
    with pytest.raises(UserError, match=field):
        imported_fields(folder)


def test_older_processors_have_numbers_for_sizes(tmp_path: Path) -> None:
    newer = imported_fields(_folder(tmp_path))
    older = imported_fields(_folder(tmp_path, processor__size=SIDE, processor__crop_size=SIDE))
    assert older == newer


def test_a_prompt_has_one_place_for_a_picture(tmp_path: Path) -> None:
    config = read_llava(_folder(tmp_path) / "config.json")
    assert config.with_picture([1, 9, 2]) == [1, 9, 9, 9, 9, 2]
    for tokens in ([1, 2], [9, 9]):
        with pytest.raises(UserError, match="place for a picture"):
            config.with_picture(tokens)


def test_a_template_that_reads_parts_gets_them(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    write_llava(tmp_path)
    tokenizer = ChatTokenizer.load(tmp_path)
    assert tokenizer.reads_parts
    message = [{"role": "user", "content": "Hello"}]
    assert tokenizer.chat_text(message) == "USER: Hello ASSISTANT:"
    message[0]["content"] = [{"type": "text", "text": "Hello"}, {"type": "image"}]  # type: ignore[dict-item]
    assert tokenizer.chat_text(message) == f"USER: {IMAGE}\nHello ASSISTANT:"
