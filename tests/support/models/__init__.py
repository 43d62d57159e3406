# SPDX-License-Identifier: Apache-2.0
"""Models, builds and machines that several folders of tests share."""
