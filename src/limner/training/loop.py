"""Training, one page for every model."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from limner.checkpoint import Checkpoint, Config, load_tensors, load_weights, provenance, save_checkpoint
from limner.data.batching import Examples, Pictures, epoch_order, prefetch, split_examples
from limner.data.collection import Collection
from limner.data.examples import SIGNS, Batch
from limner.errors import CheckpointError, SettingsError, TrainingError
from limner.evaluation import validate
from limner.files import locked, write_whole
from limner.hardware import native_bf16
from limner.metrics import score_sentences
from limner.models import Model, Output, build_model
from limner.models.protocols import Counted, WordModel
from limner.recipe import Recipe
from limner.scoring import score_examples
from limner.text.embeddings import start_vectors
from limner.text.vocab import Tokenizer
from limner.training.interruption import Interruption
from limner.training.logs import RunLog
from limner.training.objectives import word_loss
from limner.training.optim import WeightAverage, build_optimizer, set_rates, squared_norm
from limner.training.settings import TrainingSettings
from limner.training.state import Place, find_state, load_state, save_state

logger = logging.getLogger(__name__)

LOWER_IS_BETTER = ("perplexity",)


class Progress(NamedTuple):
    """What a training tells after every step."""

    place: Place
    steps: int
    """Steps of all epochs."""


def train(
    recipe: Recipe,
    collection: Collection,
    out: Path,
    *,
    resume: bool = False,
    command: str = "limner.train",
    note: Callable[[str], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Train a model and keep its best weights.

    Args:
        recipe: all settings.
        collection: its train split is learned from, its val split decides.
        out: the run folder: the model, its log, and the state to resume from.
        resume: go on with a run that was stopped; on a CPU the result is bit for bit that of one that was not. What
            is measured later (`evaluation`, but for skip_words) may be other than before, and so may `search` where
            validation writes no sentences.
        command: how this was called, for the records.
        note: told in a line, before the first step, how many words the pre-trained vectors know.
        progress: told after every step.

    Returns:
        `out`.

    Raises:
        CheckpointError: `out` holds a run and `resume` is false, or a run of another recipe or other data, or one that
            another process is training; or the disk refuses.
        TrainingError: there is nothing to learn from, the metric that decides cannot be measured here, or the loss
            stopped being a number.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it tells the precision on standard error
    fabric = Fabric(accelerator=device, devices=1, precision=precision(recipe.training, device))
    fabric.seed_everything(recipe.training.seed, verbose=False)
    learner, training_set, validation_set = prepare(recipe, collection, command)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, CheckpointError):
        _claim(out, learner.config, resume)
        if note is not None and "embeddings" in learner.config.provenance:
            note(f"begins with {learner.config.provenance['embeddings']}; the others are drawn likewise")
        if isinstance(learner.model, Counted):
            _count(learner, training_set, validation_set, out)
            return out
        _learn(fabric, learner, training_set, validation_set, out, find_state(out) if resume else None, progress)
    return out


class _Run(NamedTuple):
    """What all epochs of a training share."""

    fabric: Fabric
    learner: Checkpoint
    optimizer: Optimizer
    average: WeightAverage | None
    place: Place
    log: RunLog
    out: Path
    interruption: Interruption
    progress: Callable[[Progress], None] | None

    @property
    def settings(self) -> TrainingSettings:
        return self.learner.recipe.training

    def save(self) -> None:
        save_state(self.out, self.learner.model, self.optimizer, self.average, self.place)


def _learn(
    fabric: Fabric,
    learner: Checkpoint,
    training_set: Examples,
    validation_set: Examples,
    out: Path,
    stored: Path | None,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Step by step through all epochs, from the beginning or from a stored state."""
    settings = learner.recipe.training
    optimizer = build_optimizer(learner.model.named_parameters(), settings)
    model, wrapped = fabric.setup(learner.model, optimizer)
    average = WeightAverage(learner.model.parameters(), settings.average) if settings.average else None
    place = load_state(stored, learner.model, optimizer, average) if stored else Place()
    _warn_of_few_updates(settings, math.ceil(len(training_set) / settings.batch_size))
    with Interruption() as interruption:
        run = _Run(fabric, learner, optimizer, average, place, RunLog(out, place), out, interruption, progress)
        while place.target is None and not _finished(place, settings):
            _learn_epoch(run, model, wrapped, training_set)
            if place.epoch % settings.validate_every == 0 or place.epoch == settings.epochs:
                _validate(run, validation_set)
            if settings.fuse and _finished(place, settings):
                _begin_fused(run, training_set)
            run.save()
            interruption.obey()
        if settings.fuse:
            items, data = [*training_set.items, *validation_set.items], learner.recipe.data
            fused = Examples(items, learner.tokenizer, data.lang, training_set.pictures, data.max_words)
            while not _as_probable(place, settings):
                _learn_epoch(run, model, wrapped, fused)
                _keep_fused(run, validation_set)
                run.save()
                interruption.obey()
        run.log.close()


def _learn_epoch(run: _Run, model: Callable[[Batch], Output], wrapped: Optimizer, examples: Examples) -> None:
    """One epoch, or what is left of it; `model` and `wrapped` are Fabric's model and optimizer."""
    settings, place = run.settings, run.place
    lengths = [len(target) for target in examples.targets]
    total = settings.epochs * math.ceil(len(lengths) / settings.batch_size)
    batches = epoch_order(lengths, settings.batch_size, settings.bucket, settings.seed, place.epoch)
    run.learner.model.train()
    for batch in prefetch(examples.batch, batches[place.batch :], settings.prefetch):
        began = time.perf_counter()
        set_rates(run.optimizer, settings, place.step, place.epoch, total)
        batch = batch.to(run.fabric.device)
        loss = word_loss(model(batch), batch, settings.label_smoothing)
        _require_finite("loss", loss, place, batch.ids)
        weights = list(run.learner.model.parameters())
        cost = loss + settings.l2 * squared_norm(weights) if settings.l2 else loss
        run.optimizer.zero_grad()
        run.fabric.backward(cost)
        norm = clip_grad_norm_(weights, settings.clip_norm or math.inf)
        _require_finite("norm of the gradient", norm, place, batch.ids)
        wrapped.step()
        if run.average is not None:
            run.average.update(place.step)
        _advance(place, float(loss.detach()), int(batch.target_mask.sum()), time.perf_counter() - began)
        if place.step % settings.save_every == 0 or run.interruption.asked:
            run.save()
        run.interruption.obey()
        if run.progress is not None:
            run.progress(Progress(place, total))
    run.log.epoch(place)
    place.begin_epoch()


def _begin_fused(run: _Run, training_set: Examples) -> None:
    """Back to the best weights, noting how well they fit the training sentences.

    The paper says 'the objective value on the training set was recorded', not of which weights: those that are kept.
    """
    load_weights(run.learner.model, load_tensors(run.out / "model.safetensors"), str(run.out))
    run.optimizer.state.clear()
    if run.average is not None:
        run.average.restart()
    run.place.target = score_examples(run.learner.model, training_set).perplexity.value
    logger.info("training and validation data are fused until the latter's perplexity is %.3f", run.place.target)


def _keep_fused(run: _Run, validation_set: Examples) -> None:
    """Keep the weights after an epoch of fused data, and note how well they fit the validation sentences by now."""
    place = run.place
    if run.average is not None:
        run.average.swap()
    place.fused, place.reached = place.fused + 1, score_examples(run.learner.model, validation_set).perplexity.value
    run.log.validation(place, {"perplexity": place.reached})
    values = {"fused_epochs": place.fused, "perplexity_of_fused_validation_data": place.reached}
    _keep(run, values | ({} if place.best is None else {f"validation_{run.settings.metric}": place.best}))
    if run.average is not None:
        run.average.swap()


def _as_probable(place: Place, settings: TrainingSettings) -> bool:
    """Whether the validation sentences, now learned too, fit as the training sentences did when they were alone."""
    assert place.target is not None
    if place.reached is not None and place.reached <= place.target:
        return True
    if place.fused == settings.fuse:
        logger.warning("training.fuse: %d epochs have not reached the perplexity %.3f", place.fused, place.target)
    return place.fused == settings.fuse


def _warn_of_few_updates(settings: TrainingSettings, steps_per_epoch: int) -> None:
    """A recipe made for thousands of sentences teaches nothing to a model that is shown a few dozen."""
    steps, warmup = steps_per_epoch * settings.epochs, settings.schedule.warmup_steps
    if steps < 2 * warmup:
        logger.warning(
            "only %d updates, and the learning rate rises over the first %d: lower training.schedule.warmup_steps "
            "and training.batch_size, or raise training.epochs (the recipe own/photos suits small collections)",
            steps,
            warmup,
        )


def _require_measurable(metric: str) -> None:
    """Find out before the first step, not after the first epoch, that the metric which decides cannot run here."""
    sentences = ["a dog runs", "a cat sleeps"]
    if metric != "perplexity" and not score_sentences(sentences, [[text] for text in sentences], [metric]):
        raise TrainingError(
            f"training.metric: '{metric}' cannot be measured on this machine (the log says why); mend that, or choose "
            "another metric"
        )


def precision(settings: TrainingSettings, device: str) -> Literal["32-true", "bf16-mixed"]:
    """The precision Fabric is given."""
    if settings.precision == "auto":
        return "bf16-mixed" if native_bf16(torch.device(device)) else "32-true"
    return "bf16-mixed" if settings.precision == "bf16" else "32-true"


def prepare(recipe: Recipe, collection: Collection, command: str) -> tuple[Checkpoint, Examples, Examples]:
    """Vocabulary from the training split, a fresh model, and the examples of both splits.

    Raises:
        LimnerError: the recipe does not fit the collection, its features, its word vectors, the model or the machine;
            whatever can be known before the first step.
    """
    _require_measurable(recipe.training.metric)
    data = recipe.data
    pictures = (
        Pictures.open(collection, recipe.visual.features, recipe.visual.cache_mib) if recipe.visual.features else None
    )
    items = collection.items(data.train)
    tokenizer = Tokenizer.train([text for item in items for text in item.texts(data.lang)], recipe.text)
    training_set, validation_set = (
        split_examples(
            collection, split, tokenizer, data.lang, pictures, data.max_words, recipe.visual.missing == "leave_out"
        )
        for split in (data.train, data.val)
    )
    for split, examples in ((data.train, training_set), (data.val, validation_set)):
        if examples.left_out:
            logger.info(
                "split '%s': %d sentences of over %d tokens are left out", split, examples.left_out, data.max_words
            )
    model = build_model(recipe.model, len(tokenizer), pictures.forms if pictures else {})
    if isinstance(model, Counted) or "perplexity" in (recipe.training.metric, *recipe.training.metrics):
        require_counted_words(validation_set, data.val, recipe.evaluation.skip_words)
    if not isinstance(model, Counted):
        build_optimizer(model.named_parameters(), recipe.training)  # refuses patterns that fit no weight
    begun = _start_from_words(model, tokenizer, recipe.training) if recipe.training.embeddings else {}
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
    )
    return Checkpoint(model, tokenizer, config, recipe), training_set, validation_set


def require_counted_words(examples: Examples, split: str, skip_words: int) -> None:
    """Refuse sentences of which perplexity counts no word, see `limner.scoring.counted_words`.

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
    if not isinstance(model, WordModel):
        raise SettingsError("training.embeddings: this model does not begin with word vectors; leave it out")
    start = start_vectors(
        settings.embeddings, tokenizer.entries, model.word_dim, settings.seed, setting="model.word_dim"
    )
    model.start_from_words(start.values)
    words = len(tokenizer) - len(SIGNS)
    told = f"{settings.embeddings.name}: {start.found:,} of {words:,} words found ({start.found / words:.0%})"
    logger.info("%s; the others are drawn from the same distribution", told)
    return {"embeddings": told}


def _claim(out: Path, config: Config, resume: bool) -> None:
    """Make the run folder this run's: refuse to overwrite another one, or to resume something else."""
    recipe_file = out / "recipe.json"
    mine = {
        "recipe": config.recipe,
        "data": config.provenance["collection_fingerprint"],
        "features": _prints(config),
    }
    if not recipe_file.exists():
        if any(not file.name.startswith(".") for file in out.iterdir()):
            raise CheckpointError(f"{out}: not empty and not a run of Limner; name another --out")
        write_whole(recipe_file, json.dumps(mine, indent=1))
        return
    if not resume:
        raise CheckpointError(f"{out}: holds a run already; add --resume to go on with it, or name another --out")
    try:
        theirs = dict(json.loads(recipe_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{recipe_file}: damaged ({error}), so nobody knows what to resume; restore it, or name another --out"
        ) from None
    for what in mine:
        before, now = (_deciding(of.get(what)) if what == "recipe" else of.get(what) for of in (theirs, mine))
        if before != now:
            difference = _first_difference(before, now, what)
            raise CheckpointError(f"{out}: cannot resume, {difference}; use the same {what}, or name another --out")


def _deciding(recipe: Any) -> Any:  # noqa: ANN401  (whatever JSON holds)
    """What of a recipe decides how it trains.

    Of `evaluation` these are the words that perplexity counts; `search` only where validation writes sentences.
    """
    try:
        training, kept = recipe["training"], dict(recipe)
        if {training["metric"], *training["metrics"]} <= {"perplexity"}:
            kept.pop("search", None)
        return {**kept, "evaluation": {"skip_words": recipe["evaluation"]["skip_words"]}}
    except (KeyError, TypeError):  # of another version: the difference is told
        return recipe


def _prints(config: Config) -> list[str]:
    return [spec.fingerprint for spec in config.features]


def _first_difference(theirs: object, mine: object, key: str) -> str:
    """Name the first key in which two nested values differ."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for name in sorted({*theirs, *mine}):
            if theirs.get(name) != mine.get(name):
                return _first_difference(theirs.get(name), mine.get(name), f"{key}.{name}")
    return f"{key} was {theirs!r} and is now {mine!r}"


def _finished(place: Place, settings: TrainingSettings) -> bool:
    if place.epoch >= settings.epochs:
        return True
    if settings.patience is None or place.stale < settings.patience:
        return False
    logger.info("stopped after %d validations without a better %s", place.stale, settings.metric)
    return True


def _require_finite(what: str, value: Tensor, place: Place, ids: tuple[str, ...]) -> None:
    if not torch.isfinite(value):
        raise TrainingError(
            f"the {what} is {float(value.detach())} at step {place.step} (epoch {place.epoch}; "
            f"the batch begins with item '{ids[0]}'): lower training.optimizer.lr "
            "or set training.clip_norm; the last saved state is untouched"
        )


def _advance(place: Place, loss: float, words: int, seconds: float) -> None:
    place.step, place.batch = place.step + 1, place.batch + 1
    place.loss_sum, place.words = place.loss_sum + loss * words, place.words + words
    place.seconds += seconds


def _validate(run: _Run, examples: Examples) -> None:
    """Score and decode the validation split with the weights that would be kept, and keep them if they are better."""
    settings, place = run.settings, run.place
    if run.average is not None:
        run.average.swap()
    values = validate(run.learner, examples, tuple(dict.fromkeys((settings.metric, *settings.metrics))))
    value = values.get(settings.metric, math.nan)
    if not math.isfinite(value):
        raise TrainingError(
            f"training.metric: '{settings.metric}' has no finite value after epoch {place.epoch}: either it cannot be "
            "measured on this machine (the log says why), or the weights have grown beyond all bounds (lower "
            "training.optimizer.lr, or set training.clip_norm); the last saved state is untouched"
        )
    run.log.validation(place, values)
    sign = -1 if settings.metric in LOWER_IS_BETTER else 1
    if place.best is None or sign * value > sign * place.best:
        place.best, place.stale = value, 0
        _keep(run, {f"validation_{name}": value for name, value in values.items()})
    else:
        place.stale += 1
    if run.average is not None:
        run.average.swap()


def _keep(run: _Run, values: dict[str, float]) -> None:
    """Save the model as it is now, with what is known of it."""
    facts = {**run.learner.config.provenance, "epochs": run.place.epoch, "seconds": round(run.place.seconds, 1)}
    facts |= {name: round(value, 3) for name, value in values.items()}
    config = run.learner.config.model_copy(update={"provenance": facts})
    save_checkpoint(run.out, run.learner._replace(config=config))


def _count(learner: Checkpoint, training_set: Examples, validation_set: Examples, out: Path) -> None:
    """A model that is counted is done at once; it is measured and kept like one that learns.

    With `training.fuse` it is counted again once it is measured, now on training and validation sentences, which is all
    that going on with both can mean here.
    """
    assert isinstance(learner.model, Counted)
    settings, place = learner.recipe.training, Place(epoch=1)
    began = time.perf_counter()
    learner.model.fit(training_set.targets)
    place.seconds = time.perf_counter() - began
    values = validate(learner, validation_set, tuple(dict.fromkeys(("perplexity", *settings.metrics))))
    log = RunLog(out, Place())
    log.validation(place, values)
    log.close()
    facts: dict[str, object] = {f"validation_{name}": round(value, 3) for name, value in values.items()}
    if settings.fuse:
        began = time.perf_counter()
        learner.model.fit([*training_set.targets, *validation_set.targets])
        place.seconds += time.perf_counter() - began
        facts["fused"] = f"counted again together with the {len(validation_set):,} validation sentences"
    facts = {**learner.config.provenance, "epochs": 1, "seconds": round(place.seconds, 1), **facts}
    save_checkpoint(out, learner._replace(config=learner.config.model_copy(update={"provenance": facts})))
