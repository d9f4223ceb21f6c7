"""The command that translates sentences, files of sentences, and the untranslated sentences of a collection."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from limner.bounds import Count
from limner.cli.app import USE, app
from limner.cli.attention import claim_plots
from limner.cli.beam import STANDARD_OUTPUT, require_beam_file, write_beam
from limner.cli.exported import is_exported, require_exported_options
from limner.cli.options import (
    AttentionOption,
    BackboneOption,
    BeamSizeOption,
    DeviceOption,
    ExplainBeamOption,
    ForceOption,
    JsonOption,
    LengthPenaltyOption,
    MaxLengthOption,
    ModelsOption,
    MustIncludeOption,
    NBestOption,
    Number,
    RayOption,
    TranslationBatchSizeOption,
    given,
    refuse,
    require_models,
)
from limner.cli.preflight import check_runs
from limner.cli.terminal import activity, err, printable, progress_bar, tab_separated
from limner.cli.text_files import STANDARD_INPUT, read_lines
from limner.cli.translate_collection import SelectionOptions, translate_collection
from limner.errors import SettingsError, counted
from limner.files import write_text
from limner.storage.json_text import to_json
from limner.storage.outputs import SavedOutput, begins_with, claim_file, require_saved, save_output

if TYPE_CHECKING:
    from limner.inference.sentences import Translation
    from limner.inference.translator import Translator

_JSON = re.compile(rb'\[\s*\{\s*"source": .*"translations": ', re.DOTALL)
"""How a file of translations as JSON begins."""


class OutputOptions(NamedTuple):
    """Options of the output; the names of the attributes are those of the options."""

    out: Path | None
    attention: Path | None
    scores: bool
    tokenised: bool
    n_best: int | None
    must_include: list[str] | None


# Arguments and options of this command.
SentencesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SENTENCE...]", help="Sentences to translate; default: standard input, one sentence per line."
    ),
]
InputOption = Annotated[
    Path | None,
    typer.Option("--input", metavar="FILE", help="Text file with one sentence per line; - is standard input."),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="File to write; default: standard output.")
]
ImageOption = Annotated[
    list[Path] | None, typer.Option("--image", help="Image of all sentences, or repeated, one per sentence.")
]
ImageListOption = Annotated[
    Path | None,
    typer.Option(
        "--image-list", metavar="FILE", help="Text file with one image path per sentence; an empty line: no image."
    ),
]
MissingOption = Annotated[
    Literal["refuse", "text"],
    typer.Option("--missing", help="Treatment of sentences without an image: refuse, or translate the text alone."),
]
ScoresOption = Annotated[
    bool, typer.Option("--scores", help="Print the log-probability after a tab; n-best lists always have it.")
]
TokenisedOption = Annotated[
    bool, typer.Option("--tokenised", help="Print tokens separated by spaces instead of running text.")
]
UntranslatedOption = Annotated[
    Path | None,
    typer.Option("--collection", metavar="DIR", help="Translate the untranslated sentences of this collection."),
]
WriteOption = Annotated[
    bool, typer.Option("--write", help="With --collection: add the translations to the collection.")
]
SourceLangOption = Annotated[
    str | None, typer.Option("--source-lang", help="With --collection: fail unless the model translates from this.")
]
TargetLangOption = Annotated[
    str | None, typer.Option("--target-lang", help="With --collection: fail unless the model translates to this.")
]
SplitOption = Annotated[
    str | None, typer.Option("--split", help="With --collection: split; default: the recipe's training split.")
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", help="With --collection: maximum number of sentences; default: all.", parser=Number(Count)),
]


@app.command(rich_help_panel=USE)
def translate(
    sentences: SentencesArgument = None,
    model: ModelsOption = None,
    input_file: InputOption = None,
    out: OutOption = None,
    image: ImageOption = None,
    image_list: ImageListOption = None,
    missing: MissingOption = "refuse",
    beam_size: BeamSizeOption = None,
    n_best: NBestOption = None,
    length_penalty: LengthPenaltyOption = None,
    max_length: MaxLengthOption = None,
    must_include: MustIncludeOption = None,
    batch_size: TranslationBatchSizeOption = 64,
    scores: ScoresOption = False,
    tokenised: TokenisedOption = False,
    attention: AttentionOption = None,
    collection: UntranslatedOption = None,
    write: WriteOption = False,
    source_lang: SourceLangOption = None,
    target_lang: TargetLangOption = None,
    split: SplitOption = None,
    limit: LimitOption = None,
    ray: RayOption = None,
    backbone: BackboneOption = None,
    device: DeviceOption = "cpu",
    explain_beam: ExplainBeamOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Translate sentences, with an image if the model was trained with images.

    N-best lists have the format of Moses. Options that are not given come from `decoding` of the model's recipe.

    Example: `limner translate "A man with a bat ." --image photo.jpg --model runs/src-img`
    """
    runs = require_models(model)
    decoding = given(beam_size=beam_size, n_best=n_best, length_penalty=length_penalty, max_length=max_length)
    selection = SelectionOptions(write, source_lang, target_lang, split, limit, ray)
    output = OutputOptions(out, attention, scores, tokenised, n_best, must_include)
    inputs = {"SENTENCE": sentences, "--input": input_file, "--image": image, "--image-list": image_list}
    if collection is not None:
        others = {"--missing": missing == "text", "--backbone": backbone, "--explain-beam": str(explain_beam or "")}
        refuse({**inputs, **_options(output), **others}, "not possible with --collection; leave out one or the other")
        translate_collection(runs, collection, selection, decoding, batch_size, device, as_json)
        return
    refuse(_options(selection), "possible only with --collection; add it, or leave them out")
    source = _read_sentences(sentences or [], input_file)
    images = _read_images(source, image or [], image_list)
    _refuse_without_effect(output, as_json, None if any(images) else backbone)
    _claim(output, explain_beam, len(source.texts), force, as_json)
    _refuse_of_exported(runs, output, explain_beam, backbone, device)
    translator = _load_translator(runs, images, decoding, backbone, device)
    decoding |= {"missing": missing} | given(must_include=must_include)
    saved = _explain_beam(translator, source.texts, images, decoding, explain_beam)
    translations = _translate(translator, source.texts, images=images, batch_size=batch_size, **decoding)
    lines = _format_lines(translations, scores, tokenised, (n_best or translator.decoding.n_best) > 1)
    saved.append(_write(_format_json(source.texts, images, translations) if as_json else "".join(lines), out))
    if attention is not None:
        _plot_attention(translator, source.texts, images, translations, missing, attention)
    require_saved(saved)


def _translate(translator: Translator, texts: Sequence[str], **options: Any) -> list[list[Translation]]:  # noqa: ANN401
    """Translate sentences with a bar of the progress."""
    with progress_bar("translating") as bar:
        return translator.translate(texts, on_progress=bar, **options)


def _explain_beam(
    translator: Translator,
    texts: Sequence[str],
    images: Sequence[Path | None],
    decoding: dict[str, Any],
    out: Path | None,
) -> list[SavedOutput]:
    """Write the tree of the beam of the only sentence, if a file is given for it."""
    if out is None:
        return []
    return [write_beam(translator.explain_beam(texts[0], image=images[0], **decoding), out)]


def _claim(output: OutputOptions, explain_beam: Path | None, sentences: int, force: bool, as_json: bool) -> None:
    """Check that the named files and the folder may be written."""
    require_beam_file(explain_beam, sentences, force)
    if output.out is not None:
        claim_file(output.out, "--out", force=force, is_own=lambda file: as_json and begins_with(file, _JSON))
    if output.attention is not None:
        claim_plots(output.attention, force)


def _refuse_without_effect(output: OutputOptions, as_json: bool, unused_backbone: str | None) -> None:
    """Refuse options of sentences that have no effect on JSON, and a backbone without images."""
    if as_json:
        refuse({"--scores": output.scores, "--tokenised": output.tokenised}, "JSON has both; leave them out")
    refuse({"--backbone": unused_backbone}, "has an effect only with images; add --image, or leave it out")


def _refuse_of_exported(
    runs: Sequence[Path], output: OutputOptions, explain_beam: Path | None, backbone: str | None, device: str
) -> None:
    """Refuse what only runs do, if the model is an exported one."""
    others = {"--attention": output.attention, "--must-include": output.must_include}
    require_exported_options(runs, {**others, "--explain-beam": explain_beam, "--backbone": backbone}, device)


def _load_translator(
    runs: Sequence[Path], images: Sequence[Path | None], decoding: dict[str, Any], backbone: str | None, device: str
) -> Any:  # noqa: ANN401  (a translator of runs, or an exported one, which has less)
    """Load the models, and their backbone if there are images, after a check of the options."""
    if is_exported(runs[0]):
        from limner.runtime import load_translator

        return load_translator(runs[0])
    from limner.inference.translator import Translator

    check_runs(runs, device, decoding, backbone)
    with activity("loading the model"):
        return Translator.load(*runs, backbone=backbone, device=device, encode_images=any(images))


def _write(text: str, file: Path | None) -> SavedOutput:
    """Write text to a file, or to standard output; to both if the file cannot be written."""
    saved = SavedOutput(STANDARD_OUTPUT) if file is None else save_output(file, lambda path: write_text(path, text))
    if file is None or saved.error is not None:
        sys.stdout.write(text)
    return saved


def _plot_attention(
    translator: Translator,
    sentences: Sequence[str],
    images: Sequence[Path | None],
    translations: Sequence[Sequence[Translation]],
    missing: Literal["refuse", "text"],
    folder: Path,
) -> None:
    """Write plots of the alignment and the attention of the best translations."""
    from limner.report.attention_page import AttendedSentence, ModelAttention, save_attention

    best = [hypotheses[0] for hypotheses in translations]
    explained = translator.explain(sentences, best, images=images, missing=missing)
    features = translator.models[0].config.features
    attended = [
        AttendedSentence(source, image, [] if explanation is None else [ModelAttention(explanation, features)])
        for source, image, explanation in zip(sentences, images, explained, strict=True)
    ]
    with progress_bar("plotting attention") as bar:
        page = save_attention(attended, folder, "translations", on_progress=bar)
    err.print(f"plots: {page}", soft_wrap=True)


def _options(values: OutputOptions | SelectionOptions) -> dict[str, object]:
    """Return option values by the name of the option."""
    return {f"--{name.replace('_', '-')}": value for name, value in values._asdict().items()}


class SourceSentences(NamedTuple):
    """Sentences to translate."""

    texts: list[str]
    origin: str
    """Name of their origin in error messages: a file, standard input or the command line."""


def _read_sentences(arguments: Sequence[str], file: Path | None) -> SourceSentences:
    if arguments and file is not None:
        raise SettingsError(f"sentences and --input {file}: give one or the other")
    for text in arguments:
        if text == str(STANDARD_INPUT) or os.path.isfile(text):
            raise SettingsError(f"expected a sentence, got the file '{text}'; to translate a file use --input {text}")
    if arguments:
        return SourceSentences(list(arguments), "the command line")
    if file is None and sys.stdin.isatty():
        raise SettingsError("nothing to translate: give sentences, a file (--input), or pipe sentences in")
    origin = "standard input" if file in (None, STANDARD_INPUT) else str(file)
    return SourceSentences(read_lines(file or STANDARD_INPUT), origin)


def _read_images(sentences: SourceSentences, images: Sequence[Path], file: Path | None) -> list[Path | None]:
    """Return the image of each sentence, or None."""
    count = len(sentences.texts)
    if file is None:
        if len(images) not in (0, 1, count):
            given_images = f"{counted(len(images), 'image')} (--image)"
            raise SettingsError(f"{given_images} and {counted(count, 'sentence')}: give one for all, or one each")
        return [None] * count if not images else [*images] * (count if len(images) == 1 else 1)
    if images:
        raise SettingsError(f"--image and --image-list {file}: give one or the other")
    paths = [Path(line) if line.strip() else None for line in read_lines(file)]
    if len(paths) != count:
        longer, shorter = (file, sentences.origin) if len(paths) > count else (sentences.origin, file)
        raise SettingsError(
            f"{sentences.origin} has {counted(count, 'sentence')} and {file} has {counted(len(paths), 'line')}: line "
            f"{min(count, len(paths)) + 1} of {longer} has no counterpart in {shorter}; write one line per sentence, "
            "an empty one for no image"
        )
    return paths


def _format_lines(
    translations: Iterable[Sequence[Translation]], scores: bool, tokenised: bool, several: bool
) -> Iterator[str]:
    """Yield one line per hypothesis, as n-best lists of Moses if there can be several for a sentence."""
    for number, hypotheses in enumerate(translations):
        for one in hypotheses:
            text = printable(" ".join(one.tokens) if tokenised else one.text)
            if several:
                features = one.features or (("logprob", one.log_prob),)
                values = " ".join(f"{name}= {value:.4f}" for name, value in features)
                yield f"{number} ||| {text} ||| {values} ||| {one.score:.4f}\n"
            else:
                yield tab_separated(text, *((f"{one.log_prob:.4f}",) if scores else ())) + "\n"


def _json_values(one: Translation) -> dict[str, object]:
    """Return the fields of a translation for JSON; one with features has no probability."""
    values = {key: value for key, value in one._asdict().items() if key not in ("ids", "features", "derivation")}
    return values | {"log_prob": None, "features": dict(one.features)} if one.features else values


def _format_json(
    texts: Sequence[str], images: Sequence[Path | None], translations: Sequence[Sequence[Translation]]
) -> str:
    records = [
        {
            "source": text,
            "image": None if image is None else str(image),
            "translations": [_json_values(one) for one in hypotheses],
        }
        for text, image, hypotheses in zip(texts, images, translations, strict=True)
    ]
    return to_json(records, indent=1) + "\n"
