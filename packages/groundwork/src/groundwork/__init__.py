# SPDX-License-Identifier: Apache-2.0
"""Atomic writes, file locks, hashing and errors: shared by all packages, depends on none.

Standard library only: ``scripts/bootstrap.py`` uses this package before it installs any other.
"""
