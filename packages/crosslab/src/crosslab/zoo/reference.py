# SPDX-License-Identifier: Apache-2.0
"""Model of a family with random weights, and transformers' answer in float32.

Only functions that create a model import torch and transformers.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosslab.cached_build import cached_build
from crosslab.errors import LabError, UserError
from crosslab.models import families as families_module
from crosslab.models.encoder import ENCODERS
from crosslab.models.families import Family
from crosslab.models.formats import Packing
from crosslab.models.pictures import prepare, sample_picture, write_png
from crosslab.models.reference import Answer
from crosslab.models.weights_file import F32
from crosslab.zoo import weights as weights_module
from crosslab.zoo.weights import USUAL, fill_tensor
from groundwork.hashing import digest

PACKAGES = ("torch", "transformers", "safetensors")
SEED = 20260821
PROMPT = 24
NEW = 8
# Number of candidate prompts; of those with a clear answer, the most varied answer is chosen.
CANDIDATES = 4
CLEAR = 0.01
ANSWER = "reference.npz"
PICTURE = "picture.png"  # beside the model, if it sees


@dataclass(frozen=True)
class FamilyQuestion:
    """A family's model, a prompt, and the reference's answer.

    Attributes:
        model: folder with ``config.json`` and ``model.safetensors``, as in published models.
        prompt: token ids.
        answer: tokens and logits of the reference; of a BERT as of :func:`as_answer`.
        margin: smallest difference of a chosen token's logit to the next one, divided by the
            largest logit.
    """

    model: Path
    prompt: tuple[int, ...]
    answer: Answer
    margin: float


def need_packages() -> None:
    """Check that the reference's packages are installed.

    Raises:
        UserError: torch, transformers or safetensors is not installed.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"the reference needs {', '.join(missing)}",
            remedy="nox -s zoo installs them; without nox: pip install torch transformers",
        )


def ask(
    family: Family,
    cache: Path,
    packing: Packing = USUAL,
    new: int = NEW,
    length: int = PROMPT,
) -> FamilyQuestion:
    """Create a family's model and compute the reference's answer, or return the cached result.

    Args:
        family: the family.
        cache: folder of models.
        packing: packing of a format that represents the weights exactly.
        new: tokens of the answer.
        length: tokens of the prompt.

    Raises:
        UserError: torch or transformers is missing.
        LabError: transformers does not have the class, or its model is not as expected.
    """
    need_packages()
    versions = [importlib.metadata.version(name) for name in PACKAGES]
    sources = [Path(str(m.__file__)) for m in (weights_module, families_module)]
    key = digest(repr((family, packing, versions, new, length)), *sources, Path(__file__))
    folder = cached_build(
        cache,
        f"zoo-model-{family.name}",
        key,
        lambda out: _make(family, packing, (length, new), out),
    )
    with np.load(folder / ANSWER) as stored:
        tokens = tuple(int(token) for token in stored["tokens"])
        answer = Answer(tokens, stored["logits"])
        prompt, margin = tuple(map(int, stored["prompt"])), float(stored["margin"])
        return FamilyQuestion(folder, prompt, answer, margin)


def as_answer(vector: F32) -> tuple[tuple[int, ...], F32]:
    """Return a vector as tokens and logits: the place of its largest number, and one row."""
    return (int(vector.argmax()),), vector[None]


def make_model(family: Family, folder: Path, packing: Packing = USUAL) -> Any:
    """Write a family's model like a published one; return the reference's torch module.

    Raises:
        LabError: transformers does not have the class.
    """
    # Its warnings while loading concern features that are not used here.
    importlib.import_module("transformers.utils.logging").set_verbosity_error()
    with importlib.import_module("torch").no_grad():
        model = _model(family, packing)
        _save(family, model, folder)
    return model


def _make(family: Family, packing: Packing, tokens: tuple[int, int], folder: Path) -> None:
    model = make_model(family, folder, packing)
    if family.sees:
        write_png(sample_picture(), folder / PICTURE)
    with importlib.import_module("torch").no_grad():
        tries = [_candidate(family, model, *tokens, n) for n in range(CANDIDATES)]
    margin, prompt, answer = max(tries, key=lambda c: (c[0] > CLEAR, len(set(c[2].tokens)), c[0]))
    np.savez(
        folder / ANSWER, margin=margin, prompt=prompt, tokens=answer.tokens, logits=answer.logits
    )


def _model(family: Family, packing: Packing) -> Any:
    """Return the reference's float32 torch module with random weights."""
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    module, _, name = family.reference.rpartition(".")
    kind = getattr(importlib.import_module(module) if module else transformers, name, None)
    if kind is None:
        raise LabError(f"transformers {transformers.__version__} has no {family.reference}")
    sizes = {k: v for k, v in family.config.items() if k != "model_type"}
    # A copy: transformers adds fields to the tables in it.
    config = kind.config_class(**copy.deepcopy({**sizes, **family.settings}))
    config._attn_implementation = "eager"
    torch.manual_seed(SEED)
    model = kind(config).eval().to(torch.float32)
    # Tied weights are one tensor under two names: parameters are listed once.
    for name, parameter in model.named_parameters():
        # In place, as gigabytes would not fit twice.
        fill_tensor(parameter.detach().numpy(), name, family.norm, SEED, packing)
        if family.is_absent(name):
            parameter.zero_()
    return model


def _save(family: Family, model: Any, folder: Path) -> None:
    """Write the model like a published model: one file of weights, and the config."""
    safetensors, mapped = map(importlib.import_module, ("safetensors.numpy", "safetensors.torch"))
    model.save_pretrained(folder / "saved", max_shard_size="100GB")
    # Through torch, whose tensors are pages of the file, as large models would not fit twice.
    saved = mapped.load_file(folder / "saved" / "model.safetensors")
    stored = {name: tensor.numpy() for name, tensor in saved.items()}
    for path in (folder / "saved").iterdir():
        path.unlink()
    (folder / "saved").rmdir()
    named = family.published_weights(stored)
    safetensors.save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    family.write_config(folder)


def _candidate(
    family: Family, model: Any, length: int, new: int, number: int
) -> tuple[float, NDArray[np.int64], Answer]:
    """Return the margin, the prompt and the answer of a random prompt."""
    rng = np.random.default_rng([SEED, number])
    prompt = rng.integers(0, family.vocab, length)
    if family.kind in ENCODERS:
        return 1.0, prompt, Answer(*as_answer(_vector(model, prompt.tolist())))
    if family.sees:
        prompt[prompt == family.config["image_token_index"]] = 0
        prompt[length // 4] = family.config["image_token_index"]
    answer = _greedy(model, new, *_shown(family, prompt.tolist()))
    first, second = np.sort(answer.logits, axis=-1)[:, :-3:-1].T
    return float((first - second).min() / np.abs(answer.logits).max()), prompt, answer


def _shown(family: Family, tokens: list[int]) -> tuple[list[int], dict[str, Any]]:
    """Return the tokens with those of a picture, and the picture for transformers' model."""
    if not family.sees:
        return tokens, {}
    place, vision = tokens.index(family.config["image_token_index"]), family.config["vision_config"]
    count = (vision["image_size"] // vision["patch_size"]) ** 2
    numbers = prepare(sample_picture(), family.config["picture"], vision["image_size"])
    pixels = importlib.import_module("torch").from_numpy(numbers[None].astype(np.float32))
    repeated = [*tokens[:place], *tokens[place : place + 1] * count, *tokens[place + 1 :]]
    return repeated, {"pixel_values": pixels}


def _vector(model: Any, tokens: list[int]) -> F32:
    """Return the mean of the tokens' states, scaled to length 1."""
    torch = importlib.import_module("torch")
    mean = model(torch.tensor([tokens])).last_hidden_state[0].double().mean(dim=0)
    vector: F32 = (mean / mean.norm()).numpy().astype(np.float32)
    return vector


def _greedy(model: Any, new: int, tokens: list[int], inputs: Mapping[str, Any]) -> Answer:
    """Generate an answer greedily without a cache: each step reads all tokens again."""
    torch = importlib.import_module("torch")
    rows = []
    for _ in range(new):
        logits = model(torch.tensor([tokens]), use_cache=False, **inputs).logits[0, -1]
        rows.append(logits.numpy().astype(np.float32))
        tokens = [*tokens, int(rows[-1].argmax())]
    return Answer(tuple(tokens[-new:]), np.stack(rows))
