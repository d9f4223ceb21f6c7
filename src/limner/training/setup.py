"""Setup of a training: vocabularies, examples, and a model with random weights or the weights of another run.

The memory that the training needs is estimated and compared with the available memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import nn

from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Item
from limner.data.languages import SourceLanguage, TargetLanguage, region_items
from limner.errors import SettingsError, TrainingError
from limner.features.store import FeatureStore, feature_store
from limner.layers.image_encoder import trained_convolutions
from limner.metrics import METRICS, RETRIEVAL_METRICS, score_sentences
from limner.metrics.classification import LABEL_METRICS
from limner.models import Model, build_model
from limner.models.phrase_based import PhraseBased
from limner.models.protocols import CountBasedModel, ModelInputs, PretrainedEmbeddingModel
from limner.process import available_memory, require_memory, training_device, use_threads_for
from limner.runs.recipe import Recipe
from limner.runs.trained_model import (
    ModelConfig,
    TrainedModel,
    load_trained_model,
    provenance,
    sha256,
    transfer_weights,
)
from limner.runs.training_settings import SGDSettings, TrainingSettings
from limner.storage.tensors import load_tensors
from limner.text.embeddings import initial_embeddings
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.optimizers import build_optimizer
from limner.training.processes import ONE_DEVICE, Devices

logger = logging.getLogger(__name__)


def prepare(
    recipe: Recipe, collection: Collection, command: str, init: Path | None = None, devices: Devices = ONE_DEVICE
) -> tuple[TrainedModel, Examples, Examples]:
    """Build the vocabularies, the model with its initial weights, and the examples of both splits.

    With `init`, the vocabularies and the matching weights of that run are used. The memory of the devices is checked.

    Returns:
        The untrained model, the training examples and the validation examples.

    Raises:
        LimnerError: the recipe does not fit the collection, its features, the pre-trained embeddings or the machine.
    """
    _require_computable(recipe.training.metric)
    data, features = recipe.data, None
    if recipe.features.tables:
        store = feature_store(recipe.model.describes_regions)
        features = store.open(collection, recipe.features.tables, recipe.features.cache_mib)
    if init is None:
        tokenizer, source = _build_vocabularies(recipe, collection)
        source_text = recipe.source_text if source is None else source.tokenizer.settings
        recipe = recipe.model_copy(update={"text": tokenizer.settings, "source_text": source_text})
    else:
        recipe, tokenizer, source = _vocabularies_of_run(init, recipe)
    training_set, validation_set = _both_splits(recipe, collection, tokenizer, source, features)
    source_tokenizer = None if source is None else source.tokenizer
    source_size = None if source_tokenizer is None else len(source_tokenizer)
    inputs = ModelInputs(len(tokenizer), features.shapes if features else {}, source_size)
    model = build_model(recipe.model, inputs)
    if recipe.model.describes_regions:
        from limner.inference.regions import require_concepts

        require_concepts(recipe.model, (table.spec for table in features.tables) if features else (), data.lang)
    initialisation = {} if init is None else initialise_from_run(init, model)
    if isinstance(model, CountBasedModel) or "perplexity" in (recipe.training.metric, *recipe.training.metrics):
        require_counted_words(validation_set, data.val, recipe.evaluation.skip_words)
    if recipe.model.has_gradients:
        build_optimizer(model.named_parameters(), recipe.training)  # checks the patterns of parameter names
        require_training_memory(model, recipe, training_set, devices)
    if recipe.training.pretrained_embeddings:
        initialisation |= initialise_embeddings(model, source_tokenizer or tokenizer, recipe.training)
    if recipe.training.pretrained_image_encoder:
        initialisation |= initialise_image_encoder(model, recipe.training.pretrained_image_encoder)
    use_threads_for(model.parameters())  # after loading other runs, which choose threads for their own models
    config = ModelConfig(
        recipe=recipe.model_dump(mode="json"),
        provenance={
            "collection": str(collection.path.resolve()),
            "collection_fingerprint": collection.fingerprint(),
            "training_sentences": len(training_set),
            **_notes(recipe, training_set, validation_set),
            **initialisation,
            **provenance(recipe.training.seed, command),
        },
        features=tuple(table.spec for table in features.tables) if features else (),
        vocab_size=len(tokenizer),
        source_vocab_size=source_size,
    )
    return TrainedModel(model, tokenizer, config, recipe, source_tokenizer), training_set, validation_set


class _Texts:
    """Sentences of items in a language, which can be read several times."""

    def __init__(self, items: Sequence[Item], lang: str) -> None:
        self._items, self._lang = items, lang

    def __iter__(self) -> Iterator[str]:
        return (text for item in self._items for text in item.texts(self._lang))


def _build_vocabularies(recipe: Recipe, collection: Collection) -> tuple[Tokenizer, SourceLanguage | None]:
    """Build the target vocabulary from the training split and, for translation, the source vocabulary.

    The source vocabulary is built from sentences written by people. The target vocabulary also counts the sentences
    that people wrote and a model translated into the source language, if `data.synthetic` is above 0.
    """
    data, items = recipe.data, collection.items(recipe.data.train)
    if data.source_lang is None or recipe.source_text is None:
        described = region_items(items, data.lang) if recipe.model.describes_regions else items
        return Tokenizer.train(_Texts(described, data.lang), recipe.text), None
    pairs = [pair for item in items for pair in item.pairs(data.source_lang, data.lang)]
    sources = dict.fromkeys(source.text for source, _ in pairs if not source.generated_by)
    targets = dict.fromkeys(target.text for source, target in pairs if data.synthetic or not source.generated_by)
    if targets and not sources:
        raise TrainingError(
            f"{collection.path}: expected sentences in '{data.source_lang}' written by people in split '{data.train}', "
            f"with translations in '{data.lang}', to build a vocabulary from, found none; use the vocabularies of "
            "another run: --init RUN"
        )
    source, target = Tokenizer.train_pair(
        sources, targets, recipe.source_text, recipe.text, joint=data.joint_vocabulary
    )
    return target, SourceLanguage(data.source_lang, source, data.synthetic)


def _vocabularies_of_run(init: Path, recipe: Recipe) -> tuple[Recipe, Tokenizer, SourceLanguage | None]:
    """Return the recipe with the text settings of another run, and the vocabularies of that run."""
    trained = load_trained_model(init)
    theirs, data = trained.recipe.data, recipe.data
    if (theirs.lang, theirs.source_lang) != (data.lang, data.source_lang):
        raise SettingsError(
            f"{init}: expected a run of the same languages, source '{data.source_lang}' and target '{data.lang}', "
            f"found source '{theirs.source_lang}' and target '{theirs.lang}'"
        )
    changes = {
        "data": data.model_copy(update={"joint_vocabulary": theirs.joint_vocabulary}),
        "text": trained.recipe.text,
        "source_text": trained.recipe.source_text,
    }
    source = None if trained.source is None else trained.source._replace(synthetic=data.synthetic)
    return recipe.model_copy(update=changes), trained.tokenizer, source


def _both_splits(
    recipe: Recipe,
    collection: Collection,
    tokenizer: Tokenizer,
    source: SourceLanguage | None,
    features: FeatureStore | None,
) -> tuple[Examples, Examples]:
    """Tokenise the training and validation splits; validation without sentences generated by a model."""
    data, leave_out = recipe.data, recipe.features.missing == "leave_out"
    target = TargetLanguage(data.lang, tokenizer, recipe.model.describes_regions)
    training_set, validation_set = (
        Examples.of_split(
            collection, split, target, features, source=language, max_tokens=data.max_tokens, leave_out=leave_out
        )
        for split, language in ((data.train, source), (data.val, source and source._replace(synthetic=0.0)))
    )
    if source is not None and source.synthetic:
        _require_synthetic(recipe, training_set, collection)
    return training_set, validation_set


def _notes(recipe: Recipe, training_set: Examples, validation_set: Examples) -> dict[str, list[str]]:
    """Lines about the examples excluded from both splits, for the records; none if no example was excluded."""
    sets = {recipe.data.train: training_set, recipe.data.val: validation_set}
    if recipe.model.scores_sentences:
        for examples in sets.values():
            examples.note_unknown_tokens()
    lines = [line for split, examples in sets.items() for line in examples.tally.lines(split)]
    return {"notes": lines} if lines else {}


def _require_synthetic(recipe: Recipe, training_set: Examples, collection: Collection) -> None:
    """Check that the generated source sentences that the recipe needs exist; warn if there are too few."""
    data = recipe.data
    if not training_set.synthetic:
        raise SettingsError(
            f"data.synthetic={data.synthetic:g} needs generated source sentences, and split '{data.train}' of "
            f"{collection.path} has none in '{data.source_lang}'; generate some with 'limner translate --model RUN "
            f"--collection {collection.path} --source-lang {data.lang} --target-lang {data.source_lang} --write', or "
            "set data.synthetic=0"
        )
    total = len(training_set.epoch_rows(recipe.training.seed, 0))
    drawn = total - (len(training_set) - len(training_set.synthetic))
    summary = f"{drawn:,} of the {total:,} pairs of an epoch have a generated source sentence"
    if drawn == len(training_set.synthetic) and drawn < round(data.synthetic * total):
        logger.warning(
            "data.synthetic=%g needs more generated source sentences than there are: %s", data.synthetic, summary
        )
    else:
        logger.info("%s", summary)


def require_counted_words(examples: Examples, split: str, skip_words: int) -> None:
    """Check that perplexity counts a token, see `limner.decoding.scoring.counted_tokens`; or SettingsError."""
    longest = max(map(len, examples.targets))
    if skip_words and longest < skip_words + 3:
        raise SettingsError(
            f"evaluation.skip_words={skip_words} leaves out sentences of fewer than {skip_words + 3} tokens, and the "
            f"longest in split '{split}' has {longest}; lower it, or set evaluation.skip_words=0 to count all tokens"
        )


def _require_computable(metric: str) -> None:
    """Check before the first step that the metric which selects the best weights can be computed on this machine."""
    if metric in ("perplexity", "localisation_map", *RETRIEVAL_METRICS) or METRICS.get(metric) in LABEL_METRICS:
        return
    compared = "meteor" if metric == "map" else metric  # the similarity of the descriptions
    sentences = ["a dog runs", "a cat sleeps"]
    if not score_sentences(sentences, [[text] for text in sentences], [compared]):
        raise TrainingError(
            f"training.metric: '{metric}' cannot be computed on this machine (see the log); install what it needs, or "
            f"choose another metric{' such as localisation_map' if metric == 'map' else ''}"
        )


NUMBER_BYTES = 4
"""Bytes of a weight, a gradient or an activation in float32."""
LOGIT_TENSORS = 2
"""Tensors of the size of the logits in a step: the logits and their gradient."""


def estimate_memory(model: Model, settings: TrainingSettings, examples: Examples) -> tuple[int, int]:
    """Estimate the memory of a training in bytes, besides the weights, rather too low than too high.

    Each weight matrix writes its rows once for each position of the sentences; a table of the size of a vocabulary is
    an embedding, or computes the logits. Activations of convolutions are not counted.

    Returns:
        Memory of the gradients, the moments of the optimizer and the moving average of the weights; and of the logits
        and hidden layers of a batch, with their gradients.
    """
    parameters = list(cast(nn.Module, model).parameters())
    weights = NUMBER_BYTES * sum(parameter.numel() for parameter in parameters)
    moments = int(settings.optimizer.momentum > 0) if isinstance(settings.optimizer, SGDSettings) else 2
    matrices = [parameter.shape for parameter in parameters if parameter.dim() == 2]
    vocabularies = {model.vocab_size, *(() if examples.source is None else (len(examples.source.tokenizer),))}
    widths = sum(min(rows, columns) if rows in vocabularies else rows for rows, columns in matrices)
    rows = min(settings.batch_size, len(examples))
    if settings.objective == "scst":
        rows *= settings.scst.samples
    tokens = rows * (1 + sum(map(len, examples.targets)) // max(1, len(examples)))
    batch = NUMBER_BYTES * tokens * (LOGIT_TENSORS * model.vocab_size + widths)
    return weights * (1 + moments + (settings.ema_decay > 0)), batch


def require_training_memory(model: Model, recipe: Recipe, examples: Examples, devices: Devices = ONE_DEVICE) -> None:
    """Check that the memory of a training is available on its devices; processes on one CPU share its memory.

    Raises:
        ResourceError: there is less; the message names the setting that needs most memory.
    """
    states, batch = estimate_memory(model, recipe.training, examples)
    remedy = f"lower training.batch_size ({recipe.training.batch_size:,})"
    if states > batch:
        sizes = {name: value for name, value in recipe.model if type(value) is int}
        name = max(sizes, key=sizes.__getitem__, default=None)
        remedy = "lower the sizes of the model (model.*)" if name is None else f"lower model.{name} ({sizes[name]:,})"
    device = training_device(devices.device)
    sharing = devices.per_machine if device.type == "cpu" else 1
    total = sharing * (states + batch // devices.total)
    require_memory(total, "training", remedy, available_memory(device))


def initialise_from_run(init: Path, model: Model) -> dict[str, str]:
    """Copy the weights of another run whose names and shapes match; return a summary for the records.

    Raises:
        SettingsError: no weight matches, or the model is estimated without initial weights.
    """
    if isinstance(model, PhraseBased):
        raise SettingsError(
            f"--init {init}: a phrase-based model is estimated from its sentence pairs alone, without initial weights; "
            "leave --init out"
        )
    weights = init / "model.safetensors"
    transferred = transfer_weights(model, load_tensors(weights))
    if transferred.new and not transferred.taken:
        raise SettingsError(
            f"{init}: expected weights with the names and shapes of this model's, found none; name a run of the same "
            "model and sizes (model.*), or leave out --init"
        )
    missing = [name for name in transferred.new if "embedding" in name or name.startswith("encoder")]
    if missing:
        logger.warning(
            "%s: no weights of the same name and shape for %s, which keep their random initial values: that run has "
            "another model or other sizes (model.*)",
            init,
            ", ".join(missing),
        )
    return {"init": f"{init}: {transferred}", "init_sha256": sha256(weights)}


def initialise_embeddings(model: Model, tokenizer: Tokenizer, settings: TrainingSettings) -> dict[str, str]:
    """Initialise the word embeddings from a pre-trained file; return the coverage of the vocabulary for the records."""
    assert settings.pretrained_embeddings is not None
    if not isinstance(model, PretrainedEmbeddingModel):
        raise SettingsError(
            "training.pretrained_embeddings: this model does not support pre-trained word embeddings; leave it out"
        )
    embeddings = initial_embeddings(
        settings.pretrained_embeddings, tokenizer.entries, model.word_dim, settings.seed, setting="model.word_dim"
    )
    model.init_word_embeddings(embeddings.values)
    words = len(tokenizer) - len(SPECIAL_TOKENS)
    coverage = (
        f"{settings.pretrained_embeddings.name}: {embeddings.num_pretrained:,} of {words:,} words found "
        f"({embeddings.num_pretrained / words:.0%})"
    )
    return {"embeddings": coverage}


def initialise_image_encoder(model: Model, run: Path) -> dict[str, str]:
    """Copy the convolutions of another run's model; return a summary for the records.

    The two models, their vocabularies and the projections of their image encoders may differ.

    Raises:
        RunError: `run` holds no complete model.
        SettingsError: one of the models trains no convolutions, or their shapes differ.
    """
    setting = "training.pretrained_image_encoder"
    with torch.random.fork_rng(devices=[]):  # building the other model leaves the random state as it is
        source = trained_convolutions(cast(nn.Module, load_trained_model(run).model))
    convolutions = trained_convolutions(cast(nn.Module, model))
    if not convolutions:
        raise SettingsError(f"{setting}: this model trains no convolutions on pixels or feature maps; leave it out")
    if not source:
        raise SettingsError(f"{setting}: {run}: expected convolutions on pixels or feature maps, found none")
    weights = source[0].state_dict()
    for layers in convolutions:
        expected, actual = ({name: tuple(w.shape) for name, w in s.items()} for s in (layers.state_dict(), weights))
        if expected != actual:
            raise SettingsError(
                f"{setting}: {run}: its convolutions have other shapes than this model's; set "
                "model.image_encoder.convnet_width and features.tables as in that run, or leave it out"
            )
        layers.load_state_dict(weights)
    summary = f"{run}: {len(weights)} weights of the convolutions"
    return {"image_encoder": summary, "image_encoder_sha256": sha256(run / "model.safetensors")}
