"""Cases that fail because the program does not follow a rule yet, by the rule."""

UNFINISHED: dict[str, tuple[str, ...]] = {
    "every error names a remedy": (
        "translate 'a red ball' --model translator --image nothing.jpg",
        "translate 'a red ball' --model translator --image link.jpg | link.jpg",
        "translate 'a red ball' --model translator --image loop.jpg | loop.jpg",
        "translate 'a red ball' --model translator --image /dev/zero",
        "translate 'a red ball' --model translator --image /dev/null",
        "translate 'a red ball' --model translator --image zero.png | zero.png",
        "translate 'a red ball' --model translator --image empty | empty",
        "translate 'a red ball' --model translator --image ''",
        "translate 'a red ball' --model translator --image notes.txt/0.jpg",
    ),
    "named pipes are refused": (
        "translate 'a red ball' --model translator --image pipe.jpg | pipe.jpg",
        "score pipe.jpg 'a red ball' --model captioner | pipe.jpg",
        "describe pipe.jpg --model captioner | pipe.jpg",
        "regions pipe.jpg --model dense | pipe.jpg",
    ),
    "one line of error for a path that the system refuses, without its number": (
        "describe xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx ... xxx.jpg --model captioner",
        "score xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx ... d ball' --model captioner",
        "regions xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx ... xxxxxxx.jpg --model dense",
        "translate 'a red ball' --model translator --image xxxxxxxxxx ... xxxxxxxxxxxxxxxxxxxxx.jpg",
        "score loop.jpg 'a red ball' --model captioner | loop.jpg",
        "score empty 'a red ball' --model captioner | empty",
        "score '' 'a red ball' --model captioner",
        "score notes.txt/0.jpg 'a red ball' --model captioner",
    ),
    "control characters are escaped": (
        "describe names --model captioner | names/?[31m.jpg names/a.jpg",
        "describe names --model captioner | names/a?b.jpg names/a.jpg",
        "regions names --model dense | names/a?b.jpg names/?.jpg",
    ),
}
