# SPDX-License-Identifier: Apache-2.0
"""Models of this project, beside those of MLC-LLM: one row each, by ``model_type``."""

from mlc_llm.quantization import make_quantization_functions

from . import smollm3
from .model import Model


def _row(name: str, model: type, config: type, loader: object) -> Model:
    sources = dict.fromkeys(("huggingface-torch", "huggingface-safetensor"), loader)
    return Model(name, config, model, sources, make_quantization_functions(model))


MORE_MODELS = {
    "smollm3": _row(
        "smollm3", smollm3.SmolLM3ForCausalLM, smollm3.SmolLM3Config, smollm3.huggingface
    ),
}
