"""The command that translates: sentences, files, and what nobody has translated in a collection."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from limner.cli.app import AsJson, Backbone, BeamSize, Device, Ensemble, LengthPenalty, app, given
from limner.cli.terminal import err, print_json, progress_bar
from limner.errors import SettingsError
from limner.files import write_text

if TYPE_CHECKING:
    from limner.inference.translator import Translation

STANDARD_INPUT = Path("-")


@app.command()
def translate(
    model: Annotated[Path, typer.Argument(help="A trained model that translates.")],
    sentences: Annotated[
        list[str] | None, typer.Argument(help="What to translate; without any, standard input, one sentence a line.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--input", help="A file of sentences, one a line; - is standard input.")
    ] = None,
    to_file: Annotated[Path | None, typer.Option("--output", help="Write here, whole or not at all.")] = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="The picture of all sentences; repeated, one a sentence.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="A file of pictures' paths, one a line, empty for none.")] = None,
    missing: Annotated[
        Literal["refuse", "text"],
        typer.Option(help="Whether a sentence without its picture is refused, or translated by the text alone."),
    ] = "refuse",
    beam_size: BeamSize = None,
    n_best: Annotated[int | None, typer.Option(help="Translations of each sentence.")] = None,
    length_penalty: LengthPenalty = None,
    max_length: Annotated[int | None, typer.Option(help="Words, or pieces of words, at most.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences translated together; changes no result.", min=1)] = 64,
    scores: Annotated[
        bool,
        typer.Option("--scores", help="Print log-probabilities too, after a tab; lists of --n-best have them anyway."),
    ] = False,
    tokenised: Annotated[bool, typer.Option("--tokenised", help="Print words and signs apart, by spaces.")] = False,
    attention: Annotated[
        Path | None, typer.Option(help="Folder for drawings of what each word was made from; index.html shows all.")
    ] = None,
    collection: Annotated[
        Path | None, typer.Option(help="Translate what has no translation in this collection.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="With --collection: add the translations to it.")] = False,
    lang: Annotated[str | None, typer.Option(help="With --collection: language to translate from, to be sure.")] = None,
    to: Annotated[str | None, typer.Option(help="With --collection: language to translate to, to be sure.")] = None,
    split: Annotated[str | None, typer.Option(help="With --collection: the split; default: that of training.")] = None,
    limit: Annotated[int | None, typer.Option(help="With --collection: so many sentences at most.", min=1)] = None,
    ensemble: Ensemble = None,
    backbone: Backbone = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Translate sentences, with the help of pictures where the model learned with them.

    Example: `limner translate runs/src-img "A man with a bat ." --image photo.jpg`
    """
    search = given(beam_size=beam_size, n_best=n_best, length_penalty=length_penalty, max_length=max_length)
    lines = {"SENTENCES": sentences, "--input": file, "--output": to_file, "--image": image, "--images": images}
    shown = {"--attention": attention, "--scores": scores, "--tokenised": tokenised, "--n-best": n_best}
    chosen = {"--write": write, "--lang": lang, "--to": to, "--split": split, "--limit": limit}
    runs = [model, *(ensemble or [])]
    if collection is not None:
        _refuse({**lines, **shown, "--missing": missing == "text", "--backbone": backbone}, "go without --collection")
        wanted = {"split": split, "limit": limit, "batch_size": batch_size}
        _translate_collection(runs, collection, (lang, to), write, device, search, wanted, as_json)
        return
    _refuse(chosen, "need --collection")
    asked = _read_sentences(sentences or [], file)
    pictures = _read_pictures(asked, image or [], images)
    if to_file is not None:
        _require_place(to_file)
    from limner.inference.translator import Translator

    translator = Translator.load(*runs, backbone=backbone, device=device, encode_images=any(pictures))
    with progress_bar("translating") as bar:
        found = translator.translate(
            asked.texts, images=pictures, missing=missing, batch_size=batch_size, on_progress=bar, **search
        )
    if attention is not None:
        from limner.report.attention_page import save_explanations

        explained = translator.explain(asked.texts, [best[0] for best in found], images=pictures, missing=missing)
        features = translator.models[0].config.features
        with progress_bar("drawing") as bar:
            page = save_explanations(
                explained, attention, sentences=asked.texts, pictures=pictures, features=features, progress=bar
            )
        err.print(f"drawings: {page}", soft_wrap=True)
    several = (n_best or translator.models[0].recipe.decoding.n_best) > 1
    if as_json:
        told = _as_json(asked.texts, pictures, found)
    else:
        told = "".join(f"{line}\n" for line in _as_lines(found, scores, tokenised, several))
    if to_file is None:
        sys.stdout.write(told)
    else:
        write_text(to_file, told)


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Options that would be passed over are a mistake of whoever gave them."""
    if slips := [name for name, value in options.items() if value]:
        raise SettingsError(f"{', '.join(slips)}: {why}; leave out one or the other")


def _require_place(file: Path) -> None:
    """A slip in a file's name is told before the work, and makes no folders."""
    if file.is_dir():
        raise SettingsError(f"--output {file}: is a folder; name a file in it")
    if not file.parent.is_dir():
        raise SettingsError(f"--output {file}: there is no folder {file.parent}; make it, or name another")


class Sentences(NamedTuple):
    """What is to be translated, and where it came from, for messages."""

    texts: list[str]
    place: str


def _read_sentences(given_here: Sequence[str], file: Path | None) -> Sentences:
    if given_here and file is not None:
        raise SettingsError(f"sentences and --input {file}: give one or the other")
    if given_here:
        return Sentences(list(given_here), "the command line")
    if file is None and sys.stdin.isatty():
        raise SettingsError("nothing to translate: give sentences, a file (--input), or pipe them in")
    return Sentences(
        _read_lines(file or STANDARD_INPUT), "standard input" if file in (None, STANDARD_INPUT) else str(file)
    )


def _read_lines(file: Path) -> list[str]:
    """Lines of a file in UTF-8; only line feeds end one, since other separators occur within sentences."""
    try:
        data = sys.stdin.buffer.read() if file == STANDARD_INPUT else file.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{file}: cannot be read ({error.strerror}); expected a text file, one line a sentence"
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsError(
            f"{file}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def _read_pictures(sentences: Sentences, image: Sequence[Path], file: Path | None) -> list[Path | None]:
    """For each sentence its picture, or None."""
    count = len(sentences.texts)
    if file is None:
        if len(image) not in (0, 1, count):
            raise SettingsError(f"{len(image)} pictures (--image) and {count} sentences: give one for all, or one each")
        return [None] * count if not image else [*image] * (count if len(image) == 1 else 1)
    if image:
        raise SettingsError(f"--image and --images {file}: give one or the other")
    paths = [Path(line) if line.strip() else None for line in _read_lines(file)]
    if len(paths) != count:
        longer, shorter = (file, sentences.place) if len(paths) > count else (sentences.place, file)
        raise SettingsError(
            f"{sentences.place} has {count} sentences and {file} has {len(paths)} lines: line "
            f"{min(count, len(paths)) + 1} of {longer} has nothing beside it in {shorter}; give each sentence one, "
            "an empty one where it has no picture"
        )
    return paths


def _as_lines(found: Iterable[Sequence[Translation]], scores: bool, tokenised: bool, several: bool) -> Iterator[str]:
    """One line a translation; where several of a sentence were asked for, the n-best lists of Moses."""
    for number, translations in enumerate(found):
        for one in translations:
            text = " ".join(one.tokens) if tokenised else one.text
            if several:
                yield f"{number} ||| {text} ||| logprob= {one.log_prob:.4f} ||| {one.score:.4f}"
            else:
                yield f"{text}\t{one.log_prob:.4f}" if scores else text


def _as_json(texts: Sequence[str], pictures: Sequence[Path | None], found: Sequence[Sequence[Translation]]) -> str:
    told = [
        {
            "source": text,
            "picture": None if picture is None else str(picture),
            "translations": [{key: value for key, value in one._asdict().items() if key != "ids"} for one in best],
        }
        for text, picture, best in zip(texts, pictures, found, strict=True)
    ]
    return json.dumps(told, ensure_ascii=False, indent=1) + "\n"


def _translate_collection(
    runs: Sequence[Path],
    place: Path,
    direction: tuple[str | None, str | None],
    write: bool,
    device: str,
    search: dict[str, Any],
    wanted: dict[str, Any],
    as_json: bool,
) -> None:
    """Print, or write, a translation of what has none."""
    from limner.data.collection import Collection
    from limner.inference.back_translation import (
        BackTranslationSettings,
        back_translate,
        run_name,
        translate_untranslated,
    )
    from limner.inference.base import change_decoding
    from limner.inference.translator import languages
    from limner.runs.trained_model import load_trained_model

    models = [load_trained_model(run, device) for run in runs]
    source, target = languages(models[0])
    for told, known, option in zip(direction, (source.lang, target), ("--lang", "--to"), strict=True):
        if told not in (None, known):
            raise SettingsError(
                f"{option} {told}: {runs[0]} translates from '{source.lang}' to '{target}'; name a model of the "
                "direction that you want"
            )
    settings = BackTranslationSettings(**wanted, decoding=change_decoding(models[0].recipe.decoding, search))
    collection = Collection.open(place)
    with progress_bar("translating") as bar:
        if not write:
            found = translate_untranslated(models, collection, settings=settings, on_progress=bar)
            pairs = [(one.sentence.text, one.text) for some in found for one in some]
        else:
            generated_by = "+".join(run_name(run) for run in runs)
            outcome = back_translate(models, collection, generated_by=generated_by, settings=settings, on_progress=bar)
    if write and as_json:
        print_json({"collection": str(place), "generated_by": generated_by, **outcome._asdict()})
    elif write:
        why = "had no words, too many, or no end, or a picture without features"
        left = f"; {outcome.left_out:,} {why}" if outcome.left_out else ""
        typer.echo(f"{place}: {outcome.translated:,} sentences in '{target}' added, made by {generated_by}{left}")
    elif as_json:
        print_json([{source.lang: written, target: text} for written, text in pairs])
    else:
        for written, text in pairs:
            typer.echo(f"{written}\t{text}")
