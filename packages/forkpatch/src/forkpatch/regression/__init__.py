# SPDX-License-Identifier: Apache-2.0
"""Upstream's own callers and tests as regression tests of a fork: signatures, and test runs."""
