# SPDX-License-Identifier: Apache-2.0
"""From a machine with nothing but python3 and pip to a running nox session.

``python3 scripts/bootstrap.py SESSION [-- OPTIONS]`` is ``nox -s SESSION -- OPTIONS`` with the
nox and uv that ``bootstrap.txt`` pins, in an environment of their own (``.bootstrap/``).
"""
# This file and sessions/__init__.py are in the syntax that Python 2.7 and 3 share: a Python that
# is too old reads them, and prints what is needed.

import sys

from sessions import need_python

if __name__ == "__main__":
    need_python("bootstrap", sys.argv)
    from sessions.start import main

    sys.exit(main(sys.argv[1:]))
