# SPDX-License-Identifier: Apache-2.0
"""Environments, patched trees and locks of the nox sessions."""

#: pip's options beside a requirements file: nothing that is not listed, nothing built from source.
PIP_OPTIONS = ("--no-deps", "--require-hashes", "--only-binary=:all:")
