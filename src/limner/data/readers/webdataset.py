"""WebDataset shards: tar files whose members of one name are a sample, such as 000012.jpg, 000012.txt, 000012.json."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from limner.data.readers.corpus_files import ReaderOptions, assign_split, find_files, split_lines
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.data.readers.values import is_missing, sentences_in
from limner.errors import CollectionError, MediaError, system_reason
from limner.files import decode_utf8, open_file
from limner.files.structured import StructureError, parse_json
from limner.media.image import IMAGE_SUFFIXES, image_size
from limner.storage.outputs import require_name

IMAGES = ("jpg", "jpeg", "png", "webp")
"""Extensions of images in shards, in the order of preference; the others of `IMAGE_SUFFIXES` follow."""
TEXTS = ("txt", "json")
"""Extensions of captions, in the order of preference."""
MAX_IMAGE_BYTES, MAX_TEXT_BYTES = 64 << 20, 1 << 20
"""Largest members of a shard that are read."""
CAPTIONS = ("caption", "text", "captions", "sentences")
"""Keys of a JSON member, as img2dataset writes it, that hold a sentence or a list of sentences."""

OTHER_MEMBERS = "members of other kinds, and further members of a sample, which are not read"


class _Member(NamedTuple):
    """File in a shard: `key.extension` by the convention of WebDataset, where `photo.v1.jpg` has the key `photo`."""

    key: str
    """Path up to the first dot of the name."""
    stem: str
    """Path up to the last dot of the name."""
    suffix: str
    """Lower-case letters after the last dot."""
    data: bytes
    location: SourceLocation


def read_webdataset(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read shards, a folder of them or one; images are written into the folder `images` of the collection.

    The item id is the name of the sample. Its sentences are the lines of the member `txt`, or the captions of the
    member `json`, as `sentences_in` reads them. Members of a sample follow each other, as in every WebDataset. A name
    ends at its first dot; of several images or texts of a sample the file without further dots counts.

    Source: folder of `*.tar`, or one such file. Options: `split` of the items, by default `train`; `lang` of the
    sentences, by default English.

    Raises:
        CollectionError: a shard is damaged, has a sample twice, or a member that is no file of the shard: a link, a
            device, or a path that leaves the folder; a member is too large.
    """
    for shard in find_files(source, ["*.tar"], "WebDataset shards"):
        for key, members in groupby(_members(shard, builder), key=lambda member: member.key):
            _add_key(shard, key, list(members), options, builder)


def _members(shard: Path, builder: ItemBuilder) -> Iterator[_Member]:
    """Read the members that a sample can have; note all other members."""
    try:
        with open_file(shard) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            for entry in archive:
                location = SourceLocation(shard, entry.name)
                if entry.isdir():
                    continue
                if any(part.startswith(".") and part != ".." for part in PurePosixPath(entry.name).parts):
                    builder.tally.note("hidden members, which are not read", str(location))
                    continue
                path = _require_safe(entry, location)
                suffix = path.suffix.lower()
                if suffix not in IMAGE_SUFFIXES and suffix[1:] not in TEXTS:
                    builder.tally.note(OTHER_MEMBERS, str(location))
                    continue
                limit = MAX_TEXT_BYTES if suffix[1:] in TEXTS else MAX_IMAGE_BYTES
                if entry.size > limit:
                    raise CollectionError(
                        f"{location}: has {entry.size:,} bytes; expected at most {limit:,}: remove it from the shard"
                    )
                stream = archive.extractfile(entry)
                data = b"" if stream is None else stream.read(limit)
                key, stem = (str(path.parent / name) for name in (path.name.partition(".")[0], path.stem))
                yield _Member(key, stem, suffix[1:], data, location)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise CollectionError(
            f"{shard}: damaged or no tar file ({system_reason(error)}); download the shard again"
        ) from None


def _add_key(shard: Path, key: str, members: list[_Member], options: ReaderOptions, builder: ItemBuilder) -> None:
    """Add the sample of a key; members that it does not use are noted."""
    location = members[0].location
    if len({(member.stem, member.suffix) for member in members}) < len(members):
        raise CollectionError(f"{location}: a member of '{key}' occurs twice in the shard; remove one of the two")
    texts = [member for member in members if member.suffix in TEXTS]
    image = _chosen(key, [member for member in members if member not in texts], IMAGES)
    text = _chosen(key, [member for member in texts if member.suffix == "txt" or member.stem == key], TEXTS)
    if image is None:
        builder.skip("samples without an image, or with several of other names", key, location)
        return
    _add_sample(shard, key, image, text, options, builder)
    for member in members:
        if member not in (image, text):
            builder.tally.note(OTHER_MEMBERS, str(member.location))


def _chosen(key: str, members: list[_Member], suffixes: Sequence[str]) -> _Member | None:
    """Return the member that has the name of the key, in the order of the suffixes; otherwise the only member."""
    named = [member for member in members if member.stem == key]
    by_suffix = {member.suffix: member for member in named}
    return next(
        (by_suffix[suffix] for suffix in (*suffixes, *by_suffix) if suffix in by_suffix),
        members[0] if len(members) == 1 else None,
    )


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


def _add_sample(
    shard: Path, id: str, image: _Member, text: _Member | None, options: ReaderOptions, builder: ItemBuilder
) -> None:
    try:
        image_size(image.data)
    except MediaError:
        builder.skip("images that cannot be read", id, image.location)
        return
    name = f"images/{shard.stem}/{id}.{image.suffix}"
    if name in builder.written:
        raise CollectionError(f"{image.location}: the sample '{id}' occurs twice in the shard; rename one of the two")
    builder.write_file(name, image.data)
    builder.add_item(id, image.location, split=assign_split(id, options), image=name)
    if text:
        builder.add_sentences(id, text.location, options.lang or "en", _sentences(text))


def _sentences(member: _Member) -> list[str]:
    location = member.location
    if member.suffix == "json":
        return sentences_in(_caption_of(member), "json", location)
    text = decode_utf8(member.data, CollectionError, lambda _: location)
    return split_lines(text) if text.strip() else []


def _caption_of(member: _Member) -> Any:  # noqa: ANN401 (any JSON value)
    """Return the captions of a JSON member: a value of `CAPTIONS` in an object, or the whole list or text."""
    try:
        values = parse_json(member.data)
    except StructureError as error:
        raise CollectionError(f"{member.location}: {error}; correct the member") from None
    if not isinstance(values, dict):
        return values
    return next((values[key] for key in CAPTIONS if not is_missing(values.get(key))), None)
