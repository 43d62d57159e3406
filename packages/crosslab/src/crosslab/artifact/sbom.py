# SPDX-License-Identifier: Apache-2.0
"""Bill of materials of an artefact in CycloneDX 1.6, written with CycloneDX's Python library."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import (
    Component,
    ComponentScope,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from packageurl import PackageURL

from crosslab.artifact.manifest import Entry

# Namespace of serial numbers, which are computed from the content.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "mlc-rvv")
_PROPERTY = "mlc-rvv"


@dataclass(frozen=True)
class Part:
    """Software or data that is in an artefact, or that the build of the artefact used.

    Attributes:
        name: name of the component.
        version: version, commit or digest.
        licence: SPDX expression, or else the licence's name; empty: unknown.
        shipped: True if it is in the artefact; False if it was only used in the build.
        kind: CycloneDX's type of component.
        purl: package URL; may be empty.
        sha256: hash of the downloaded file; may be empty.
        patches: name and sha256 of the applied patches.
        notes: further properties.
    """

    name: str
    version: str
    licence: str
    shipped: bool
    kind: str = "library"
    purl: str = ""
    sha256: str = ""
    patches: tuple[tuple[str, str], ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def render_sbom(whole: Part, parts: Sequence[Part], files: Sequence[Entry]) -> str:
    """Return the bill of materials of ``whole``, its ``parts`` and ``files``, as CycloneDX JSON."""
    root = _component(whole)
    components = [_component(part) for part in parts]
    for entry in files:
        components.append(_file(entry))
    content = repr((whole, tuple(parts), tuple(files)))
    bom = Bom(components=components, serial_number=uuid.uuid5(_NAMESPACE, content))
    # The text must not depend on the time.
    bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.metadata.component = root
    bom.register_dependency(root, components)
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def sbom_problem(text: str) -> str:
    """Return the first violation of CycloneDX's schema in a bill; empty for a valid bill."""
    # Imported here, because the import of jsonschema takes up to a second.
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    try:
        violation = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    except ValueError as error:
        return f"it is not JSON: {error}"
    return str(violation).splitlines()[0] if violation else ""


def _component(part: Part) -> Component:
    licences = [LicenseFactory().make_from_string(part.licence)] if part.licence else []
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)] if part.sha256 else []
    pedigree = None
    if part.patches:
        pedigree = Pedigree(patches=[_patch(name, sha256) for name, sha256 in part.patches])
    return Component(
        name=part.name,
        version=part.version,
        type=ComponentType(part.kind),
        bom_ref=part.purl or f"{part.name}@{part.version}",
        purl=PackageURL.from_string(part.purl) if part.purl else None,
        licenses=licences,
        hashes=hashes,
        pedigree=pedigree,
        scope=ComponentScope.REQUIRED if part.shipped else ComponentScope.EXCLUDED,
        properties=[Property(name=f"{_PROPERTY}:{k}", value=v) for k, v in part.notes.items()],
    )


def _patch(name: str, sha256: str) -> Patch:
    # CycloneDX distinguishes patches by URL, so the URL has the hash.
    diff = Diff(url=XsUri(f"{name}#sha256={sha256}"))
    return Patch(type=PatchClassification.UNOFFICIAL, diff=diff)


def _file(entry: Entry) -> Component:
    return Component(
        name=entry.path,
        type=ComponentType.FILE,
        bom_ref=f"file:{entry.path}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=entry.sha256)],
        properties=[Property(name=f"{_PROPERTY}:bytes", value=str(entry.bytes))],
    )
