"""The file generation.json of an exported model: inputs and outputs of its graphs, and decoding settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

import xxhash

from limner.bounds import Count, CountOrNone
from limner.decoding.settings import DecodingSettings
from limner.errors import RunError, SettingsError
from limner.features.preprocessing import Preprocessing
from limner.files import open_file, read_bytes, write_text
from limner.files.structured import parse_json
from limner.settings import Settings
from limner.storage.json_text import to_json
from limner.text.vocab import SPECIAL_TOKENS

MANIFEST = "generation.json"
"""File that describes an exported model; a folder with this file is an exported model."""
BACKBONE, ENCODER, STEP = "backbone.onnx", "encoder.onnx", "step.onnx"
"""Graphs: from pixels to features, from features to memory and first state, and from one token to the next."""
TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source_tokenizer.json"
MODEL_PREFIX, BACKBONE_PREFIX = "model.", "module."
"""Prefixes of the names of weights that a graph does not contain."""
MAX_FILE_BYTES = 2**31 - 1
"""Maximum size of a file of an exported model: the maximum of a protobuf message, in which graphs are stored."""
FORMAT: Literal[2] = 2
"""Version of the files of an exported model."""
EXPORT_AGAIN = "repeat 'limner export'"
_DIGEST = "digest"

ElementType = Literal["float32", "int64", "bool"]


class TensorSpec(Settings):
    """A tensor of the memory or of the state: one row for each hypothesis."""

    name: str
    """Name of the output of the encoder and of the input of the step."""
    dtype: ElementType
    """Type of the elements."""
    shape: tuple[CountOrNone | None, ...]
    """Shape; null for axes whose size depends on the input."""


class FeatureInput(Settings):
    """Features of an image that the encoder reads."""

    kind: Literal["pooled", "grid", "maps"]
    """Kind of the features, and name of the input of the encoder."""
    shape: tuple[Count, ...]
    """Shape of the features of one image."""
    table: str
    """Name of the feature table that the model was trained on."""
    fingerprint: str
    """Fingerprint of the features."""


class Manifest(Settings):
    """Content of generation.json, without its digest."""

    format: Literal[2]
    """Version of the files."""
    limner: str
    """Version of Limner that exported the model."""
    opset: Count
    """Version of the operators of ONNX in the graphs."""
    model: str
    """Name of the model in the recipe."""
    lang: str
    """Language of the generated sentences."""
    source_lang: str | None = None
    """Language of the source sentences; null for a captioner."""
    uses_image: bool
    """Whether sentences depend on the image."""
    vocab_size: Count
    """Number of tokens, special tokens included."""
    special_tokens: dict[str, CountOrNone]
    """Ids of the special tokens."""
    decoding: DecodingSettings
    """Default settings of decoding."""
    features: tuple[FeatureInput, ...] = ()
    """Features that the encoder reads."""
    preprocessing: Preprocessing | None = None
    """Preprocessing of images for the backbone; null without a backbone."""
    backbone: str = ""
    """Backbone whose weights are in a separate package and not in its graph; empty for another backbone."""
    backbone_sha256: str = ""
    """SHA-256 of the file with the weights of the backbone."""
    weights: Literal["", "model.safetensors"] = ""
    """File with the weights of the model; empty if its graphs contain them."""
    no_backbone: str = ""
    """Reason why a model that reads features has no backbone."""
    memory: tuple[TensorSpec, ...]
    """Tensors that are constant while a sentence is generated."""
    state: tuple[TensorSpec, ...]
    """Tensors that each step replaces."""
    files: dict[str, str]
    """Checksum of every file of the folder that is read, except the manifest."""


class Exported(NamedTuple):
    """Contents of an exported folder whose checksums hold."""

    manifest: Manifest
    files: dict[str, bytes]


def is_exported(folder: Path) -> bool:
    """Whether a folder is an exported model."""
    return (folder / MANIFEST).is_file()


def file_checksum(data: bytes) -> str:
    """Compute the checksum of a file for `Manifest.files`."""
    return xxhash.xxh3_64_hexdigest(data)


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write generation.json with its digest."""
    values = manifest.model_dump(mode="json")
    digest = file_checksum(to_json(values, sort_keys=True).encode())
    write_text(folder / MANIFEST, to_json({_DIGEST: digest, **values}, indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Read and verify generation.json; RunError if the file is missing, damaged, edited, or of another version."""
    path = folder / MANIFEST
    try:
        values = parse_json(read_bytes(path))
    except FileNotFoundError:
        missing = MANIFEST if folder.is_dir() else "such folder"
        raise RunError(
            f"{folder}: expected an exported model, found no {missing}; name a folder that 'limner export' wrote"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{path}: cannot be read ({reason}); {EXPORT_AGAIN}") from None
    if not isinstance(values, dict) or "format" not in values:
        raise RunError(f"{path}: not a file of an exported model; {EXPORT_AGAIN}")
    if values["format"] != FORMAT:
        actual = str(values["format"])[:20]
        raise RunError(f"{path}: expected an exported model of format {FORMAT}, found {actual!r}; {EXPORT_AGAIN}")
    if values.pop(_DIGEST, None) != file_checksum(to_json(values, sort_keys=True).encode()):
        raise RunError(
            f"{path}: damaged or edited, as its digest does not match; {EXPORT_AGAIN}, and change settings with the "
            "options of the commands"
        )
    try:
        manifest = Manifest.parse(values)
    except SettingsError as error:
        raise RunError(f"{path}: {error}; {EXPORT_AGAIN}") from None
    _require_consistent(path, manifest)
    return manifest


def read_exported(folder: Path) -> Exported:
    """Read all files of an exported model and verify their checksums; RunError if one is missing or damaged."""
    manifest = read_manifest(folder)
    files = {name: _read_verified(folder / name, expected) for name, expected in manifest.files.items()}
    return Exported(manifest, files)


def _read_verified(path: Path, expected: str) -> bytes:
    try:
        with open_file(path) as stream:
            if (size := os.fstat(stream.fileno()).st_size) > MAX_FILE_BYTES:
                raise RunError(f"{path}: expected at most {MAX_FILE_BYTES:,} bytes, found {size:,}; {EXPORT_AGAIN}")
            data = stream.read()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); restore the file, or {EXPORT_AGAIN}") from None
    if file_checksum(data) != expected:
        raise RunError(
            f"{path}: damaged or edited, as its checksum is not that in {MANIFEST}; restore the file, or {EXPORT_AGAIN}"
        )
    return data


def _require_consistent(path: Path, manifest: Manifest) -> None:
    """Check the names of the files and the special tokens; RunError if they are not as expected."""
    needed = {ENCODER, STEP, TOKENIZER}
    needed |= {SOURCE_TOKENIZER} if manifest.source_lang is not None else set()
    needed |= {BACKBONE} if manifest.preprocessing is not None else set()
    needed |= {manifest.weights} if manifest.weights else set()
    if set(manifest.files) != needed:
        expected, actual = (", ".join(sorted(names)) for names in (needed, manifest.files))
        raise RunError(f"{path}: expected the files {expected}, found {actual[:200]}; {EXPORT_AGAIN}")
    if manifest.special_tokens != SPECIAL_TOKENS._asdict():
        actual = str(manifest.special_tokens)[:200]
        raise RunError(
            f"{path}: expected the special tokens {SPECIAL_TOKENS._asdict()}, found {actual}; {EXPORT_AGAIN}"
        )
