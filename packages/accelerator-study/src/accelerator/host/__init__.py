# SPDX-License-Identifier: Apache-2.0
"""A device that helps a CPU to run a model: the runner's objects, and the main job's plug-in."""
