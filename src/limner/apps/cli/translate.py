"""The command that translates sentences, files of sentences, and the untranslated sentences of a collection."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from limner.apps.cli import options
from limner.apps.cli.app import USE
from limner.apps.cli.explanations import STANDARD_OUTPUT, claim_plots, require_beam_file, write_beam
from limner.apps.cli.inputs import STANDARD_INPUT, read_lines
from limner.apps.cli.terminal import activity, echo, err, print_json, printable, progress_bar, tab_separated
from limner.bounds import BatchSize, Count
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError, counted
from limner.files import write_text
from limner.runs.pretrained import model_type
from limner.storage.json_text import to_json
from limner.storage.outputs import SavedOutput, claim_file, require_saved, save_output

if TYPE_CHECKING:
    from limner.decoding.sentence import Sentence
    from limner.inference.translator import Translator
    from limner.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@options.command(USE)
def translate(
    sentences: list[str] | None = None,
    *,
    model: options.TranslatorsOption = None,
    to: str | None = None,
    from_: str | None = None,
    input_file: Path | None = None,
    out: Path | None = None,
    image: list[Path] | None = None,
    image_list: Path | None = None,
    missing: Literal["refuse", "text"] = "refuse",
    decoding: Annotated[dict[str, Any], DecodingSettings, "beam_size", "n_best", "length_penalty", "max_length"],
    must_include: list[str] | None = None,
    batch_size: BatchSize = 64,
    scores: bool = False,
    tokenised: bool = False,
    attention: Path | None = None,
    collection: Path | None = None,
    write: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
    split: str | None = None,
    limit: Count | None = None,
    ray: str | None = None,
    backbone: str | None = None,
    device: str = "cpu",
    explain_beam: Path | None = None,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Translate sentences, with an image if the model was trained with images.

    Without --model, the built-in translator is used: English to German (--to de) or German to English (--to en).
    N-best lists have the format of Moses. Options that are not given come from `decoding` of the model's recipe.

    Example: `limner translate "Two dogs run." --to de`

    Options:
        sentences ([SENTENCE...]): Sentences to translate; default: standard input, one sentence per line.
        to (LANG): Language that is translated to: of the built-in translator de or en, of a model of the hub as its
            tokenizer names it, such as deu_Latn.
        from_ (LANG): Language that is translated from; default: of the built-in translator, the other one.
        input_file (--input FILE): Text file with one sentence per line; - is standard input.
        out (FILE): File to write; default: standard output.
        image: Image of all sentences, or repeated, one per sentence.
        image_list (FILE): Text file with one image path per sentence; an empty line: no image.
        missing: Treatment of sentences without an image: refuse, or translate the text alone.
        scores: Print the log-probability after a tab; n-best lists always have it.
        tokenised: Print tokens separated by spaces instead of running text.
        collection (DIR): Translate the untranslated sentences of this collection.
        write: With --collection: add the translations to the collection.
        source_lang: With --collection: fail unless the model translates from this.
        target_lang: With --collection: fail unless the model translates to this.
        split: With --collection: split; default: the recipe's training split.
        limit: With --collection: maximum number of sentences; default: all.
    """
    runs = _choose_models(model, to, from_)
    selection = {"write": write, "source_lang": source_lang, "target_lang": target_lang, "split": split, "limit": limit}
    selection |= {"ray": ray}
    needs_run: dict[str, Any] = {"attention": attention, "explain_beam": explain_beam, "backbone": backbone}
    if collection is not None:
        inputs = {"SENTENCE": sentences, "input": input_file, "image": image, "image_list": image_list}
        output = {"out": out, "scores": scores, "tokenised": tokenised, "n_best": decoding.get("n_best")}
        useless = {**inputs, **output, **needs_run, "must_include": must_include, "missing": missing == "text"}
        options.refuse(useless, "not possible with --collection; leave out one or the other")
        return _translate_collection(runs, collection, selection, decoding, batch_size, device, as_json)
    options.refuse(selection, "possible only with --collection; add it, or leave them out")
    texts, origin = _read_sentences(sentences or [], input_file)
    images = _read_images(texts, origin, image or [], image_list)
    if as_json:
        options.refuse({"scores": scores, "tokenised": tokenised}, "JSON has both; leave them out")
    if not any(images):
        options.refuse({"backbone": backbone}, "has an effect only with images; add --image, or leave it out")
    if explain_beam is not None:
        require_beam_file(explain_beam, texts, force)
    if out is not None:
        claim_file(out, "--out", force=force)
    if attention is not None:
        claim_plots(attention, force)
    translator: Any  # of runs, or an exported one, which has less
    if options.uses_graphs(runs, needs_run, device):
        from limner.inference.load import load_translator

        translator = load_translator(runs[0], device=device, source=from_, to=to)
    else:
        options.check_runs(runs, device, decoding, backbone)
        from limner.inference.translator import Translator

        with activity("loading the model"):
            translator = Translator.load(*runs, backbone=backbone, device=device, encode_images=any(images))
    several = decoding.get("n_best", translator.decoding.n_best) > 1
    decoding |= {"missing": missing} | options.without_none(must_include=must_include)
    saved = []
    if explain_beam is not None:
        saved.append(write_beam(translator.explain_beam(texts[0], image=images[0], **decoding), explain_beam))
    with progress_bar("translating") if len(texts) > 1 else nullcontext() as bar:
        translations = translator.translate(texts, images=images, batch_size=batch_size, on_progress=bar, **decoding)
    if not model:
        _warn_of_guesses(translator, texts, translations)
    if as_json:
        places = (None if image is None else str(image) for image in images)
        entries = ([_to_plain(item, translator.tokenizer) for item in n_best] for n_best in translations)
        fields = ("source", "image", "translations")
        records = [dict(zip(fields, row, strict=True)) for row in zip(texts, places, entries, strict=True)]
        text = to_json(records, indent=1) + "\n"
    else:
        text = "".join(_format_lines(translations, translator.tokenizer if tokenised else None, scores, several))
    output_file = SavedOutput(STANDARD_OUTPUT) if out is None else save_output(out, lambda file: write_text(file, text))
    if out is None or output_file.error is not None:
        sys.stdout.write(text)
    saved.append(output_file)
    if attention is not None:
        _plot_attention(translator, texts, images, translations, missing, attention)
    require_saved(saved)


def _warn_of_guesses(translator: Any, texts: Sequence[str], translations: Sequence[Sequence[Sentence]]) -> None:  # noqa: ANN401
    """Log another language than the source, and how many texts are several sentences or outside the domain."""
    from limner.generation.sentences import SENTENCE_END, is_outside_domain
    from limner.text.queries import guess_language, language_name

    lang = translator.source_tokenizer.settings.lang
    if (guessed := guess_language(texts, lang)) != lang:
        logger.warning(f"this looks like {language_name(guessed)}, and the translator reads {language_name(lang)}")
    if several := sum(SENTENCE_END.search(text) is not None for text in texts):
        logger.warning(
            f"{several} of {counted(len(texts), 'text')}: the built-in translator reads several sentences as one, and "
            "drops some of them; give each sentence by itself"
        )
    encode = translator.source_tokenizer.encode
    pairs = zip(texts, translations, strict=True)
    if guesses := sum(is_outside_domain(encode(text), best) for text, (best, *_) in pairs):
        logger.warning(
            f"{guesses} of {counted(len(texts), 'sentence')}: unlike the descriptions that the built-in translator "
            "knows, so that the translation is a guess"
        )


def _choose_models(model: list[Path] | None, to: str | None, source: str | None) -> list[Path]:
    """Return the run folders of --model, or else the folder of the built-in translator between two languages."""
    if model:
        runs = options.require_models(model)
        reason = "selects the built-in translator, and has no effect on --model with a run; leave it out"
        options.refuse({} if model_type(runs[0]) else {"to": to, "from": source}, reason)
        return runs
    if to is None and source is None:
        raise SettingsError("no model: expected --to de or --to en for the built-in translator, or --model RUN")
    from limner.runs.pretrained import pretrained_translator

    return [pretrained_translator(to, source)]


def _plot_attention(
    translator: Translator,
    sentences: Sequence[str],
    images: Sequence[Path | None],
    translations: Sequence[Sequence[Sentence]],
    missing: Literal["refuse", "text"],
    folder: Path,
) -> None:
    """Write plots of the alignment and the attention of the best translations."""
    from limner.apps.report.attention import AttendedSentence, ModelAttention, save_attention

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


def _read_sentences(arguments: Sequence[str], file: Path | None) -> tuple[list[str], str]:
    """Return the sentences, and their origin in error messages: a file, standard input or the command line."""
    if arguments and file is not None:
        raise SettingsError(f"sentences and --input {file}: give one or the other")
    for text in arguments:
        if text == str(STANDARD_INPUT) or os.path.isfile(text):
            raise SettingsError(f"expected a sentence, got the file '{text}'; to translate a file use --input {text}")
    if arguments:
        return list(arguments), "the command line"
    if file is None and sys.stdin.isatty():
        raise SettingsError("nothing to translate: give sentences, a file (--input), or pipe sentences in")
    origin = "standard input" if file in (None, STANDARD_INPUT) else str(file)
    texts = read_lines(file or STANDARD_INPUT)
    if not texts:
        logger.warning("%s: no sentences to translate", origin)
    return texts, origin


def _read_images(texts: Sequence[str], origin: str, images: Sequence[Path], file: Path | None) -> list[Path | None]:
    """Return the image of each sentence, or None."""
    count = len(texts)
    if file is None:
        if len(images) not in (0, 1, count):
            got = f"{counted(len(images), 'image')} (--image) and {counted(count, 'sentence')}"
            raise SettingsError(f"{got}: give one for all, or one each")
        return [None] * count if not images else [*images] * (count if len(images) == 1 else 1)
    if images:
        raise SettingsError(f"--image and --image-list {file}: give one or the other")
    paths = [Path(line) if line.strip() else None for line in read_lines(file)]
    if len(paths) != count:
        longer, shorter = (file, origin) if len(paths) > count else (origin, file)
        raise SettingsError(
            f"{origin} has {counted(count, 'sentence')} and {file} has {counted(len(paths), 'line')}: line "
            f"{min(count, len(paths)) + 1} of {longer} has no counterpart in {shorter}; write one line per sentence, "
            "an empty one for no image"
        )
    return paths


def _format_lines(
    translations: Iterable[Sequence[Sentence]], tokenizer: Tokenizer | None, scores: bool, several: bool
) -> Iterator[str]:
    """Yield one line per translation: text, or tokens with a tokenizer; n-best lists of Moses if there are several."""
    for number, n_best in enumerate(translations):
        for translation in n_best:
            text = printable(translation.text if tokenizer is None else translation.tokenised(tokenizer))
            if several:
                features = translation.features or (("logprob", translation.log_prob),)
                values = " ".join(f"{name}= {value:.4f}" for name, value in features)
                yield f"{number} ||| {text} ||| {values} ||| {translation.score:.4f}\n"
            else:
                yield tab_separated(text, *((f"{translation.log_prob:.4f}",) if scores else ())) + "\n"


def _to_plain(translation: Sentence, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a translation as plain values; a translation with features has no probability."""
    tokens, features = translation.tokenised(tokenizer).split(), dict(translation.features or ())
    log_prob = None if features else translation.log_prob
    values = {"text": translation.text, "tokens": tokens, "log_prob": log_prob, "score": translation.score}
    return values | {"ended": translation.ended} | ({"features": features} if features else {})


def _translate_collection(
    runs: Sequence[Path],
    folder: Path,
    selection: Mapping[str, Any],
    decoding: dict[str, Any],
    batch_size: int,
    device: str,
    as_json: bool,
) -> None:
    """Print translations of all untranslated sentences of a collection, or add them to it."""
    write, split, ray = selection["write"], selection["split"], selection["ray"]
    if not write:
        options.refuse({"ray": ray}, "has an effect only with --write; add it, or leave it out")
    options.check_runs(runs, device, decoding)
    from limner.data.collection import Collection
    from limner.decoding.settings import change_decoding
    from limner.inference.back_translation import BackTranslationSettings, back_translate, run_name
    from limner.inference.back_translation import translate_untranslated as translate_all
    from limner.inference.translator import languages

    collection = Collection.open(folder)
    collection.require_split(split)
    models = options.load_runs(runs, device)
    source, target = languages(models[0])
    for option, lang in (("source_lang", source.lang), ("target_lang", target)):
        if selection[option] not in (None, lang):
            raise SettingsError(
                f"--{option.replace('_', '-')} {selection[option]}: {runs[0]} translates from '{source.lang}' to "
                f"'{target}'; name a model of the other direction"
            )
    changed = change_decoding(models[0].recipe.decoding, decoding)
    settings = BackTranslationSettings(split, selection["limit"], changed, batch_size)
    if not write:
        with progress_bar("translating") as bar:
            batches = translate_all(models, collection, settings=settings, on_progress=bar)
            pairs = [(translation.sentence.text, translation.text) for batch in batches for translation in batch]
        if not pairs:
            lacking = f"no sentence in '{source.lang}' lacks a translation into '{target}'"
            logger.warning(f"{folder}: {lacking}: nothing was translated")
        if as_json:
            print_json([{source.lang: text, target: translation} for text, translation in pairs])
        for pair in () if as_json else pairs:
            echo(tab_separated(*pair))
        return
    generated_by, journal = "+".join(run_name(run) for run in runs), folder / ".translations.units"
    with progress_bar("translating") as bar, options.generator(ray, runs, folder, journal, device) as generate:
        outcome = back_translate(
            models, collection, generated_by=generated_by, settings=settings, generate=generate, on_progress=bar
        )
    if as_json:
        return print_json({"collection": str(folder), "generated_by": generated_by, **outcome._asdict()})
    reasons = "empty, too long or unfinished translations, or images without features"
    skipped = f"; {outcome.left_out:,} skipped ({reasons})" if outcome.left_out else ""
    added = f"{counted(outcome.translated, 'sentence')} in '{target}' added"
    echo(f"{folder}: {added}, generated by {generated_by}{skipped}")
