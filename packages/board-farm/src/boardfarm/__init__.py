# SPDX-License-Identifier: Apache-2.0
"""A farm of boards: TVM's RPC tracker, boards that join the tracker, and tuning on the boards."""
