# SPDX-License-Identifier: Apache-2.0
"""Pins of upstream versions: looked up, written into the lock, watched for newer ones."""
