# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided search: ``python tests/fuzz/coverage_guided.py NAME OUT SECONDS``.

One reader under atheris, which takes the process over, so that each search has one of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

# What is imported here is what coverage is measured of: our readers, and what they read with.
with atheris.instrument_imports(include=["crosslab", "forkpatch", "tomllib", "targets"]):
    import targets

CORPUS = Path(__file__).parent / "corpus"


def main(name: str, out: Path, seconds: float) -> None:
    """Search until a reader fails or the time is over; ends the process."""
    kept = out / "corpus" / name
    kept.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds:.0f}", "-timeout=30", "-rss_limit_mb=8000"]
    options += ["-max_len=65536", f"-artifact_prefix={out}/{name}-", str(kept), str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *options], lambda data: targets.call(name, data))
    with targets.bounded_memory():
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
