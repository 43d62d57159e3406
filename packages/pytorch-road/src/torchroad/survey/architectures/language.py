# SPDX-License-Identifier: Apache-2.0
"""Small models of the library transformers: of text, images and sound."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from torchroad.survey.architectures.outputs import Factory, Outputs, image, tokens

STATES = "last_hidden_state"
# Sizes of a small model, by the names of most families.
SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Sizes of models with separate sizes for encoder and decoder.
PAIR = {
    "vocab_size": 100, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
PATCHES = {"image_size": 32, "patch_size": 8}
SOUND = {"conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2),
         "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
         "num_feat_extract_layers": 2}  # fmt: skip


def _model(name: str, config: str, sizes: dict[str, Any]) -> Any:
    configuration = getattr(transformers, config)(**sizes)
    return getattr(transformers, name)(configuration)


def _text(name: str, *outputs: str, fixed: dict[str, Any] | None = None, **sizes: Any) -> Factory:
    """Return a factory of a model that reads tokens."""

    def make() -> Any:
        model = _model(f"{name}Model", f"{name}Config", {**SMALL, **sizes})
        return Outputs(model, *(outputs or (STATES,)), **(fixed or {})), {"input_ids": tokens()}

    return make


def _causal(name: str, **sizes: Any) -> Factory:
    """Return a factory of a model that reads tokens from left to right."""
    return _text(name, fixed={"use_cache": False}, **sizes)


def _pixels(name: str, **sizes: Any) -> Factory:
    """Return a factory of a model that reads an image."""

    def make() -> Any:
        model = _model(f"{name}Model", f"{name}Config", sizes)
        return Outputs(model, STATES), {"pixel_values": image(sizes["image_size"])}

    return make


def _sound(name: str, **sizes: Any) -> Factory:
    """Return a factory of a model that reads a sound wave."""

    def make() -> Any:
        model = _model(f"{name}Model", f"{name}Config", {**SMALL, **SOUND, **sizes})
        return Outputs(model, STATES), {"input_values": torch.randn(1, 300)}

    return make


def _pair(name: str, **sizes: Any) -> Factory:
    """Return a factory of an encoder with a decoder."""

    def make() -> Any:
        model = _model(f"{name}Model", f"{name}Config", {**PAIR, **sizes})
        inputs = {"input_ids": tokens(), "decoder_input_ids": tokens(5)}
        return Outputs(model, STATES, use_cache=False), inputs

    return make


def _whisper() -> Any:
    sizes = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16}
    return _model("WhisperModel", "WhisperConfig", {**PAIR, **sizes})


def _whisper_encoder() -> Any:
    return Outputs(_whisper().encoder, STATES), {"input_features": torch.randn(1, 8, 40)}


def _whisper_decoder() -> Any:
    inputs = {"input_ids": tokens(6), "encoder_hidden_states": torch.randn(1, 20, 32)}
    return Outputs(_whisper().decoder, STATES, use_cache=False), inputs


def _t5() -> Any:
    sizes = {"d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_model": 32}
    return _model("T5Model", "T5Config", {**SMALL, **sizes, "decoder_start_token_id": 0})


def _t5_encoder() -> Any:
    return Outputs(_t5().encoder, STATES), {"input_ids": tokens()}


def _t5_decoder() -> Any:
    inputs = {"input_ids": tokens(6), "encoder_hidden_states": torch.randn(1, 9, 32)}
    return Outputs(_t5().decoder, STATES, use_cache=False), inputs


def _masked_bert() -> Any:
    model = _model("BertModel", "BertConfig", SMALL)
    inputs = {"input_ids": tokens(), "attention_mask": torch.tensor([[1] * 9 + [0] * 3])}
    return Outputs(model, STATES, "pooler_output"), inputs


def _mamba(name: str, **sizes: Any) -> Factory:
    """Return a factory of a state space model."""
    defaults = {"state_size": 8, "num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 100}
    return _causal(name, **{**defaults, **sizes})


MODELS: dict[str, Factory] = {
    "BERT": _masked_bert,
    "RoBERTa": _text("Roberta"),
    "DistilBERT": _text("DistilBert", dim=32, hidden_dim=64, n_layers=2, n_heads=4),
    "ALBERT": _text("Albert", embedding_size=16),
    "ELECTRA": _text("Electra", embedding_size=16),
    "DeBERTa-v2": _text("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "MobileBERT": _text("MobileBert", embedding_size=16, intra_bottleneck_size=16,
                        true_hidden_size=16),
    "MPNet": _text("MPNet"),
    "FNet": _text("FNet"),
    "ConvBERT": _text("ConvBert", embedding_size=32),
    "SqueezeBERT": _text("SqueezeBert", embedding_size=32),
    "CLIP text": _text("CLIPText"),
    "CLIP vision": _pixels("CLIPVision", **SMALL, **PATCHES),
    "SigLIP vision": _pixels("SiglipVision", **SMALL, **PATCHES),
    "T5 encoder": _t5_encoder,
    "T5 decoder": _t5_decoder,
    "BART": _pair("Bart", max_position_embeddings=64),
    "Whisper encoder": _whisper_encoder,
    "Whisper decoder": _whisper_decoder,
    "GPT-2": _causal("GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "OPT": _causal("OPT", ffn_dim=64, word_embed_proj_dim=32),
    "GPT-NeoX": _causal("GPTNeoX"),
    "BLOOM": _causal("Bloom", n_layer=2, n_head=4),
    "Llama": _causal("Llama", num_key_value_heads=2),
    "Mamba": _mamba("Mamba"),
    "Mamba-2": _mamba("Mamba2", num_heads=8, head_dim=8, n_groups=1, expand=2, chunk_size=4),
    "RWKV": _causal("Rwkv", attention_hidden_size=32, context_length=64),
    "DeiT": _pixels("DeiT", **SMALL, **PATCHES),
    "BEiT": _pixels("Beit", **SMALL, **PATCHES),
    "DINOv2": _pixels("Dinov2", **SMALL, **PATCHES),
    "SegFormer": _pixels("Segformer", image_size=64, hidden_sizes=[8, 16], depths=[1, 1],
                         num_encoder_blocks=2, num_attention_heads=[1, 2], sr_ratios=[4, 2],
                         patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2],
                         decoder_hidden_size=16),
    "MobileViT": _pixels("MobileViT", image_size=64, hidden_sizes=[16, 24, 32],
                         neck_hidden_sizes=[8, 8, 12, 16, 20, 24, 32]),
    "Wav2Vec2": _sound("Wav2Vec2"),
    "WavLM": _sound("WavLM"),
}  # fmt: skip
