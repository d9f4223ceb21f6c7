"""BLEU of sampled descriptions: prefixes, sample lengths and references."""

import math

import numpy as np
import pytest
import torch

from limner.decoding.next_tokens import NumpyNextTokens
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.decoding.torch_models import TorchNextTokens
from limner.errors import SettingsError
from limner.evaluation import sampled_bleu
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.evaluation.sampled_bleu import sample_texts, sampled_scores
from limner.metrics import score_sentences
from limner.runs.recipe import EvaluationSettings

PLAIN = DecodingSettings()


def settings(samples=3, given=0, scored=False):
    return EvaluationSettings(samples=samples, prefix_words=given, score_prefix=scored)


def scored(model, examples, **changes):
    result = sampled_scores([model], examples, settings(**changes), PLAIN, seed=1)
    return {score.name: score for score in result}


@pytest.fixture
def repeated_green(model, monkeypatch):
    """The beam search continues every prefix with 'green' alone."""
    (green,) = model.tokenizer.encode("green")

    def search(models, batch, how, prefixes):
        sentences = [(*given, *[green] * (how.max_length - len(given))) for given in prefixes]
        return [[Sentence(tokens, -float(k), -float(k), False) for k in range(how.n_best)] for tokens in sentences]

    monkeypatch.setattr(sampled_bleu, "beam_search", search)


def test_a_sample_has_the_length_and_prefix_of_its_reference(model, examples):
    for given in (0, 2):
        inputs = sampled_bleu._sample_inputs(model, examples, given)
        texts = sample_texts([model], examples, inputs, 4, PLAIN, 1)
        assert {len(one.prefix) for one in inputs} == {given}
        assert len({one.length for one in inputs}) > 1
        for one, samples_of_one in zip(inputs, texts, strict=True):
            assert [len(text.split()) for text in samples_of_one] == [one.length - given] * 4
            assert len(one.reference.split()) == one.length - given


@pytest.mark.usefixtures("repeated_green")
def test_prefix_words_are_conditioned_on_and_not_scored(model, examples):
    inputs = sampled_bleu._sample_inputs(model, examples, 3)
    references = [one.reference.split() for one in inputs]
    result = scored(model, examples, given=3)
    matched = sum(min(reference.count("green"), 1) for reference in references)
    assert result["sampled_bleu1"].value == pytest.approx(100 * matched / sum(map(len, references)))
    assert "prefix words:3,not scored" in result["sampled_bleu1"].signature


@pytest.mark.usefixtures("repeated_green")
def test_given_words_are_scored_on_request(model, examples):
    """Every given word is right, an unknown one too; the sampled words are those of the other reading."""
    inputs = sampled_bleu._sample_inputs(model, examples, 3)
    sampled = sum(len(one.reference.split()) for one in inputs)
    without = scored(model, examples, given=3)["sampled_bleu1"].value / 100 * sampled
    result = scored(model, examples, given=3, scored=True)
    both = [(one.whole(one.reference).split(), one.prefix_text.split()) for one in inputs]
    matched = sum(len(given) + ("green" in whole[3:] and "green" not in given) for whole, given in both)
    repeated = sum(whole.count("green") - given.count("green") > 0 for whole, given in both if "green" in given)
    total = 3 * len(inputs) + sampled
    assert result["sampled_bleu1"].value == pytest.approx(100 * (matched + repeated) / total)
    assert matched + repeated == pytest.approx(3 * len(inputs) + without)
    assert result["sampled_bleu1"].value > scored(model, examples, given=3)["sampled_bleu1"].value
    assert "prefix words:3,scored" in result["sampled_bleu1"].signature


def test_mean_and_deviation_are_those_of_the_repetitions(model, examples):
    inputs = sampled_bleu._sample_inputs(model, examples, 1)
    texts = sample_texts([model], examples, inputs, 5, PLAIN, 1)
    references = [[one.reference] for one in inputs]
    bleu = [score_sentences([samples[k] for samples in texts], references, ["bleu2"])[0].value for k in range(5)]
    result = scored(model, examples, samples=5, given=1)
    assert len(set(bleu)) > 1
    assert result["sampled_bleu2"].value == pytest.approx(np.mean(bleu))
    assert result["sampled_bleu2_std"].value == pytest.approx(np.std(bleu, ddof=1))
    assert list(result) == [f"sampled_bleu{n}{end}" for n in (1, 2, 3) for end in ("", "_std")]


def test_samples_do_not_depend_on_batches_or_repeated_calls(model, examples, monkeypatch):
    inputs = sampled_bleu._sample_inputs(model, examples, 1)
    whole = sample_texts([model], examples, inputs, 3, PLAIN, 1)
    monkeypatch.setattr(sampled_bleu, "ROWS_PER_BATCH", 7)
    assert sample_texts([model], examples, inputs, 3, PLAIN, 1) == whole
    assert sample_texts([model], examples, inputs, 3, PLAIN, 2) != whole


def test_sentences_of_one_image_are_sampled_independently(model, examples):
    """The id that seeds the samples must not be that of the image alone."""
    ids = [one.id for one in sampled_bleu._sample_inputs(model, examples, 0)]
    assert len(set(ids)) == len(ids) == len(examples)


def test_sentences_no_longer_than_the_prefix_are_skipped_and_counted(model, examples):
    short = sum(len(target) <= 3 for target in examples.targets)
    assert short
    assert f"left out:{short} too short" in scored(model, examples, given=3)["sampled_bleu1"].signature
    assert "left out" not in scored(model, examples, given=2)["sampled_bleu1"].signature
    with pytest.raises(SettingsError, match="prefix_words=30: expected sentences with more words"):
        scored(model, examples, given=30)


def test_the_temperature_of_the_decoding_settings_is_used(model, examples):
    cold = DecodingSettings(sample=SampleSettings(temperature=0.01))
    inputs = sampled_bleu._sample_inputs(model, examples, 0)
    for samples_of_one in sample_texts([model], examples, inputs, 4, cold, 1):
        assert len(set(samples_of_one)) == 1


def test_the_signature_names_every_setting_that_changes_the_value(model, examples):
    def signature(how, models=1):
        return sampled_scores([model] * models, examples, settings(2, 1), how, seed=4)[0].signature

    plain = signature(PLAIN)
    assert plain.endswith("|sentences:17|length:of the reference|prefix words:1,not scored|samples:2|seed:4")
    assert signature(DecodingSettings(beam_size=5, length_penalty=1)) == plain  # samples are not decoded by beam search
    sample = SampleSettings(temperature=0.5, top_k=3)
    assert signature(DecodingSettings(sample=sample)) == plain + "|temperature:0.5|top_k:3"
    assert signature(DecodingSettings(ban_unknown=True), models=2) == plain + "|ban_unknown|models:2"


def test_samples_are_requested_by_the_recipe_or_the_caller(model, tiny):
    evaluation = evaluate(
        [model], tiny, options=EvaluationOptions(metrics=("bleu1",), retrieval=False, measures=settings(2, 1))
    )
    assert evaluation.name == "test-samples2,prefix_words1"
    assert "sampled_bleu3" in {score.name for score in evaluation.scores}
    usual = model._replace(recipe=model.recipe.model_copy(update={"evaluation": settings(2, 1)}))
    again = evaluate([usual], tiny, options=EvaluationOptions(metrics=("bleu1",), retrieval=False))
    assert (again.name, again.scores) == ("test", evaluation.scores)


BOTH = pytest.mark.parametrize("next_tokens", [NumpyNextTokens, lambda values: TorchNextTokens(torch.tensor(values))])


@BOTH
@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_a_draw_close_to_one_is_the_last_allowed_word(next_tokens, temperature):
    """In float32 such a draw rounds to 1, and the remaining mass may underflow."""
    log_probs = next_tokens(np.tile(np.float32([-math.inf, -math.inf, -150.0, -150.0, -math.inf]), (1, 2, 1)))
    drawn = log_probs.draw(SampleSettings(temperature=temperature), np.array([[0.0, 1 - 2**-53]]))
    assert drawn.tolist() == [[2, 3]]


ROOTS = 5**0.5 + 3**0.5


@BOTH
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SampleSettings(top_k=2), {4: 0.625, 5: 0.375}),
        (SampleSettings(top_p=0.7), {4: 0.625, 5: 0.375}),
        (SampleSettings(top_p=0.1), {4: 1.0}),
        (SampleSettings(temperature=0.5, top_k=3), {3: 4 / 38, 4: 25 / 38, 5: 9 / 38}),
        (SampleSettings(temperature=0.5, top_p=0.8), {4: 25 / 34, 5: 9 / 34}),
        (SampleSettings(temperature=2.0, top_k=3, top_p=0.6), {4: 5**0.5 / ROOTS, 5: 3**0.5 / ROOTS}),
    ],
    ids=str,
)
def test_top_k_then_temperature_then_top_p(next_tokens, settings, expected):
    count = 20_000
    log_probs = next_tokens(np.tile(np.log(np.float32([0.0001, 0.0001, 0.0001, 0.2, 0.5, 0.3])), (1, count, 1)))
    drawn = log_probs.draw(settings, (np.arange(count)[None] + 0.5) / count)
    share = np.bincount(drawn[0], minlength=6) / count
    assert share == pytest.approx([expected.get(token, 0.0) for token in range(6)], abs=1e-3)
