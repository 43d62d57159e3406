# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs: the site has pages from outside of docs/, with links that work on GitHub too.

A page's address is its path in the checkout, without docs/. A link to a file that is not a page,
such as source code, leads to the repository, or becomes plain text if ``repo_url`` is empty.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cores", "kernels", "runner", "packages/*")
OUTSIDE = ("*.md", *(f"{folder}/*.md" for folder in FOLDERS), "packages/*/docs/**/*.*")
LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>[^]]*)\]\((?!\w+:|#)(?P<path>[^)#\s]+)(?P<anchor>#\S+?)?\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures outside of docs/."""
    for path in sorted(path for form in OUTSIDE for path in ROOT.glob(form)):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the checkout into links of the site.

    Raises:
        PluginError: a link leads to nothing.
    """
    source = Path(str(page.file.abs_src_path))
    base = PurePosixPath(page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        target = (source.parent / found["path"]).resolve()
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: no file {found['path']}")
        path = target.relative_to(ROOT).as_posix()
        if target.is_dir() and (target / "README.md").is_file():
            path += "/README.md"
        uri = path.removeprefix("docs/")
        text, anchor = f"{found['image']}[{found['text']}]", found["anchor"] or ""
        if files.get_file_from_path(uri):
            return f"{text}({os.path.relpath(uri, base)}{anchor})"
        if config.repo_url:
            return f"{text}({config.repo_url}/blob/main/{path}{anchor})"
        return found["text"]

    return LINK.sub(link, markdown)
