# SPDX-License-Identifier: Apache-2.0
"""WordPiece and BERT's normalizer in the form that the runner reads.

The normalizer changes characters one by one, but for the order of marks behind a letter. So the
library itself says what becomes of each, and which are words: its tables are of an older Unicode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from tokenizers import Tokenizer

from crosslab.tokenizer.code_points import LAST, SURROGATES
from crosslab.tokenizer.unsupported import UnsupportedTokenizerError


def word_pieces(tokenizer: Tokenizer, last: Sequence[int]) -> bytes:
    """Return WordPiece's JSON in ``tokenizer.bin``; runner/text/word_pieces.h explains its fields.

    Args:
        tokenizer: a tokenizer with WordPiece and BERT's normalizer.
        last: ids behind every text.

    Raises:
        UnsupportedTokenizerError: the tokenizer has no token for unknown words.
    """
    model = json.loads(tokenizer.to_str())["model"]
    if (unknown := tokenizer.token_to_id(model["unk_token"])) is None:
        raise UnsupportedTokenizerError("it has no token for unknown words")
    normal, words = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str
    codes = [code for code in range(LAST + 1) if code not in SURROGATES]
    changed = {code: text for code in codes if (text := normal(chr(code))) != chr(code)}
    # The normalizer puts blanks around Chinese characters.
    apart = {code for code, text in changed.items() if text == f" {chr(code)} "}
    cut = {word for word, _ in words("a".join(map(chr, codes))) if len(word) == 1}
    alone = apart | {ord(word) for word in cut - {"a"}}
    about = {
        "unknown": unknown,
        "longest": model["max_input_chars_per_word"],
        "prefix": model["continuing_subword_prefix"],
        "last": list(last),
        "changes": list(_ranges({c: text for c, text in changed.items() if c not in apart})),
        "alone": list(_ranges(dict.fromkeys(sorted(alone)))),
    }
    return json.dumps(about, separators=(",", ":")).encode()


def _ranges(changes: Mapping[int, str | None]) -> Iterator[int | str]:
    """Yield first and last code of neighbours with one text, and the text unless it is None."""
    numbered = enumerate(changes.items())
    for (text, _), run in groupby(numbered, lambda item: (item[1][1], item[1][0] - item[0])):
        codes = [code for _, (code, _) in run]
        yield from (codes[0], codes[-1])
        if text is not None:
            yield text
