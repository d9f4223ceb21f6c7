"""A folder of sounds, with or without words beside them."""

from __future__ import annotations

import os
from pathlib import Path

from limner.data.readers.corpus_files import SPLIT_ALIASES, Options, chosen_split, read_lines
from limner.data.readers.folder import SPLIT_FOLDERS
from limner.data.readers.item_builder import Gathering, SourceLocation
from limner.errors import CollectionError
from limner.media.modality import AUDIO


def read_audio(source: Path, options: Options, gathering: Gathering) -> None:
    """Read every sound below a folder; its sentences stand, one a line, in a `.txt` of the same name.

    Items are named by their path below `source`, without the ending. Nothing is listened to yet, so soundfile is
    not needed.

    Args:
        source: the folder. Sounds below its subfolders `train`, `val` and `test` belong to these splits.
        options: `split` of all other sounds (`auto` deals them out), `train` otherwise; `lang` of the sentences,
            English otherwise.
        gathering: gets the items, in the order of their paths, with the sound's path where a picture's would be.

    Raises:
        CollectionError: there are no sounds, or two have one name, but for the ending.
    """
    named: dict[str, Path] = {}
    for sound in list_sounds(source):
        inner = sound.relative_to(source)
        id = inner.with_suffix("").as_posix()
        if (other := named.setdefault(id, sound)) != sound:
            raise CollectionError(f"{sound}: is called '{id}' like {other}; rename one of them")
        top = inner.parts[0] if len(inner.parts) > 1 else ""
        split = SPLIT_ALIASES.get(top, top) if top in SPLIT_FOLDERS else chosen_split(id, options)
        gathering.item(id, SourceLocation(sound), split=split, image=sound)
        words = sound.with_suffix(".txt")
        if words.is_file() and not words.read_bytes().strip():
            gathering.skip("empty files of sentences (the sounds are kept)", id, SourceLocation(words))
        elif words.is_file():
            for number, line in enumerate(read_lines(words), start=1):
                gathering.sentence(id, SourceLocation(words, number), options.lang or "en", line, number - 1)


def list_sounds(folder: Path) -> list[Path]:
    """All files below a folder that look like sounds, in order of their paths.

    Raises:
        CollectionError: there are none, or it is no folder.
    """
    if not folder.is_dir():
        raise CollectionError(f"{folder}: is not a folder; name the folder that the sounds are in")
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        sounds = sorted(name for name in names if AUDIO.matches(name))
        found += [Path(parent, name) for name in sounds if not name.startswith(".")]
    if not found:
        raise CollectionError(f"{folder}: no sounds below this folder ({', '.join(sorted(AUDIO.suffixes))})")
    return found
