# SPDX-License-Identifier: Apache-2.0
"""Models of this project, beside MLC-LLM's or in their place: one row each, by ``model_type``."""

from mlc_llm.quantization import make_quantization_functions

from . import gpt_oss, smollm3
from . import nomic_bert as nomic
from .bert import bert_loader
from .bert import on_cpu as bert
from .llava import on_cpu as llava
from .model import Model


def _row(name: str, model: type, config: type, loader: object, **more: object) -> Model:
    sources = dict.fromkeys(("huggingface-torch", "huggingface-safetensor"), loader)
    return Model(name, config, model, sources, make_quantization_functions(model), **more)


_ENCODER = {
    "model_task": "embedding",
    "embedding_metadata": bert.EmbeddingMetadata("encoder", "mean"),
}
MORE_MODELS = {
    "bert": _row(
        "bert", bert.BertModel, bert.EncoderConfig, bert_loader.huggingface_bge, **_ENCODER
    ),
    "gpt_oss": _row(
        "gpt_oss", gpt_oss.GptOssForCausalLM, gpt_oss.GptOssConfig, gpt_oss.huggingface
    ),
    "llava": _row("llava", llava.LlavaForCausalLM, llava.LlavaConfig, llava.huggingface),
    "nomic_bert": _row(
        "nomic_bert", nomic.NomicBertModel, nomic.NomicBertConfig, nomic.huggingface, **_ENCODER
    ),
    "smollm3": _row(
        "smollm3", smollm3.SmolLM3ForCausalLM, smollm3.SmolLM3Config, smollm3.huggingface
    ),
}
