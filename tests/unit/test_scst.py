"""Self-critical training: the gradient against enumeration, rewards, resuming and settings."""

import itertools
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from interrupted import resumed
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.data.languages import SourceLanguage, TargetLanguage
from limner.decoding.sentence import Sentence as GeneratedSentence
from limner.decoding.torch_models import beam_search
from limner.errors import SettingsError
from limner.metrics import sentence_scores
from limner.metrics.caption import CiderD
from limner.models import build_model
from limner.models.mrnn import MRNNSettings
from limner.models.nmt import NMTSettings
from limner.models.protocols import Mean, ModelInputs
from limner.runs.recipe import Recipe
from limner.runs.records import read_log
from limner.runs.trained_model import ModelConfig, TrainedModel, load_trained_model
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS
from limner.text.words import TextSettings
from limner.training import scst
from limner.training.context import Optimization
from limner.training.loop import train
from limner.training.losses import word_loss
from limner.training.scst import EOS, Reward

LENGTH = 3
TEXT = TextSettings(lowercase=True)
REFERENCES = {"left": ("a b", "a a b"), "right": ("b", "b b a")}


class TwoImages:
    """Features of the two items."""

    def take(self, items):
        vectors = {"left": [1.0, 0.0, 0.5], "right": [-1.0, 1.0, 0.2]}
        return [{"pooled": np.array(vectors[item.id], dtype=np.float16)} for item in items]


def training(translates=False, dropout=0.0, decoding=None, **settings):
    """A training of a model of a vocabulary of two words, without a run directory."""
    tokenizer = Tokenizer.train([text for own in REFERENCES.values() for text in own], TEXT)
    assert set(tokenizer.entries[4:]) == {"a", "b"}
    items = [
        Item(id_, "train", sentences=tuple(ItemSentence("en", text, k) for k, text in enumerate(texts)))
        for id_, texts in REFERENCES.items()
    ]
    source = None
    if translates:
        items = [
            Item(
                item.id, "train", sentences=(*item.sentences, ItemSentence("de", "b a", 0), ItemSentence("de", "a", 1))
            )
            for item in items
        ]
        source = SourceLanguage("de", tokenizer)
    examples = Examples(items, TargetLanguage("en", tokenizer), TwoImages(), source=source)
    sizes = {"embedding_dim": 4, "hidden_dim": 5, "dropout": dropout}
    model_settings = (
        NMTSettings(embedding_dim=4, hidden_dim=5, attention_dim=4, readout_dim=4, initial_std=0.5)
        if translates
        else MRNNSettings(**sizes, multimodal_dim=6)
    )
    torch.manual_seed(3)
    inputs = ModelInputs(len(tokenizer), {"pooled": (3,)}, len(tokenizer) if translates else None)
    model = build_model(model_settings, inputs)
    for parameter in model.parameters():  # unequal probabilities
        torch.nn.init.normal_(parameter, std=0.7)
    recipe = Recipe.parse(
        {
            "text": TEXT.model_dump(),
            "data": {"source_lang": "de"} if translates else {},
            "model": model_settings.model_dump(),
            "training": {"objective": "scst", "metric": "cider", "batch_size": 2, "precision": "fp32", **settings},
            "decoding": {"max_length": LENGTH, "ban_unknown": True, **(decoding or {})},
        }
    )
    config = ModelConfig(recipe=recipe.model_dump(mode="json"), provenance={"init": "run"}, vocab_size=len(tokenizer))
    trained = TrainedModel(model, tokenizer, config, recipe, None)
    optimization = Optimization(Fabric(accelerator="cpu", devices=1), model, None, None, None)
    return SimpleNamespace(trained=trained, training_set=examples, settings=recipe.training, optimization=optimization)


def sentences(words):
    """All sentences: complete ones of fewer than LENGTH words, and those that are cut off."""
    for length in range(LENGTH + 1):
        for tokens in itertools.product(words, repeat=length):
            yield tokens, length < LENGTH


def probability(model, batch, row, tokens, ended, temperature=1.0):
    """Probability of a sentence, step by step, over the words and the end of the sentence alone."""
    allowed = [SPECIAL_TOKENS.eos, 4, 5]
    memory = model.encode(batch)
    state, token = model.start(memory), torch.full((len(batch),), SPECIAL_TOKENS.bos)
    total = torch.zeros(())
    for next_token in [*tokens, *([SPECIAL_TOKENS.eos] if ended else [])]:
        logits, state = model.step(token, memory, state)
        values = logits[row, allowed] / temperature
        total = total + values[allowed.index(next_token)] - values.logsumexp(0)
        token = torch.full((len(batch),), next_token)
    return total.exp()


def gradient(loss, model):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in model.parameters()])


def expected_reward(run, objective, batch, temperature=1.0):
    """Mean over the images of sum_w p(w) r(w), by enumeration."""
    total, words = torch.zeros(()), (4, 5)
    for row, id_ in enumerate(batch.ids):
        mass = 0.0
        for tokens, ended in sentences(words):
            p = probability(run.trained.model, batch, row, tokens, ended, temperature)
            reward = objective.reward([objective.rows[id_]], [GeneratedSentence(tokens, 0.0, 0.0, ended)])[0]
            total = total + p * reward / len(batch)
            mass += float(p.detach())
        assert mass == pytest.approx(1, abs=1e-5)
    return total


@pytest.mark.parametrize(("temperature", "translates"), [(1.0, False), (1.7, True)])
def test_the_expected_estimate_is_the_gradient_of_the_expected_reward(monkeypatch, temperature, translates):
    """Sum over all sentences of p(w) times the gradient of the loss of w, greedy baseline included."""
    run = training(translates, scst={"temperature": temperature}, decoding={"min_length": 0})
    objective = scst.SelfCritical(run)
    batch = objective.batch([0, 1])
    decode, chosen = objective._decode, []
    monkeypatch.setattr(objective, "_decode", lambda *given: [[decode(*given)[0][0], *chosen]])
    model, estimate = run.trained.model, 0.0
    for row, (tokens, ended) in itertools.product(range(2), sentences((4, 5))):
        chosen[:] = [GeneratedSentence(tokens, 0.0, 0.0, ended)]
        p = float(probability(model, batch, row, tokens, ended, temperature).detach())
        estimate = estimate + p / 2 * gradient(objective.loss(objective.batch([row]), 0).loss, model)
    exact = gradient(-expected_reward(run, objective, batch, temperature), model)
    assert exact.norm() > 0.05
    torch.testing.assert_close(estimate, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{"baseline": "greedy"}, {"baseline": "mean"}, {"temperature": 1.7}])
def test_sampled_estimates_converge_to_the_gradient(settings):
    run = training(scst={"samples": 2000, **settings}, decoding={"no_repeat_ngram_size": 1})  # not for samples
    objective = scst.SelfCritical(run)
    batch = objective.batch([0, 1])
    model = run.trained.model
    step = objective.loss(batch, 0)
    estimate = gradient(step.loss, model)
    value = expected_reward(run, objective, batch, settings.get("temperature", 1.0))
    exact = gradient(-value, model)
    assert (estimate - exact).norm() < 0.1 * exact.norm()
    assert -step.reported.value == pytest.approx(float(value.detach()), rel=0.05)
    other = gradient(objective.loss(batch, 1).loss, model)
    assert not torch.equal(estimate, other), "every epoch draws its own sentences"
    torch.testing.assert_close(gradient(objective.loss(batch, 0).loss, model), estimate)


@pytest.fixture
def advantages(monkeypatch):
    """Advantages of the sentences of each loss."""
    seen = []
    monkeypatch.setattr(scst, "policy_loss", lambda logits, _, given, __: seen.append(given) or Mean(logits.sum(), 1))
    return seen


def test_the_baseline_of_a_sample_excludes_its_own_reward(monkeypatch, advantages):
    run = training(scst={"samples": 3, "baseline": "mean"})
    objective = scst.SelfCritical(run)
    given, batch = iter([1.0, 2.0, 6.0, 0.0, 0.0, 3.0]), objective.batch([0, 1])
    monkeypatch.setattr(objective, "reward", lambda items, _: [next(given) for _ in items])
    objective.loss(batch, 0)
    assert advantages[0].tolist() == [1 - 4, 2 - 3.5, 6 - 1.5, -1.5, -1.5, 3]


def test_the_greedy_baseline_is_the_reward_of_the_greedy_sentence(monkeypatch, advantages):
    run, rewards = training(scst={"samples": 3}), []
    objective, model = scst.SelfCritical(run), run.trained.model
    batch, computed = objective.batch([0, 1]), objective._rewards
    monkeypatch.setattr(objective, "_rewards", lambda *given: rewards.append(computed(*given)) or rewards[-1])
    objective.loss(batch, 0)
    greedy = [hypotheses[0] for hypotheses in beam_search([model], batch, run.trained.recipe.decoding)]
    baselines = objective.reward([objective.rows[id_] for id_ in batch.ids], greedy)
    expected = [value - baseline for own, baseline in zip(rewards[0], baselines, strict=True) for value in own[1:]]
    assert advantages[0].tolist() == pytest.approx(expected) and any(expected)


def test_dropout_has_no_part_in_the_estimate():
    losses = []
    for dropout in (0.0, 0.5):
        run = training(dropout=dropout, scst={"samples": 5})
        run.trained.model.train()
        objective = scst.SelfCritical(run)
        losses.append(float(objective.loss(objective.batch([0, 1]), 0).loss.detach()))
    assert losses[0] == losses[1] != 0


def test_the_mixed_loss_adds_the_cross_entropy_of_one_reference_of_each_image():
    run = training(scst={"samples": 5, "likelihood": 0.7})
    objective, model = scst.SelfCritical(run), run.trained.model
    batch = objective.batch([0, 1])
    mixed = gradient(objective.loss(batch, 0).loss, model)
    alone = training(scst={"samples": 5})
    policy = gradient(scst.SelfCritical(alone).loss(batch, 0).loss, alone.trained.model)
    likelihood = gradient(word_loss(model(batch), batch), model)
    assert likelihood.norm() > 0.1
    torch.testing.assert_close(mixed, policy + 0.7 * likelihood)
    references = [set(map(tuple, (run.trained.tokenizer.encode(text) for text in entry.references)))
                  for entry in objective.inputs]  # fmt: skip
    drawn = [{tuple(objective._reference(row, epoch)) for epoch in range(40)} for row in range(2)]
    assert drawn == references[:2], "every reference is drawn in some epoch"


def test_every_source_sentence_is_an_example_of_its_own():
    run = training(translates=True)
    objective = scst.SelfCritical(run)
    assert len(objective.inputs) == 4
    batch = objective.batch([0, 1, 2, 3])
    assert len(set(batch.ids)) == 4
    assert batch.source is not None
    assert math.isfinite(float(objective.loss(batch, 0).loss.detach()))


def reward_of(weights, ended=True, text="a b"):
    tokenizer = Tokenizer.train(["a b"], TEXT)
    reward = Reward(weights, tokenizer, [("a b", "a a b"), ("b", " ", "b b a")])
    return reward([0], [GeneratedSentence(tuple(tokenizer.encode(text)), 0.0, 0.0, ended)])[0]


def test_rewards_count_the_end_of_the_sentence():
    references = [[["a", "b", EOS], ["a", "a", "b", EOS]], [["b", EOS], ["b", "b", "a", EOS]]]
    assert reward_of({"cider": 1.0}) == CiderD(references).score(0, ["a", "b", EOS])
    assert reward_of({"cider": 1.0}, ended=False) == CiderD(references).score(0, ["a", "b"])
    assert reward_of({"cider": 1.0}) > reward_of({"cider": 1.0}, ended=False)
    assert reward_of({"bleu4": 1.0}) > reward_of({"bleu4": 1.0}, ended=False)
    bleu = sentence_scores([f"a b {EOS}"], [[f"a b {EOS}", f"a a b {EOS}"]])[0] / 100
    assert reward_of({"bleu4": 1.0}) == pytest.approx(bleu)
    assert reward_of({"cider": 2.0, "bleu4": 0.5}) == pytest.approx(2 * reward_of({"cider": 1.0}) + 0.5 * bleu)


@pytest.fixture(scope="module")
def started(tiny, recipe_of, tmp_path_factory):
    """A run that was trained by cross-entropy for a short time."""
    return train(recipe_of(epochs=6, metric="cider", metrics=[]), tiny, tmp_path_factory.mktemp("xe") / "run")


def self_critical(recipe_of, epochs, **changes):
    usual = {"epochs": epochs, "objective": "scst", "metric": "cider", "metrics": ["perplexity"]}
    usual |= {"optimizer": {"name": "adamw", "lr": 0.005}, "scst": {"samples": 2}}
    return recipe_of(**{**usual, **changes})


def test_self_critical_training_raises_cider(tiny, recipe_of, started, tmp_path):
    run = train(self_critical(recipe_of, 15), tiny, tmp_path / "run", init=started)
    log = read_log(run / "log.jsonl")
    values = [line.metrics["cider"] for line in log if line.kind == "val"]
    assert len(values) == 16, "the initial weights are validated, too"
    before = read_log(started / "log.jsonl")
    assert values[0] == max(line.metrics["cider"] for line in before if line.kind == "val")
    assert max(values) > 1.3 * values[0]
    rewards = [-line.loss for line in log if line.kind == "train"]
    assert np.mean(rewards[-3:]) > 1.1 * np.mean(rewards[:3])
    facts = load_trained_model(run).config.provenance
    assert facts["epochs"] == values.index(max(values))


def test_without_improvement_the_initial_weights_are_saved(tiny, recipe_of, started, tmp_path):
    recipe = self_critical(recipe_of, 2, optimizer={"name": "sgd", "lr": 50.0})
    run = train(recipe, tiny, tmp_path / "run", init=started)
    first, last = (load_trained_model(folder).model.state_dict() for folder in (started, run))
    assert load_trained_model(run).config.provenance["epochs"] == 0
    for name, values in first.items():
        assert torch.equal(values, last[name])


@pytest.fixture(scope="module")
def uninterrupted(tiny, recipe_of, started, tmp_path_factory):
    """A recipe, and a training by it."""
    recipe = self_critical(recipe_of, 3, model={"dropout": 0.3}, save_every=1, ema_decay=0.9)
    return recipe, train(recipe, tiny, tmp_path_factory.mktemp("whole") / "run", init=started)


@pytest.mark.parametrize("moment", [1, 3, 4])
def test_a_resumed_self_critical_training_equals_an_uninterrupted_one(uninterrupted, tiny, started, tmp_path, moment):
    recipe, whole = uninterrupted
    run = resumed(moment, recipe, tiny, tmp_path / "run", init=started)
    states = [next(folder.glob("state-*")) / "model.safetensors" for folder in (whole, run)]
    assert states[0].read_bytes() == states[1].read_bytes()
    logs = [[(line.step, line.loss, line.metrics) for line in read_log(f / "log.jsonl")] for f in (whole, run)]
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "perplexity"}, r"training.metric=cider"),
        ({"label_smoothing": 0.1}, r"training.label_smoothing=0"),
        ({"scst": {"baseline": "mean"}}, r"at least 2 samples"),
        ({"scst": {"reward": {"meteor": 1}}}, r"training\.scst\.reward"),
        ({"scst": {"reward": {}}}, r"training\.scst\.reward"),
    ],
)
def test_settings_that_do_not_fit_are_refused(recipe_of, changes, message):
    with pytest.raises(SettingsError, match=message):
        self_critical(recipe_of, 1, **changes)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({"name": "ngram"}, "ngram"),
        ({"name": "bow"}, "bow"),
        ({"name": "show_attend_tell", "attention": "hard"}, "model.attention=hard"),
        ({"name": "show_attend_tell", "attention": "hard", "test_attention": "sample"}, "model.test_attention=sample"),
    ],
)
def test_models_whose_sentences_have_no_such_gradient_are_refused(model, named):
    with pytest.raises(SettingsError, match=rf"training\.objective=scst.*{re.escape(named)}"):
        Recipe.parse({"model": model, "training": {"objective": "scst", "metric": "cider"}})


def test_random_initial_weights_cause_a_warning(tiny, recipe_of, tmp_path, caplog):
    train(self_critical(recipe_of, 1), tiny, tmp_path / "run")
    assert "--init RUN" in caplog.text
