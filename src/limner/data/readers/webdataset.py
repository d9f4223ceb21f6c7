"""WebDataset shards: tar files whose members of one name are a sample, such as 000012.jpg, 000012.txt, 000012.json."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from limner.data.readers.corpus_files import ReaderOptions, assign_split, find_files
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.errors import CollectionError, MediaError, system_reason
from limner.files import decode_utf8, open_file
from limner.files.structured import StructureError, parse_json
from limner.media.image import image_size
from limner.storage.names import require_name

IMAGES = ("jpg", "jpeg", "png", "webp")
"""Suffixes of images in shards."""
MAX_IMAGE_BYTES, MAX_TEXT_BYTES = 64 << 20, 1 << 20
"""Largest members of a shard that are read."""
CAPTIONS = ("caption", "text", "captions", "sentences")
"""Keys of a JSON member, as img2dataset writes it, that hold a sentence or a list of sentences."""


class _Member(NamedTuple):
    sample: str
    suffix: str
    data: bytes
    location: SourceLocation


def read_webdataset(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read shards, a folder of them or one; images are written into the folder `images` of the collection.

    The item id is the name of the sample. Its sentences are the lines of the member `txt`, or the captions of the
    member `json`. Members of a sample follow each other, as in every WebDataset.

    Args:
        source: folder of `*.tar`, or one such file.
        options: `split` of the items, by default `train`; `lang` of the sentences, by default English.
        builder: receives the items in the order of the shards.

    Raises:
        CollectionError: a shard is damaged, or has a member that is no file of the shard: a link, a device, or a path
            that leaves the folder; a member is too large.
    """
    for shard in find_files(source, ["*.tar"], "WebDataset shards"):
        sample: dict[str, _Member] = {}
        for member in _members(shard):
            if sample and member.sample != next(iter(sample.values())).sample:
                _add_sample(shard, sample, options, builder)
                sample = {}
            sample[member.suffix] = member
        if sample:
            _add_sample(shard, sample, options, builder)


def _members(shard: Path) -> Iterator[_Member]:
    """Read the members that a sample can have; others are passed over."""
    try:
        with open_file(shard) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            for entry in archive:
                location = SourceLocation(shard, entry.name)
                if entry.isdir():
                    continue
                path = _require_safe(entry, location)
                name, _, suffix = path.name.partition(".")
                limit = MAX_IMAGE_BYTES if (suffix := suffix.lower()) in IMAGES else MAX_TEXT_BYTES
                if suffix not in (*IMAGES, "txt", "json"):
                    continue
                if entry.size > limit:
                    raise CollectionError(
                        f"{location}: has {entry.size:,} bytes; expected at most {limit:,}: remove it from the shard"
                    )
                stream = archive.extractfile(entry)
                data = b"" if stream is None else stream.read(limit)
                yield _Member((path.parent / name).as_posix(), suffix, data, location)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise CollectionError(
            f"{shard}: damaged or no tar file ({system_reason(error)}); download the shard again"
        ) from None


def _require_safe(entry: tarfile.TarInfo, location: SourceLocation) -> PurePosixPath:
    """Return the path of a member; CollectionError if it is no plain file below the folder of the shard."""
    path = PurePosixPath(entry.name)
    if not entry.isreg() or entry.issparse():
        raise CollectionError(f"{location}: a link, a device or a sparse file; expected plain files: remove it")
    if path.is_absolute() or ".." in path.parts:
        raise CollectionError(f"{location}: a path outside of the shard; expected a name such as 000012.jpg: remove it")
    for part in path.parts:
        require_name(part, f"{location}: the name", CollectionError)
    return path


def _add_sample(shard: Path, sample: dict[str, _Member], options: ReaderOptions, builder: ItemBuilder) -> None:
    image = next((sample[suffix] for suffix in IMAGES if suffix in sample), None)
    first = next(iter(sample.values()))
    if image is None:
        builder.skip("samples without an image", first.sample, first.location)
        return
    try:
        image_size(image.data)
    except MediaError:
        builder.skip("images that cannot be read", first.sample, image.location)
        return
    name = f"images/{shard.stem}/{image.sample}.{image.suffix}"
    builder.write_file(name, image.data)
    builder.add_item(first.sample, image.location, split=assign_split(first.sample, options), image=name)
    for group, text in enumerate(_sentences(sample)):
        builder.add_sentence(first.sample, first.location, options.lang or "en", text, group)


def _sentences(sample: dict[str, _Member]) -> list[str]:
    if (member := sample.get("txt")) is not None:
        location = member.location
        return decode_utf8(member.data, CollectionError, lambda _: location).splitlines()
    if (member := sample.get("json")) is None:
        return []
    try:
        values = parse_json(member.data)
    except StructureError as error:
        raise CollectionError(f"{member.location}: {error}; correct the member") from None
    found: object = next((values[key] for key in CAPTIONS if isinstance(values, dict) and values.get(key)), [])
    return [str(text) for text in (found if isinstance(found, list) else [found])]
