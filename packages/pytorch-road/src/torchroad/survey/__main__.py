# SPDX-License-Identifier: Apache-2.0
"""``python -m torchroad.survey``: the table of torch.nn's modules, or of some of them."""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from groundwork.files import atomic_write_json
from torchroad.survey.run import Verdict, judged, module_cases


def main() -> int:
    """Print a line for each case and the sums; 1 if a case is wrong or failed."""
    parser = argparse.ArgumentParser(prog="python -m torchroad.survey", description=__doc__)
    parser.add_argument("only", nargs="*", help="names of modules (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    found = []
    for name, factory in module_cases():
        if args.only and name.split()[0] not in args.only:
            continue
        found.append(judged(name, factory))
        one = found[-1]
        told = one.told.replace("\n", " ")
        print(f"{one.name:28} {one.verdict:8} {one.error:8.1e} {one.seconds:5.1f} s  {told}")
    count = Counter(one.verdict for one in found)
    print(json.dumps({verdict: count[verdict] for verdict in Verdict}))
    if args.json:
        atomic_write_json(args.json, [asdict(one) for one in found])
    return 1 if count[Verdict.WRONG] or count[Verdict.FAILED] else 0


if __name__ == "__main__":
    raise SystemExit(main())
