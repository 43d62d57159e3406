# SPDX-License-Identifier: Apache-2.0
"""Writes the smallest Llama as GGUF: ``python tests/endtoend/make_gguf.py FILE``."""

import sys

import gguf
import numpy as np

HIDDEN, WIDE, TOKENS = 4, 8, ["<|end|>", "a", "b", "ab", "\u0120"]


def main(path: str) -> None:
    """Write it; the same bytes each time."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    shapes = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}
    shapes |= {"blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,)}
    shapes |= {"blk.0.attn_q": (HIDDEN, HIDDEN), "blk.0.attn_output": (HIDDEN, HIDDEN)}
    shapes |= {"blk.0.attn_k": (2, HIDDEN), "blk.0.attn_v": (2, HIDDEN)}
    shapes |= {"blk.0.ffn_gate": (WIDE, HIDDEN), "blk.0.ffn_up": (WIDE, HIDDEN)}
    shapes |= {"blk.0.ffn_down": (HIDDEN, WIDE)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.full(shape, 0.5, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
