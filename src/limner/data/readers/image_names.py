"""Names of images in corpus files, which may omit the folder or the suffix."""

from __future__ import annotations

import os

from limner.media.image import IMAGE_SUFFIXES


def image_key(name: str) -> str:
    """Name of an image without folder and suffix, which is the same in all files of a corpus."""
    return _split_name(name)[1]


def may_be_same_image(name: str, other: str) -> bool:
    """Whether two names can denote the same image: equal, except that one may omit folders or the suffix."""
    (folder, key, suffix), (other_folder, other_key, other_suffix) = _split_name(name), _split_name(other)
    shorter, longer = sorted((f"/{folder}", f"/{other_folder}"), key=len)
    return key == other_key and longer.endswith(shorter) and (suffix == other_suffix or not (suffix and other_suffix))


def _split_name(name: str) -> tuple[str, str, str]:
    """Split a name into folders with the last slash, key and lower-case suffix; other suffixes belong to the key."""
    folder, slash, last = name.rpartition("/")
    stem, suffix = os.path.splitext(last)
    key, suffix = (stem, suffix.lower()) if suffix.lower() in IMAGE_SUFFIXES else (last, "")
    return folder + slash, key, suffix
