"""Names that become file names: of splits, runs, feature tables and records."""

from __future__ import annotations

from limner.errors import LimnerError, SettingsError

MAX_NAME_BYTES = 200
"""Maximum length of a name in UTF-8; file systems allow 255 bytes, and suffixes are added."""
_SEPARATORS = ("/", "\\")


def require_name(name: str, what: str, error_type: type[LimnerError] = SettingsError) -> str:
    """Check that a name can be a file name, so that nothing is written outside of its folder.

    Args:
        name: name that comes from the user or from a file.
        what: what the name is of, for the error.
        error_type: type of the error.

    Returns:
        `name`.

    Raises:
        LimnerError: of type `error_type`: the name is empty or too long, begins with a dot or a space, or contains a
            path separator or a character that cannot be printed.
    """
    problem = None
    if not name.strip():
        problem = "is empty"
    elif any(separator in name for separator in _SEPARATORS):
        problem = "contains a path separator"
    elif name[0] in ". ":
        problem = f"begins with {'a dot' if name[0] == '.' else 'a space'}"
    elif not name.isprintable():
        problem = "contains characters that cannot be printed"
    elif len(name.encode(errors="surrogateescape")) > MAX_NAME_BYTES:
        problem = f"is longer than {MAX_NAME_BYTES} bytes"
    if problem is None:
        return name
    shown = name if len(name) <= 40 else f"{name[:40]}…"
    raise error_type(
        f"{what} {shown!r}: {problem}; expected a name such as 'test', without '/' and '\\', which becomes a file name"
    )


def name_or_default(name: str | None, default: str, what: str) -> str:
    """Return a name that can be a file name, or a default where the user gives none; an empty name is one.

    Raises:
        SettingsError: the name cannot be a file name.
    """
    return default if name is None else require_name(name, what)
