# SPDX-License-Identifier: Apache-2.0
"""Series of other tools, read and written: quilt, Debian, format-patch, mailboxes, ``.patches``."""
