"""Records: JSON files with the settings that a folder was made with, and the version of its layout."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from limner.errors import LimnerError, SettingsError
from limner.files.structured import read_json_file
from limner.settings import Settings

Record = TypeVar("Record", bound=Settings)


def load_record(kind: type[Record], file: Path, version: int, error_type: type[LimnerError], remedy: str) -> Record:
    """Read the record of an index.

    Args:
        kind: settings in the file, with the field `version`.
        file: the file.
        version: version of the layout that can be read.
        error_type: exception to raise.
        remedy: what to do about an index that cannot be read.

    Raises:
        LimnerError: the file is missing, damaged, or of another version; of type `error_type`.
    """
    try:
        values = read_json_file(file)
        if isinstance(values, dict) and values.get("version") != version:
            raise error_type(f"{file}: expected an index of version {version}, found {values.get('version')}; {remedy}")
        return kind.parse(values)
    except FileNotFoundError:
        raise error_type(f"{file.parent}: expected an index, found no {file.name}; {remedy}") from None
    except (OSError, ValueError, TypeError, SettingsError) as error:
        reason = str(error).partition("\n")[0]
        raise error_type(f"{file}: damaged record of an index ({reason}); {remedy}") from None
