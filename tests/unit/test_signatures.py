"""Signatures name what changes the value of a score."""

import pytest
import torch
from PIL import Image

import limner
from limner.data.dataset import Examples
from limner.decoding.scoring import SentenceScores, score_examples
from limner.evaluation import retrieval
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.inference import retriever
from limner.inference.features import open_features
from limner.retrieval import marginal
from limner.runs.recipe import EvaluationSettings
from limner.runs.trained_model import load_trained_model
from limner.text.vocab import SPECIAL_TOKENS
from limner.text.words import TextSettings, split_words


@pytest.mark.parametrize(
    ("settings", "signature"),
    [
        ({}, "words:moses,lowercase,punctuation"),
        ({"lowercase": False}, "words:moses,cased,punctuation"),
        ({"punctuation": False, "tokenise": "unicode"}, "words:unicode,lowercase,no-punctuation"),
    ],
)
def test_text_settings_that_give_other_scores_have_other_signatures(settings, signature):
    chosen = TextSettings.parse({"tokenise": "moses", **settings})
    assert chosen.signature == signature
    plain = TextSettings.parse({"tokenise": "moses"})
    text = "A dog's ball, red."
    assert (split_words(text, chosen) == split_words(text, plain)) == (chosen.signature == plain.signature)


def test_perplexity_names_its_vocabulary_and_unknown_words(tiny, trained_on_colours):
    model = load_trained_model(trained_on_colours)
    examples = Examples.of_split(tiny, "test", model.target, open_features(model, tiny))
    signature = score_examples(model.model, examples).perplexity.signature
    unknown = sum(target.count(model.tokenizer.encode("testword")[0]) for target in examples.targets)
    share = 100 * unknown / sum(map(len, examples.targets))
    assert f"|{model.tokenizer.settings.signature}|vocabulary:" in signature
    assert unknown and f"|vocabulary:{len(model.tokenizer)}|unk:{share:.2f}%" in signature
    counted = [target[1:] for target in examples.targets if len(target) >= 4]
    share = 100 * sum(target.count(SPECIAL_TOKENS.unk) for target in counted) / sum(map(len, counted))
    assert f"|unk:{share:.2f}%" in score_examples(model.model, examples, skip_words=1).perplexity.signature
    assert 0 < share != 100 * unknown / sum(map(len, examples.targets))


@pytest.mark.parametrize(
    ("settings", "units"),
    [
        ({}, ""),
        ({"level": "bpe", "max_size": 60}, "bpe"),
        ({"lang": "de", "level": "bpe", "max_size": 60, "split_compounds": True}, "bpe,compounds split"),
    ],
)
def test_perplexity_names_the_units_of_the_vocabulary(settings, units):
    assert TextSettings(**{"lang": "en", **settings}).units == units
    scores = SentenceScores(torch.zeros(1), torch.ones(1), vocabulary=9, words="words:w", units=units)
    assert ("|units:" in scores.perplexity.signature) == bool(units)
    assert f"words:w{units and f'|units:{units}'}|vocabulary:9|" in scores.perplexity.signature


def test_every_score_of_tokens_names_the_text_settings(tiny, trained_on_colours):
    """The same sentences have other scores with other casing, punctuation and tokenisation."""
    model = load_trained_model(trained_on_colours)
    options = EvaluationOptions(metrics=("bleu1", "chrf3"), measures=EvaluationSettings(samples=1), retrieval=False)
    signatures = {score.name: score.signature for score in evaluate([model], tiny, options=options).scores}
    for name in ("bleu1", "chrf3", "sampled_bleu1", "perplexity"):
        assert model.tokenizer.settings.signature in signatures[name].split("|"), name


def test_the_marginal_is_over_sampled_images(tiny, trained_on_colours):
    features = open_features(load_trained_model(trained_on_colours), tiny)
    sampled = [item.id for item in marginal.sample_items(tiny, "train", features, 10)]
    assert sampled != [item.id for item in tiny.items("train")][:10] and len(set(sampled)) == 10
    assert {id_[:5] for id_ in sampled} == {"train"}
    assert len(marginal.sample_items(tiny, None, features, 100)) == len(tiny.items())


def test_evaluation_and_search_use_the_sampled_images(tiny, trained, tmp_path, monkeypatch):
    model, used = load_trained_model(trained), []
    sampled = marginal.sample_items(tiny, "train", open_features(model, tiny), 3)
    assert sampled != list(tiny.items("train"))[:3]

    def recorded(module, function, position):
        real = getattr(module, function)

        def record(*arguments, **options):
            used.append(list(arguments[position]))
            return real(*arguments, **options)

        monkeypatch.setattr(module, function, record)

    recorded(retrieval, "normalised_log_probs", 4)
    evaluate([model], tiny, options=EvaluationOptions(marginal_images=3, metrics=("bleu1",)))
    recorded(retriever, "log_marginal", 2)
    monkeypatch.setattr(retriever, "MARGINAL_IMAGES", 3)
    Image.new("RGB", (40, 40), (20, 20, 250)).save(tmp_path / "blue.jpg")
    loaded = limner.Retriever.load(trained)
    limner.Retriever(loaded.model, loaded.backbone).retrieve_sentences(tmp_path / "blue.jpg", tiny, split="test")
    assert used == [sampled, sampled]
