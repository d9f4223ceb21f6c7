"""Comparison of systems: scores, marks and errors."""

import json
import logging
import os

import pytest
import torch
from PIL import Image
from toy_translation import text_collection
from typer.testing import CliRunner

import limner
from limner.apps.cli import app
from limner.data.dataset import Examples
from limner.decoding.scoring import SentenceScores, score_examples
from limner.errors import RunError, SettingsError
from limner.evaluation import retrieval
from limner.evaluation.compare import compare, compare_evaluations
from limner.evaluation.comparison import ComparisonSettings
from limner.evaluation.cost import measure_cost
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.inference import retriever
from limner.inference.features import open_features
from limner.metrics import METRICS, Score, score_sentences
from limner.metrics.significance import approximate_randomisation, holm
from limner.retrieval import marginal
from limner.runs.evaluations import EvaluatedItem, Evaluation
from limner.runs.recipe import EvaluationSettings
from limner.runs.records import RunConfig
from limner.runs.trained_model import load_trained_model
from limner.text.vocab import SPECIAL_TOKENS
from limner.text.words import TextSettings, split_words

SENTENCES = [f"ein Haus mit {number} Fenstern steht am See ." for number in range(40)]
QUICK = ComparisonSettings(metrics=("bleu4", "ter"), trials=200)


def written(wrong, start=0):
    """Hypotheses with one wrong word in `wrong` of ten sentences."""
    return [
        sentence.replace("steht", "stand") if (place + start) % 10 < wrong else sentence
        for place, sentence in enumerate(SENTENCES)
    ]


def evaluation(hypotheses=SENTENCES, references=SENTENCES, **changes):
    items = [
        EvaluatedItem(
            id=f"item{place}",
            references=(reference.replace(" .", "."),),
            hypothesis=hypothesis.replace(" .", "."),
            tokens=hypothesis,
            reference_tokens=(reference,),
        )
        for place, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True))
    ]
    facts = {"split": "test", "collection": "multi30k", "fingerprint": "f" * 64, "command": "limner", "seconds": 1.0}
    return Evaluation(**{**facts, "items": tuple(items), **changes})


def altered(place, **changes):
    """An evaluation with one item changed."""
    result = evaluation(written(2))
    items = list(result.items)
    items[place] = items[place].model_copy(update=changes)
    return result.model_copy(update={"items": tuple(items)})


@pytest.fixture
def run_of(tmp_path):
    """Makes run folders: run_of(name, evaluation, lang)."""

    def make(name, result, lang="de"):
        result.save(tmp_path / name / "evaluation" / f"{result.name}.json")
        RunConfig(recipe={"data": {"lang": lang}} if lang else {}).save(tmp_path / name / "config.json")
        return tmp_path / name

    return make


@pytest.fixture
def three(run_of):
    """A poor system, a middling one and a good one."""
    return [[run_of(name, evaluation(written(wrong)))] for name, wrong in (("poor", 9), ("middling", 5), ("good", 1))]


def test_daggers_mark_better_scores_in_the_direction_of_the_metric(three):
    result = compare(three, settings=QUICK)
    marks = {(one.system, one.metric): one.marks for one in result.scores}
    for metric in QUICK.metrics:
        assert [marks[name, metric] for name in ("poor", "middling", "good")] == ["", "†", "†‡"]
    assert [one.higher_is_better for one in result.metrics] == [True, False]
    differences = {(one.system, one.baseline, one.metric): one.difference for one in result.contrasts}
    assert differences["good", "poor", "ter"] < 0 < differences["good", "poor", "bleu4"]


def test_a_baseline_is_marked_where_it_is_better_than_the_other(three):
    poor, middling, good = three
    result = compare([good, poor, middling], settings=QUICK)
    assert [result.score(name, "bleu4").marks for name in ("good", "poor", "middling")] == ["‡", "", "‡"]


def test_insignificant_differences_are_not_marked(three):
    strict = QUICK.model_copy(update={"level": 3 / 201})  # no p is below the smallest there can be
    assert not any(one.marks for one in compare(three, settings=strict).scores)
    systems = {name: {name: evaluation(written(3))} for name in "ab"}
    alike = compare_evaluations(systems, "de", settings=QUICK)
    assert {(one.difference, one.p) for one in alike.contrasts} == {(0, 1)}


def test_scores_and_p_values_equal_the_metrics_and_the_test(three):
    result = compare(three, settings=QUICK)
    references = [[sentence] for sentence in SENTENCES]
    for system, wrong in (("poor", 9), ("good", 1)):
        for score in score_sentences(written(wrong), references, QUICK.metrics):
            assert result.score(system, score.name).value == score.value
            assert score.signature in {one.signature for one in result.metrics}
    bleu = METRICS["bleu4"]
    good, poor = (bleu.statistics(written(wrong), references) for wrong in (1, 9))
    expected = approximate_randomisation(good, poor, bleu.value, trials=200)
    pairs = {(one.system, one.baseline, one.metric): one for one in result.contrasts}
    contrast = pairs["good", "poor", "bleu4"]
    assert (contrast.difference, contrast.p) == (expected.difference, expected.p)
    assert contrast.interval[0] < contrast.difference < contrast.interval[1] and contrast.interval[0] > 0


def test_every_system_is_compared_with_both_baselines(run_of):
    systems = [[run_of(name, evaluation(written(2)))] for name in "abcd"]
    result = compare(systems, settings=QUICK)
    pairs = {(one.system, one.baseline) for one in result.contrasts}
    assert pairs == {("b", "a"), ("c", "a"), ("d", "a"), ("c", "b"), ("d", "b")}


def test_seeds_of_a_system_are_averaged(run_of):
    first = [run_of(f"nmt-{seed}", evaluation(written(8, seed))) for seed in (1, 2, 3)]
    second = [run_of(f"img-{seed}", evaluation(written(4 + seed))) for seed in (1, 2)]
    result = compare([first, second], settings=QUICK)
    assert [one.name for one in result.systems] == ["nmt (3 runs)", "img (2 runs)"]
    score = result.score("img (2 runs)", "ter")
    assert score.values == (pytest.approx(100 * 5 / 90), pytest.approx(100 * 6 / 90))  # one of nine words
    assert score.value == pytest.approx(100 * 5.5 / 90)
    assert score.spread == pytest.approx((100 / 90) / 2**0.5)
    low, high = score.interval
    assert low < score.value < high


def test_the_difference_between_seeds_is_not_one_between_systems(run_of):
    """Each run of one system differs from one run of the other, but the runs of a system differ just as much."""
    first = [run_of(f"a-{wrong}", evaluation(written(wrong))) for wrong in (9, 1, 5)]
    second = [run_of(f"b-{wrong}", evaluation(written(wrong))) for wrong in (2, 6, 8)]
    alone = compare([first[:1], second[:1]], settings=QUICK).contrasts
    several = compare([first, second], settings=QUICK).contrasts
    assert all(one.p < 0.05 for one in alone) and all(one.p > 0.5 for one in several)


def test_the_test_the_samples_and_the_correction_are_named(run_of):
    runs = [run_of(name, evaluation(written(wrong))) for name, wrong in (("a", 9), ("b", 5), ("c", 1), ("d", 2))]
    one, three, seeds = (
        compare(systems, settings=QUICK)
        for systems in ([runs[:1], runs[1:2]], [[run] for run in runs[:3]], [runs[:2], runs[2:]])
    )
    assert one.signature == "ar:200|samples:1000|seed:1|segments:40|correction:none"
    assert three.signature == "ar:200|samples:1000|seed:1|segments:40|holm:3"
    assert seeds.signature == "hierarchical-t:cochran-cox|runs:2+2|samples:1000|seed:1|segments:40|correction:none"
    text = "\n".join(three.explanation)
    assert "approximate randomisation, 200 trials over 40 segments" in text and "seeds were not sampled" in text
    assert "bootstrap of the segments with 1,000 samples" in text and "Holm, 3 pairs" in text
    text = "\n".join(seeds.explanation)
    assert "hierarchical t-test over runs (2, 2) and 40 segments" in text and "not sampled" not in text


def test_runs_of_equal_outputs_say_nothing_about_the_seeds_of_one_run(run_of):
    counted = [run_of(f"counted-{seed}", evaluation(written(9))) for seed in (1, 2)]
    result = compare([counted, [run_of("trained", evaluation(written(5)))]], settings=QUICK)
    assert result.signature == "ar:200|samples:1000|seed:1|segments:40|correction:none"
    assert "seeds were not sampled" in "\n".join(result.explanation)
    assert {one.over_runs for one in result.contrasts} == {False}


def test_p_values_of_several_pairs_are_adjusted_by_metric(three):
    result = compare(three, settings=QUICK)
    for metric in QUICK.metrics:
        contrasts = [one for one in result.contrasts if one.metric == metric]
        assert [one.adjusted_p for one in contrasts] == holm([one.p for one in contrasts])
    assert max(one.adjusted_p / one.p for one in result.contrasts) == 3


def test_systems_of_one_name_are_distinguished_by_their_folders(run_of):
    runs = [run_of(f"{folder}/best", evaluation(written(2))) for folder in ("a", "b")]
    assert [one.name for one in compare([[run] for run in runs], settings=QUICK).systems] == [str(run) for run in runs]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (evaluation(split="val"), "split 'test' and on split 'val'"),
        (
            evaluation(SENTENCES[:-2], SENTENCES[:-2]),
            "40 sentences and 38; evaluate both on the same split .* 'limner evaluate'$",
        ),
        (altered(7, id="item99"), "sentence 8 is of item 'item7' and of item 'item99'"),
        (altered(3, references=("Ein anderes Haus.",)), r"'item3' \(sentence 4\).*Fenstern.*'Ein anderes Haus.'"),
        (altered(3, reference_tokens=("ein haus",)), "different tokens.*'item3'.*running text: sacrebleu"),
    ],
)
def test_evaluations_of_different_sentences_are_refused(other, says):
    systems = {"a": {"runs/a": evaluation()}, "b": {"runs/b": other}}
    with pytest.raises(RunError, match=f"(?s)runs/b.*{says}"):
        compare_evaluations(systems, "de", settings=QUICK)


def with_inputs(source="A house .", image="/here/house.jpg", **changes):
    """An evaluation whose fifth item has a source sentence and an image."""
    return altered(4, source=source, image=image).model_copy(update=changes)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (with_inputs(source="A hut ."), r"'item4' \(sentence 5\) was translated from 'A house .' and from 'A hut .'"),
        (
            with_inputs(image="/here/hut.jpg"),
            r"'item4' \(sentence 5\) has the images /here/house.jpg and /here/hut.jpg",
        ),
    ],
)
def test_evaluations_with_different_inputs_are_refused(other, says):
    with pytest.raises(RunError, match=says):
        compare_evaluations({"a": {"a": with_inputs()}, "b": {"b": other}}, "de", settings=QUICK)


@pytest.mark.parametrize(
    "other",
    [with_inputs(fingerprint="0" * 64), with_inputs(source=None, image=None), with_inputs(image="/x/house.jpg")],
)
def test_evaluations_with_equivalent_inputs_are_compared(other):
    """Sentences written to another split, a model that does not read the source, a collection that has moved."""
    assert compare_evaluations({"a": {"a": with_inputs()}, "b": {"b": other}}, "de", settings=QUICK).contrasts


def test_the_newest_evaluation_is_compared(run_of):
    run, other = run_of("a", evaluation(written(9))), run_of("b", evaluation(written(5)))
    evaluation().save(run / "evaluation" / "test-part.json")
    whole, part = (run / "evaluation" / name for name in ("test.json", "test-part.json"))
    for newer, value in ((part, 0), (whole, 10)):
        for path in (whole, part):
            os.utime(path, (2, 2) if path == newer else (1, 1))
        assert compare([[run], [other]], settings=QUICK).score("a", "ter").value == value


def first(number, wrong):
    return evaluation(written(wrong)[:number], SENTENCES[:number])


@pytest.mark.parametrize(("number", "noted"), [(3, True), (5, True), (6, False)])
def test_too_few_sentences_for_any_significance_are_noted(number, noted, run_of, command_line):
    """Of the 2 ** 5 ways to exchange five sentences, two are as different as the systems: p is at least 0.06."""
    runs = [run_of(f"{name}{number}", first(number, wrong)) for name, wrong in (("a", 9), ("b", 0))]
    note = f"{number} items cannot give p < 0.05, whatever their difference; expected 6 or more"
    arguments = (*runs, "--metric", "ter", "--trials", 400)
    status, stdout, _ = command_line("compare", *arguments)
    assert status == 0 and (f"note: {note}" in stdout) == noted
    _, stdout, _ = command_line("compare", *arguments, "--json")
    assert json.loads(stdout)["notes"] == ([note] if noted else [])
    assert (min(one["p"] for one in json.loads(stdout)["contrasts"]) > 0.05) == noted


def test_a_third_run_with_different_sentences_is_refused():
    systems = {"a": {"1": evaluation(), "2": evaluation()}, "b": {"1": evaluation(), "2": altered(0, id="x")}}
    with pytest.raises(RunError, match="1 and 2 cannot be compared"):
        compare_evaluations(systems, "de", settings=QUICK)


def test_differently_tokenised_sentences_are_compared_as_running_text():
    systems = {"a": {"a": evaluation()}, "b": {"b": altered(3, reference_tokens=("ein haus",))}}
    chosen = ComparisonSettings(metrics=("ter_text",), trials=20)
    assert compare_evaluations(systems, "de", settings=chosen).score("a", "ter_text").value == 0


@pytest.mark.parametrize("bare", [True, False])
def test_metrics_of_running_text_use_the_evaluated_text(bare):
    stored = (Score("sacrebleu", 50.0, "nrefs:1|input:tokens" if bare else "nrefs:1"),)
    systems = {name: {name: evaluation(written(2), scores=stored)} for name in "ab"}
    chosen = ComparisonSettings(metrics=("sacrebleu",), trials=20)
    (metric,) = compare_evaluations(systems, "de", settings=chosen).metrics
    assert ("input:tokens" in metric.signature) == bare


def test_a_run_without_an_evaluation_is_an_error_with_a_remedy(run_of, tmp_path):
    run = run_of("a", evaluation())
    RunConfig().save(tmp_path / "b" / "config.json")
    with pytest.raises(RunError, match=f"limner evaluate --model {tmp_path}/b --split test --collection"):
        compare([[run], [tmp_path / "b"]])
    with pytest.raises(RunError, match="c: no such run directory; check the path, or train one with 'limner train'"):
        compare([[run], [tmp_path / "c"]])
    with pytest.raises(RunError, match="--split: test"):
        compare([[run], [run_of("d", evaluation())]], split="val")


def test_the_language_is_the_target_language_of_the_run(run_of, caplog):
    # METEOR does not support Japanese.
    runs = [[run_of(name, evaluation(written(2)), "ja")] for name in "ab"]
    chosen = ComparisonSettings(metrics=("meteor", "bleu4"), trials=20)
    with caplog.at_level(logging.WARNING, "limner"):
        result = compare(runs, settings=chosen)
        assert [one.name for one in result.metrics] == ["bleu4"]
        (line,) = caplog.messages
        assert "'ja'" in line
        caplog.clear()
        compare(runs, lang="xx", settings=chosen)
        assert "'xx'" in caplog.text
        caplog.clear()
        with pytest.raises(
            SettingsError, match=r"METEOR does not support .*'ja'.*; name another metric with --metric$"
        ):
            compare(runs, settings=ComparisonSettings(metrics=("meteor",)))
        assert not caplog.messages  # one line says it
    with pytest.raises(RunError, match="--lang"):
        compare([[run_of("c", evaluation(), None)], runs[0]])


def test_the_printed_table(three, command_line):
    runs = [run for system in three for run in system]
    status, stdout, _ = command_line("compare", *runs, "--metric", "ter", "--trials", 200)
    assert status == 0
    lines = [line.split() for line in stdout.splitlines()]
    assert ["good", "1.11", "†‡"] in lines and ["poor", "10.00"] in lines
    assert any(line[:5] == ["good", "-", "poor", "ter", "-8.89"] and line[-1] == "0.0149" for line in lines)
    assert "† better than poor, ‡ better than middling: p < 0.05" in stdout
    assert "test: approximate randomisation, 200 trials" in stdout and "correction: Holm, 3 pairs" in stdout
    assert "ter ↓" in stdout and "case:mixed|tok:given" in stdout


def test_the_comparison_as_json(three, command_line):
    runs = [run for system in three for run in system]
    options = ("--metric", "bleu4", "--metric", "ter", "--trials", 400, "--level", 0.01)
    _, stdout, _ = command_line("compare", *runs, *options, "--json")
    result = json.loads(stdout)
    assert result["settings"]["level"] == 0.01
    assert [one["marks"] for one in result["scores"]] == ["", "", "†", "†", "†‡", "†‡"]
    assert [one["name"] for one in result["systems"]] == ["poor", "middling", "good"]


def test_seeds_are_joined_by_commas(run_of, command_line):
    runs = [run_of(name, evaluation(written(wrong))) for name, wrong in (("a1", 7), ("a2", 8), ("b1", 2), ("b2", 1))]
    arguments = [f"{runs[0]},{runs[1]}", f"{runs[2]},{runs[3]}", "--samples", 200]
    _, stdout, _ = command_line("compare", *arguments, "--metric", "ter", "--trials", 100, "--json")
    result = json.loads(stdout)
    assert [len(one["runs"]) for one in result["systems"]] == [2, 2]
    assert "runs:2+2|samples:200" in result["signature"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a"], "expected two or more systems with at least one run each, found 1 system (numbers of runs: 1)"),
        (["a", ","], "2 systems (numbers of runs: 1, 0)"),
        (["a", "a"], ": given twice; give each run once"),
        (["a,a", "b"], ": given twice; give each run once"),
        (["a", "b", "--metric", "bleu9"], "no metric 'bleu9'"),
    ],
)
def test_comparison_errors_are_one_line(arguments, says, run_of, tmp_path, monkeypatch, command_line):
    for name in ("a", "a2", "b"):
        run_of(name, evaluation())
    monkeypatch.chdir(tmp_path)
    status, stdout, message = command_line("compare", *arguments)
    assert (status, stdout) == (1, "")
    assert message.startswith("error:") and says in message


def test_results_of_another_collection_are_neither_compared_nor_replaced(run_of, tmp_path):
    runs = [run_of(name, evaluation()) for name in "ab"]
    stored = [(run / "evaluation" / "test.json").read_bytes() for run in runs]
    collection = text_collection(tmp_path / "another")
    result = CliRunner().invoke(app, ["compare", *map(str, runs), "--collection", str(collection.path)])
    assert result.exit_code == 1 and "of another collection than" in str(result.exception)
    assert [(run / "evaluation" / "test.json").read_bytes() for run in runs] == stored


def test_a_split_without_images_has_no_cost_of_captions(run_of, tmp_path):
    assert measure_cost(run_of("a", evaluation()), text_collection(tmp_path / "texts"), "train") is None


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
