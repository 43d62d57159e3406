# SPDX-License-Identifier: Apache-2.0
"""Programs that talk to a server: a browser, the command llm."""
