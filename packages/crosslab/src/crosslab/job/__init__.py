# SPDX-License-Identifier: Apache-2.0
"""The main job: build a model, run it and check its answer against the reference."""
