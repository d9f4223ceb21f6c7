"""Phrase-based runs that are damaged or asked for what they do not have, and language models in damaged ARPA files."""

import math

import pytest
import runner
import torch
from cases import case, check_all, check_outcome, for_all
from damage import change_json, change_tensors, fifo, fill, flip, folder, link, remove, truncate, zeros

pytest.importorskip("numba")
pytest.importorskip("thot")

TRANSLATE = "translate 'a red ball' --model phrases"
WEIGHTS = "phrases/model.safetensors"
CONFIG = "phrases/config.json"
TRAIN = (
    "train calixto2017/pbsmt --collection pairs --out new model.tuning.method=none model.language_model_file=lm.arpa"
)
ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-1\t<s>\n-1\t</s>\n\n\\end\\\n"


def set_value(name, value):
    """Return a change of the last value of a tensor."""

    def change(tensors):
        tensors[name].view(-1)[-1] = value

    return change_tensors(change)


test_damaged_runs = check_all(
    *(
        case(TRANSLATE, "phrases", files={WEIGHTS: damage})
        for damage in (
            remove,
            truncate(0.5),
            flip(0.5),
            zeros,
            change_tensors(fill(math.nan)),
            change_tensors(dict.popitem),
            change_tensors(lambda tensors: tensors.update(extra=torch.zeros(2))),
            change_tensors(lambda tensors: tensors.update(weights=torch.zeros(3, dtype=torch.float64))),
            set_value("words", 10**6),
            set_value("first", 10**12),
            set_value("word_starts", -1),
            set_value("edges", -1),
            set_value("lm_suffixes", 10**12),
            set_value("lm_firsts", -1),
            set_value("alignments", 1 << 62),
            set_value("scores", math.inf),
        )
    ),
    case(TRANSLATE, "phrases", files={CONFIG: change_json(recipe__model__max_phrase_length=10**9)}),
    case(TRANSLATE, "phrases", files={CONFIG: change_json(recipe__model__distortion_limit=10**9)}),
    case(TRANSLATE, "phrases", files={CONFIG: change_json(recipe__model__order=10**9)}),
    case(TRANSLATE, "phrases", files={CONFIG: change_json(recipe__decoding__beam_size=10**9)}),
    case(TRANSLATE, "phrases", files={"phrases/tokenizer.json": truncate(0.5)}),
    case(TRANSLATE, "phrases", files={"phrases/source_tokenizer.json": "{}"}),
)

test_what_it_does_not_have = check_all(
    case(f"{TRANSLATE} --model translator", "share one vocabulary"),
    case(f"{TRANSLATE} --explain-beam -", "phrase_based", "leave"),
    case(f"{TRANSLATE} --must-include ball", "phrase_based", "leave"),
    case(f"{TRANSLATE} --length-penalty 1", "length_penalty", "leave"),
    case("describe photos/0.jpg --model phrases", "limner translate"),
    case("score photos/0.jpg 'a red ball' --model phrases", "limner translate"),
    case("gradients --model phrases", "recurrent"),
    case("export new --model phrases", "search of its own"),
    case("export new --model captioner --format arpa", "no n-gram language model", "phrase-based"),
    case("export notes.txt --model phrases --format arpa", "notes.txt", "exists"),
    case("export phrases/lm.arpa --model phrases --format arpa", "inside the run"),
    case("export notes.txt/lm.arpa --model phrases --format arpa", "notes.txt"),
    case("export lm.arpa --model phrases --format arpa", "n-grams", status=0, creates="lm.arpa"),
    case("evaluate --model phrases --collection pairs --metric perplexity", "perplexity"),
)


@for_all(
    *(
        case(TRAIN, "lm.arpa", files={"lm.arpa": damage})
        for damage in (
            "",
            b"\xff\xfe",
            b"\x1f\x8b\x08",
            bytes(10_000),
            folder,
            fifo,
            link("/dev/zero"),
            link("lm.arpa"),
            link("nowhere"),
            ARPA.replace("\\end\\", ""),
            ARPA.replace("=3", "=4"),
            ARPA.replace("=3", f"={'9' * 5000}"),
            ARPA.replace("\\1-grams", "\\2-grams"),
            ARPA.replace("-1\t<unk>", "nan\t<unk>"),
            ARPA.replace("-1\t<unk>", "1e400\t<unk>"),
            ARPA.replace("-1\t<unk>", "2\t<unk>"),
            ARPA.replace("<unk>", "<unk> " * 10_000),
            ARPA.replace("<unk>", "other"),
            ARPA,
        )
    ),
    case(TRAIN, "lm.arpa"),
)
def test_language_models(case, work):
    for name, contents in case.files.items():
        if callable(contents):
            contents(work / name)
        else:
            (work / name).write_bytes(contents.encode() if isinstance(contents, str) else contents)
    outcome = runner.run(case.command.split(), work)
    lines = [line for line in outcome.stderr.splitlines(keepends=True) if not line.startswith("WARNING")]
    check_outcome(outcome._replace(stderr="".join(lines)), case)  # the warnings are about the few sentences
    assert not (work / "new/model.safetensors").exists()
