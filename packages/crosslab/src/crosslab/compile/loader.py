# SPDX-License-Identifier: Apache-2.0
"""MLC-LLM's loader of a model: the weights of a file that each parameter joins.

:mod:`crosslab.compile.mlc` runs this program with the patched trees on its path:
``python -m crosslab.compile.loader MODEL QUANTIZATION [FOLDER]``. It prints the names of the
weights that are read, and, for a file in blocks, the weights of each parameter that only joins
their rows: such weights stay in blocks. With FOLDER it writes the parameters instead.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mlc_llm.model import MODELS
from mlc_llm.quantization import QUANTIZATION

from crosslab.models.config import read_table
from crosslab.models.gguf_params import GgufWeights
from crosslab.models.params import write_params
from crosslab.models.weights_file import F32

MATRIX = 2
Join = Callable[..., Any]


def mapping_of(model: Path, quantization: str) -> Any:
    """Return MLC-LLM's mapping of parameters to the weights of a model's files."""
    path = model / "config.json"
    kind = MODELS[json.loads(path.read_text(encoding="utf-8"))["model_type"]]
    # As an import reads it, which this folder may not have gone through yet.
    config, format_ = kind.config.from_dict(read_table(path)), QUANTIZATION[quantization]
    return kind.source["huggingface-safetensor"](config, format_)


def whole_matrices(names: Sequence[str], rows: Sequence[int], join: Join) -> list[list[str]] | None:
    """Return the weights whose rows a parameter joins, all and unchanged; None: it does more.

    ``join`` is tried on matrices with two columns, whose rows differ from each other.

    Args:
        names: names of the weights.
        rows: number of rows of each weight.
        join: function from the weights to the parameter.

    Returns:
        names of the joined weights, in order: lists of one name, or of a name for each expert.
    """
    first = np.cumsum([0, *rows])
    columns = np.array([[0.0, 0.5]])
    matrices = [
        n + np.arange(count)[:, None] + columns for n, count in zip(first, rows, strict=False)
    ]
    try:
        joined = np.asarray(join(*matrices))
    except (ValueError, IndexError, AssertionError):
        return None
    experts = len(joined) if joined.ndim > MATRIX else 1
    flat = joined.reshape(-1, joined.shape[-1])
    if joined.ndim < MATRIX or flat.shape != (first[-1], MATRIX):
        return None
    starts = {int(n): i for i, n in enumerate(first[:-1])}
    order: list[int] = []
    while (at := sum(rows[i] for i in order)) < len(flat):
        source = starts.get(int(flat[at, 0]))
        if source is None or source in order:
            return None
        if not np.array_equal(flat[at : at + rows[source]], matrices[source]):
            return None
        order.append(source)
    if not order or len(order) % experts:
        return None
    of_experts = np.array(order).reshape(experts, -1).T
    even = all(len({rows[i] for i in each}) == 1 for each in of_experts)
    return [[names[i] for i in each] for each in of_experts] if even else None


def rows_of(mapping: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, list[list[str]]]:
    """Return the weights of each parameter that only joins rows, see :func:`whole_matrices`.

    Args:
        mapping: see :func:`mapping_of`.
        shapes: shapes of the weights in the files, by name.
    """
    table = {}
    for param, names in mapping.param_map.items():
        sizes = [tuple(shapes.get(name, ())) for name in names]
        if all(len(size) == MATRIX for size in sizes):
            rows = [size[0] for size in sizes]
            if found := whole_matrices(names, rows, mapping.map_func[param]):
                table[param] = found
    return table


def params_of(model: Path, quantization: str) -> Iterator[tuple[str, Any]]:
    """Yield name and values of all parameters of a model, those in blocks by their parts."""
    mapping, weights = mapping_of(model, quantization), GgufWeights(model)
    layout = weights.layout(rows_of(mapping, weights.shapes))
    for param, names in mapping.param_map.items():
        if param not in layout:
            whole: F32 = np.asarray(mapping.map_func[param](*map(weights.read, names)))
            yield param, whole
    yield from weights.params(layout)


def main(model: Path, quantization: str, folder: Path | None = None) -> None:
    """Print the tables of a model, or write its parameters."""
    if folder:
        write_params(params_of(model, quantization), folder, exact=True)
        return
    mapping, weights = mapping_of(model, quantization), GgufWeights(model)
    wanted = sorted(set(itertools.chain(*mapping.param_map.values())))
    print(json.dumps([wanted, rows_of(mapping, weights.shapes) if weights.types else {}]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(Path, sys.argv[3:]))
