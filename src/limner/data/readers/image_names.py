"""What the pictures of a corpus are called, by files that may or may not name folder and ending."""

from __future__ import annotations

import os

from limner.media.modality import IMAGE


def key_of(name: str) -> str:
    """The name of a picture without folders and ending: what it is called in every file of a corpus."""
    return _parts(name)[1]


def may_be_one(one: str, other: str) -> bool:
    """Whether two names can mean one picture: one may say less of folders and ending, but nothing else."""
    (folder, key, ending), (other_folder, other_key, other_ending) = _parts(one), _parts(other)
    shorter, longer = sorted((f"/{folder}", f"/{other_folder}"), key=len)
    return key == other_key and longer.endswith(shorter) and (ending == other_ending or not (ending and other_ending))


def _parts(name: str) -> tuple[str, str, str]:
    """Folders with their last slash, key, and ending in small letters; what is no picture's ending stays in the key."""
    folder, slash, last = name.rpartition("/")
    stem, ending = os.path.splitext(last)
    key, ending = (stem, ending.lower()) if ending.lower() in IMAGE.suffixes else (last, "")
    return folder + slash, key, ending
