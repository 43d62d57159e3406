# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder of a small LLaVA with random weights, in the shape of the published one."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken

from support import text_probe

SIDE = 28
IMAGE = "<image>"
TEXT = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 14,
    "projection_dim": 32,
    "vocab_size": 32,
}
PROCESSOR = {
    "do_center_crop": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "crop_size": {"height": SIDE, "width": SIDE},
    "size": {"shortest_edge": SIDE},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "rescale_factor": 1 / 255,
}
# It reads the content of a message as parts, as the published one does.
TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    f"{{{{ '{IMAGE}\\n' }}}}{{% endfor %}}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def write_llava(folder: Path) -> Any:
    """Write config, weights, processor and tokenizer; return transformers' model in float32."""
    torch, transformers = map(importlib.import_module, ("torch", "transformers"))
    folder.mkdir(parents=True, exist_ok=True)
    trained = text_probe.trained("llama3")
    tokenizer = trained.tokenizer
    tokenizer.add_special_tokens([AddedToken(IMAGE, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    settings = {name: text for name, text in trained.settings.items() if name != "chat_template"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    torch.manual_seed(28)
    config = transformers.LlavaConfig(
        text_config={**TEXT, "vocab_size": size},
        vision_config=dict(VISION),
        image_token_index=tokenizer.token_to_id(IMAGE),
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            # bfloat16's bits, which are what a format without rounding stores.
            weight.add_(torch.randn(weight.shape) * 0.08).copy_(weight.bfloat16().float())
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    published = {
        re.sub(r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.", name): weight
        for name, weight in weights.items()
    }
    save_file(published, folder / "model.safetensors", {"format": "pt"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    return model
