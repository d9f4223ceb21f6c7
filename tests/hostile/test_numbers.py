"""Numbers that are negative, enormous, no numbers or not finite, at commands and in settings.

`test_bounds.py` gives any number to every option; here are a few of each kind, as a user types them.
"""

from cases import case, check_all

OPTIONS = {
    "describe photos/0.jpg --model captioner": {
        "--beam-size": ("0", "-1", "1e20", "99999999", "x", "1.5", "9" * 23),
        "--length-penalty": ("nan", "inf", "1e308"),
        "--min-length": ("1000000",),
        "--max-length": ("100000000000",),
    },
    "describe photos/0.jpg --model captioner --sample": {"--top-p": ("0", "1.5", "nan"), "--seed": ("-1", "9" * 23)},
    "evaluate --model captioner --collection c": {"--marginal": ("1e20",), "--memory": ("0", "1e20")},
    "correlate judgements.txt --scores scores.tsv": {"--samples": ("99", "1e20")},
    "features c": {
        "--backbone": (
            *("pixels:0", "pixels:-1", "pixels:100000", "pixels:x", "kmeans:"),
            *("vgg19:", "vgg19:notes.txt", "alexnet:gone.pth"),
        )
    },
    "features c --backbone pixels --name t": {"--size": ("100000",), "--views": ("3",), "--frames": ("1e9",)},
    "train scenes/mrnn --collection c --out new": {"--devices": ("0", "1e20"), "--nodes": ("9" * 23,)},
    "generate scenes new": {"--train": ("1" + "0" * 12,), "--ambiguous": ("1.1", "nan")},
    "gradients --model captioner": {"--probes": ("1e20",)},
    "kmeans c --out f.safetensors": {
        "--activation": ("soft",),
        "--patch": ("65",),
        "--filters": ("3", "1000000000"),
        "--patches": ("1" + "0" * 13,),
    },
    "search 'a red ball' --model captioner --collection c": {"--slack": ("nan", "inf")},
    "describe photos/0.jpg --model dense --regions 9": {"--min-confidence": ("1.1", "nan")},
    "translate 'a red ball' --model translator --image photos/0.jpg": {"--n-best": ("0",)},
    "diagnose --model translator --collection c": {"--trials": ("1e20",)},
    "compare captioner dense": {"--level": ("0", "1.5", "nan")},
    "crossvalidate lecture/reviews --collection reviews --out new": {
        "--folds": ("1", "100000"),
        "--validation": ("1",),
    },
    "reproduce mao2015/table3 --collection c --out new --dataset flickr8k": {"--budget": ("0", "nan")},
    "words red --model captioner": {"--count": ("0",)},
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

test_options = check_all(
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

test_settings = check_all(
    *(
        case(
            f"train scenes/mrnn --collection c --out new features.tables=[pixels16] '{setting}={value}'",
            setting.rpartition(".")[2],
        )
        for setting, *values in SETTINGS
        for value in values
    )
)
