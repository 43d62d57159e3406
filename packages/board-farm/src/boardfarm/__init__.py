# SPDX-License-Identifier: Apache-2.0
"""A farm of boards: TVM's RPC tracker, boards that join it, and the tuning that runs on them."""
