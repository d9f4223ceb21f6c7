"""Numbers that are negative, enormous, no numbers or not finite, for every numeric option and many settings."""

from cases import case, check, for_all

DESCRIBE = "describe photos/0.jpg --model captioner"
OPTIONS = {
    DESCRIBE: {
        "--beam-size": ("0", "-1", "1e20", "99999999", "x", "1.5", "9" * 23),
        "--n-best": ("0", "-1", "100000000", "x"),
        "--length-penalty": ("nan", "inf", "1e308", "x"),
        "--min-length": ("-1", "1000000", "x"),
        "--max-length": ("0", "-5", "100000000000", "x"),
        "--batch-size": ("0", "-1", "x", "9" * 23),
    },
    f"{DESCRIBE} --sample": {
        "--temperature": ("0", "-1", "nan", "inf", "x"),
        "--top-k": ("0", "-1", "x"),
        "--top-p": ("0", "-1", "1.5", "nan"),
        "--seed": ("-1", "9" * 23, "x"),
    },
    "evaluate --model captioner --collection c": {
        "--marginal": ("-1", "x", "1e20"),
        "--memory": ("0", "-1", "1e20", "x"),
        "--beam-size": ("0", "1e20"),
    },
    "correlate judgements.txt --scores scores.tsv": {
        "--samples": ("0", "-1", "99", "1e20", "x"),
        "--seed": ("-1", "9" * 23, "x"),
    },
    "features c": {
        "--backbone": (
            "pixels:0",
            "pixels:-1",
            "pixels:100000",
            "pixels:x",
            "kmeans:",
            "vgg19:",
            "vgg19:notes.txt",
            "alexnet:gone.pth",
        ),
    },
    "features c --backbone pixels --name t": {
        "--size": ("-5", "0", "100000", "x"),
        "--batch-size": ("0", "x"),
        "--views": ("0", "3", "x"),
        "--frames": ("0", "-1", "1e9"),
        "--every": ("0", "-1"),
    },
    "train scenes/mrnn --collection c --out new": {
        "--devices": ("0", "-1", "1.5", "1e20", "x"),
        "--nodes": ("0", "-1", "x", "9" * 23),
    },
    "generate scenes new": {
        "--train": ("-1", "x", "1" + "0" * 12),
        "--val": ("-1", "x"),
        "--seed": ("-1", "9" * 23, "x"),
        "--ambiguous": ("-0.1", "1.1", "nan", "x"),
    },
    "gradients --model captioner": {
        "--sentences": ("0", "-1", "x"),
        "--probes": ("0", "-1", "1e20"),
        "--seed": ("-1", "9" * 23),
    },
    "kmeans c --out f.safetensors": {
        "--activation": ("soft", "none"),
        "--size": ("-5", "0", "100000"),
        "--patch": ("0", "-1", "65", "x"),
        "--filters": ("0", "3", "1000000000"),
        "--grid": ("0", "-1", "1000000"),
        "--patches": ("0", "-1", "1" + "0" * 13),
        "--seed": ("-1", "9" * 23),
    },
    "kmeans c --out f.safetensors --activation soft-threshold": {"--alpha": ("-0.1", "101", "nan", "x")},
    "search 'a red ball' --model captioner --collection c": {
        "--count": ("0", "-1", "x"),
        "--max-scored": ("0", "-1", "1e20", "x"),
        "--slack": ("-1", "nan", "inf", "x"),
    },
    "regions photos/0.jpg --model dense": {
        "--count": ("0", "-1", "x"),
        "--min-confidence": ("-0.1", "1.1", "nan", "x"),
        "--beam-size": ("0", "1e20"),
    },
    "translate 'a red ball' --model translator --image photos/0.jpg": {
        "--beam-size": ("0", "1e20"),
        "--n-best": ("0", "x"),
        "--max-length": ("0", "1e20"),
        "--batch-size": ("0", "x"),
    },
    "translate --model translator --collection c": {"--limit": ("0", "-1", "x")},
    "diagnose --model translator --collection c": {
        "--trials": ("0", "-1", "1e20", "x"),
        "--seed": ("-1", "9" * 23),
        "--beam-size": ("0", "x"),
    },
    "compare captioner dense": {
        "--trials": ("0", "-1", "1e20"),
        "--level": ("0", "-1", "1.5", "nan"),
        "--seed": ("-1",),
    },
    "crossvalidate lecture/reviews --collection reviews --out new": {
        "--folds": ("0", "1", "-1", "100000", "x"),
        "--validation": ("-0.1", "1", "nan"),
        "--models": ("0", "-1"),
        "--seed": ("-1", "9" * 23),
    },
    "reproduce mao2015/table3 --collection c --out new --dataset flickr8k": {
        "--budget": ("0", "-1", "1.5", "nan"),
        "--seeds": ("0", "-1", "x"),
    },
    "demo --out new": {"--seed": ("-1", "9" * 23, "x")},
    "classify good --model classifier": {"--n-best": ("0", "-1", "x")},
    "words red --model captioner": {"--count": ("0", "-1", "x")},
}
LATER = (
    "--backbone pixels:",
    "--backbone kmeans",
    "--backbone vgg",
    "--backbone alex",
    "--views 3",
    "--patch 65",
    "--filters 3",
)
"""Values that other values decide on, so that the status is 1."""


@for_all(
    *(
        case(
            f"{command} {option} {value}",
            value.rpartition(":")[2][:4] if option == "--backbone" else option.lstrip("-"),
            status=1 if f"{option} {value}".startswith(LATER) else 2,
        )
        for command, options in OPTIONS.items()
        for option, values in options.items()
        for value in values
    )
)
def test_options(case, work):
    check(case, work)


SETTINGS = (
    ("model.hidden_dim", "0", "-1", "1e9", "1000000000", "x", "null", "[]"),
    ("model.embedding_dim", "0", "2.5", "nan"),
    ("model.dropout", "-0.1", "1", "nan", ".inf"),
    ("training.epochs", "0", "-1", "1e20", "x"),
    ("training.batch_size", "0", "-1", "1e20", "true"),
    ("training.seed", "-1", "9" * 23, "x"),
    ("training.optimizer.lr", "0", "-1", ".nan", ".inf", "x"),
    ("training.clip_norm", "0", "-1", ".nan"),
    ("training.ema_decay", "-1", "1", ".nan"),
    ("training.label_smoothing", "-1", "1"),
    ("training.bpe_dropout", "-0.1", "1", ".nan", "0.1"),  # 0.1: the vocabulary of the recipe has words
    ("training.l2", "-1", ".inf"),
    ("training.save_every", "0", "-1"),
    ("training.schedule.warmup_steps", "-1", "x"),
    ("data.max_tokens", "0", "-1"),
    ("data.synthetic", "-1", "1", ".nan"),
    ("text.min_count", "0", "-1"),
    ("features.cache_mib", "-1", "x"),
    ("decoding.beam_size", "0", "1000000000", "x"),
    ("decoding.max_length", "0", "100000000000"),
    ("decoding.length_penalty", ".nan", ".inf"),
)


@for_all(
    *(
        case(
            f"train scenes/mrnn --collection c --out new features.tables=[pixels16] '{setting}={value}'",
            setting.rpartition(".")[2],
        )
        for setting, *values in SETTINGS
        for value in values
    )
)
def test_settings(case, work):
    check(case, work)
