"""What a training begins with: vocabularies, examples, and a model that is fresh or has another run's weights."""

from __future__ import annotations

import logging
from pathlib import Path

from limner.data.collection import Collection
from limner.data.dataset import Examples, SourceLanguage, TargetLanguage
from limner.errors import SettingsError, TrainingError
from limner.features.store import FeatureStore
from limner.metrics import score_sentences
from limner.models import Model, build_model
from limner.models.protocols import CountBasedModel, ModelInputs, PretrainedEmbeddingModel
from limner.runs.recipe import Recipe
from limner.runs.trained_model import (
    Config,
    TrainedModel,
    load_tensors,
    load_trained_model,
    provenance,
    sha256,
    transfer_weights,
)
from limner.runs.training_settings import TrainingSettings
from limner.text.embeddings import initial_embeddings
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.optimizers import build_optimizer

logger = logging.getLogger(__name__)


def prepare(
    recipe: Recipe, collection: Collection, command: str, init: Path | None = None
) -> tuple[TrainedModel, Examples, Examples]:
    """Vocabulary from the training split or another run, a model to begin with, and the examples of both splits.

    Raises:
        LimnerError: the recipe does not fit the collection, its features, its word vectors, the model or the machine;
            whatever can be known before the first step.
    """
    _require_measurable(recipe.training.metric)
    data = recipe.data
    pictures = (
        FeatureStore.open(collection, recipe.features.tables, recipe.features.cache_mib)
        if recipe.features.tables
        else None
    )
    if init is None:
        tokenizer, source = _vocabularies(recipe, collection)
    else:
        recipe, tokenizer, source = _with_words_of(load_trained_model(init), recipe, init)
    training_set, validation_set = _both_splits(recipe, collection, tokenizer, source, pictures)
    source_size = None if source is None else len(source.tokenizer)
    inputs = ModelInputs(len(tokenizer), pictures.shapes if pictures else {}, source_size)
    model = build_model(recipe.model, inputs)
    begun = {} if init is None else _begin_with(init, model)
    if isinstance(model, CountBasedModel) or "perplexity" in (recipe.training.metric, *recipe.training.metrics):
        require_counted_words(validation_set, data.val, recipe.evaluation.skip_words)
    if not isinstance(model, CountBasedModel):
        build_optimizer(model.named_parameters(), recipe.training)  # refuses patterns that fit no weight
    if recipe.training.embeddings:
        begun |= _start_from_words(model, tokenizer, recipe.training)
    config = Config(
        recipe=recipe.model_dump(mode="json"),
        provenance={
            "collection": str(collection.path.resolve()),
            "collection_fingerprint": collection.fingerprint(),
            "training_sentences": len(training_set),
            **begun,
            **provenance(recipe.training.seed, command),
        },
        features=tuple(table.spec for table in pictures.tables) if pictures else (),
        vocab_size=len(tokenizer),
        source_vocab_size=source_size,
    )
    source_tokenizer = None if source is None else source.tokenizer
    return TrainedModel(model, tokenizer, config, recipe, source_tokenizer), training_set, validation_set


def _vocabularies(recipe: Recipe, collection: Collection) -> tuple[Tokenizer, SourceLanguage | None]:
    """Vocabularies of the language to learn, and of the one it is translated from.

    The words are those of people: what a model translated, where it is learned from, has a vote in the language it is
    translated into, for people wrote these sentences, and none in the language that the model wrote.

    Raises:
        TrainingError: a model wrote every sentence there is to translate from.
    """
    data, items = recipe.data, collection.items(recipe.data.train)
    if data.source_lang is None or recipe.source_text is None:
        return Tokenizer.train([text for item in items for text in item.texts(data.lang)], recipe.text), None
    pairs = [pair for item in items for pair in item.pairs(data.source_lang, data.lang)]
    read = dict.fromkeys(before.text for before, _ in pairs if not before.generated_by)
    said = dict.fromkeys(after.text for before, after in pairs if data.synthetic or not before.generated_by)
    if said and not read:
        raise TrainingError(
            f"{collection.path}: split '{data.train}' has no sentence in '{data.source_lang}' that people wrote, with "
            f"a translation in '{data.lang}', to make a vocabulary of; begin with one of another run: --init RUN"
        )
    source, target = Tokenizer.train_pair(read, said, recipe.source_text, recipe.text, joint=data.joint_vocabulary)
    return target, SourceLanguage(data.source_lang, source, data.synthetic)


def _with_words_of(first: TrainedModel, recipe: Recipe, run: Path) -> tuple[Recipe, Tokenizer, SourceLanguage | None]:
    """The vocabularies of another run, and the recipe with its text settings, which come with them."""
    theirs, ours = (of.data.source_lang for of in (first.recipe, recipe))
    if (first.recipe.data.lang, theirs) != (recipe.data.lang, ours):
        raise SettingsError(
            f"{run}: learned to write '{first.recipe.data.lang}' from '{theirs}', and the recipe '{recipe.data.lang}' "
            f"from '{ours}': begin with a run of the same languages"
        )
    data = recipe.data.model_copy(update={"joint_vocabulary": first.recipe.data.joint_vocabulary})
    recipe = recipe.model_copy(
        update={"data": data, "text": first.recipe.text, "source_text": first.recipe.source_text}
    )
    source = first.source
    return recipe, first.tokenizer, None if source is None else source._replace(synthetic=recipe.data.synthetic)


def _both_splits(
    recipe: Recipe,
    collection: Collection,
    tokenizer: Tokenizer,
    source: SourceLanguage | None,
    pictures: FeatureStore | None,
) -> tuple[Examples, Examples]:
    """What is learned, and what is validated on; the latter is what people wrote."""
    data, leave_out = recipe.data, recipe.features.missing == "leave_out"
    target = TargetLanguage(data.lang, tokenizer)
    training_set, validation_set = (
        Examples.of_split(
            collection, split, target, pictures, source=read, max_tokens=data.max_tokens, leave_out=leave_out
        )
        for split, read in ((data.train, source), (data.val, source and source._replace(synthetic=0.0)))
    )
    for split, examples in ((data.train, training_set), (data.val, validation_set)):
        if examples.left_out:
            logger.info(
                "split '%s': %d sentences of over %d tokens are left out", split, examples.left_out, data.max_tokens
            )
    if source is not None and source.synthetic:
        _require_synthetic(recipe, training_set, collection)
    return training_set, validation_set


def _require_synthetic(recipe: Recipe, training_set: Examples, collection: Collection) -> None:
    """Refuse to learn from people's sentences alone where others were asked for, and tell where they are too few.

    Raises:
        SettingsError: there are none.
    """
    data = recipe.data
    if not training_set.synthetic:
        raise SettingsError(
            f"data.synthetic: {data.synthetic:g}, and split '{data.train}' of {collection.path} has no source sentence "
            f"in '{data.source_lang}' that a model wrote; write some with 'limner translate --model RUN --collection "
            f"{collection.path} --source-lang {data.lang} --target-lang {data.source_lang} --write', or go without: "
            "data.synthetic=0"
        )
    total = len(training_set.epoch_rows(recipe.training.seed, 0))
    drawn = total - (len(training_set) - len(training_set.synthetic))
    told = f"{drawn:,} of the {total:,} pairs of an epoch begin with a sentence that a model wrote"
    if drawn == len(training_set.synthetic) and drawn < round(data.synthetic * total):
        logger.warning("data.synthetic: %g, but there are not as many: %s", data.synthetic, told)
    else:
        logger.info("%s", told)


def _begin_with(init: Path, model: Model) -> dict[str, str]:
    """Put another run's weights into a fresh model, and tell which.

    Raises:
        SettingsError: none of them fits.
    """
    weights = init / "model.safetensors"
    taken = transfer_weights(model, load_tensors(weights))
    if taken.new and not taken.taken:
        raise SettingsError(
            f"{init}: not one of its weights has the name and the shape of one of this model's, so it would begin "
            "afresh; begin with a run of a model of the same kind and the same sizes (model.*), or without --init"
        )
    logger.info("%s: %s", init, taken)
    fresh = [name for name in taken.new if "embedding" in name or name.startswith("encoder")]
    if fresh:
        logger.warning(
            "%s: %s are not taken but begin afresh: that run is of another kind of model, or of other sizes (model.*)",
            init,
            ", ".join(fresh),
        )
    return {"init": f"{init}: {taken}", "init_sha256": sha256(weights)}


def require_counted_words(examples: Examples, split: str, skip_words: int) -> None:
    """Refuse sentences of which perplexity counts no word, see `limner.decoding.scoring.counted_tokens`.

    Raises:
        SettingsError: all are too short.
    """
    longest = max(map(len, examples.targets))
    if skip_words and longest < skip_words + 3:
        raise SettingsError(
            f"evaluation.skip_words: {skip_words} leaves out sentences of fewer than {skip_words + 3} words, and none "
            f"in split '{split}' has more than {longest}; evaluation.skip_words=0 counts all words"
        )


def _start_from_words(model: Model, tokenizer: Tokenizer, settings: TrainingSettings) -> dict[str, str]:
    """Put pre-trained word vectors into a fresh model, and tell how many of its words they know."""
    assert settings.embeddings is not None
    if not isinstance(model, PretrainedEmbeddingModel):
        raise SettingsError("training.embeddings: this model does not begin with word vectors; leave it out")
    start = initial_embeddings(
        settings.embeddings, tokenizer.entries, model.word_dim, settings.seed, setting="model.word_dim"
    )
    model.init_word_embeddings(start.values)
    words = len(tokenizer) - len(SPECIAL_TOKENS)
    told = f"{settings.embeddings.name}: {start.found:,} of {words:,} words found ({start.found / words:.0%})"
    logger.info("%s; the others are drawn from the same distribution", told)
    return {"embeddings": told}


def _require_measurable(metric: str) -> None:
    """Find out before the first step, not after the first epoch, that the metric which decides cannot run here."""
    sentences = ["a dog runs", "a cat sleeps"]
    if metric != "perplexity" and not score_sentences(sentences, [[text] for text in sentences], [metric]):
        raise TrainingError(
            f"training.metric: '{metric}' cannot be measured on this machine (the log says why); mend that, or choose "
            "another metric"
        )
