# SPDX-License-Identifier: Apache-2.0
"""Calls to git, and files and commits read from and written to repositories."""
