# SPDX-License-Identifier: Apache-2.0
"""Upstream's own tests as regression tests of a fork, and the tests that patches name."""
