# SPDX-License-Identifier: Apache-2.0
"""A classifier of pictures in ONNX on a device: partition, calibration, run."""
