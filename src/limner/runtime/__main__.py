"""The command of the runtime: captions and translations by an exported model, without torch.

    python -m limner.runtime captioner photo.jpg
    python -m limner.runtime translator --text "A man with a bat ." photo.jpg

`limner describe` and `limner translate` take the same folders and have more options; this command starts faster.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from limner.bounds import BeamSize, bounds_of
from limner.errors import LimnerError, MediaError, SettingsError
from limner.process import flush_streams, prepare_streams
from limner.storage.json_text import LineFormatter, printable, tab_separated

if TYPE_CHECKING:
    from limner.decoding.sentence import Sentence

WRONG_USAGE = 2
"""Exit status after an error in the command line."""
INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def main() -> None:
    """Run the command and exit; errors that the user can correct are printed as one line."""
    prepare_streams()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for some reads all installed packages
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(levelname)-8s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    sys.exit(flush_streams(_run(_parse(sys.argv[1:])), _print_error))


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are one line, as those of `limner`."""

    def error(self, message: str) -> NoReturn:
        """Print an error in the command line, and exit."""
        _print_error(f"{message}; see '{self.prog} --help'")
        sys.exit(WRONG_USAGE)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    description = "Caption images, or translate a sentence, by an exported model."
    parser = _Parser("python -m limner.runtime", description=description, allow_abbrev=False)
    parser.add_argument("folder", metavar="FOLDER", help="folder that 'limner export' wrote")
    parser.add_argument("images", metavar="IMAGE", nargs="*", help="image files; for a translation at most one")
    parser.add_argument("--text", metavar="SENTENCE", help="sentence to translate")
    for option, what in (("--beam-size", "hypotheses of a search, 1 is greedy"), ("--n-best", "sentences printed")):
        parser.add_argument(option, type=_number, metavar="N", help=f"number of {what}; default: of the model")
    options = parser.parse_args(arguments)
    if options.text is None and not options.images:
        parser.error("expected an IMAGE to caption, or --text SENTENCE to translate")
    if options.text is not None and len(options.images) > 1:
        parser.error(f"expected at most one IMAGE beside --text, got {len(options.images)}")
    return options


def _number(text: str) -> float:
    try:
        return bounds_of(BeamSize).parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(printable(error)) from None


def _run(options: argparse.Namespace) -> int:
    """Print the sentences; return the exit status."""
    generate: Callable[[argparse.Namespace], Iterator[str | MediaError]]
    generate = _describe if options.text is None else _translate
    status = 0
    try:
        for result in generate(options):
            if isinstance(result, MediaError):
                _print_error(result)
                status = 1
            else:
                sys.stdout.write(result + "\n")
                sys.stdout.flush()
    except LimnerError as error:
        _print_error(error)
        return 1
    except BrokenPipeError:  # reported when the streams are flushed
        return 1
    except OSError as error:
        place = error.filename or "standard output"
        _print_error(f"{place}: {error.strerror}; check the place, its permissions and the free disk space")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _describe(options: argparse.Namespace) -> Iterator[str | MediaError]:
    """Yield the lines of the captions, and the errors of images that cannot be read."""
    from limner.runtime.generators import load_captioner

    captioner = load_captioner(options.folder)
    for image, result in captioner.describe_each(options.images, **_decoding(options)):
        if isinstance(result, MediaError):
            yield result
        else:
            yield from (tab_separated(image, *fields) for fields in _fields(result))


def _translate(options: argparse.Namespace) -> Iterator[str | MediaError]:
    """Yield the lines of the translations."""
    from limner.runtime.generators import load_translator

    if not options.text.strip():
        raise SettingsError("--text: expected a sentence to translate, got an empty one")
    translator = load_translator(options.folder)
    (translations,) = translator.translate([options.text], images=options.images or None, **_decoding(options))
    yield from (tab_separated(*fields) for fields in _fields(translations))


def _decoding(options: argparse.Namespace) -> dict[str, Any]:
    chosen = {"beam_size": options.beam_size, "n_best": options.n_best}
    return {name: value for name, value in chosen.items() if value is not None}


def _fields(sentences: Sequence[Sentence] | Sequence[Sentence]) -> Iterator[tuple[str, ...]]:
    """Yield the text of each sentence, and its log-probability where there are several."""
    for one in sentences:
        yield (one.text, f"{one.log_prob:.2f}") if len(sentences) > 1 else (one.text,)


def _print_error(error: Exception | str) -> None:
    sys.stderr.write(f"error: {printable(error)}\n")


if __name__ == "__main__":
    main()
