# SPDX-License-Identifier: Apache-2.0
"""A device beside a CPU that runs a model: what is linked into the runner, and the main job."""
