"""The planner's search, with sliders: the best few ways to shard a job, and what bounds each."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "lessons"))
from controls import choice, control, powers
from planner import __main__ as command
from planner import plans, report, search

TITLE = "The planner's search"
INTRODUCTION = """\
Make the network slower, one step after another, and watch the fastest way change; then make the texts
longer. You will see that a slow network leaves fewer ranks for data and gives the job more stages, and that
long texts want context parallelism. Each choice is a new search. On two cores that others used too, it took
0.6 seconds at most in Chromium, and for Mixtral, whose experts are spread too, 1.6; when it takes longer
than a moment, the page says that it is at work. [The notebook on planning](../notebooks/planning.ipynb) says
what the formulas leave out.
"""
NAMES = ("formulas", "plans", "report", "search", "__main__")
FILES = {f"lessons/planner/{name}.py": () for name in NAMES}
MODELS = {name: name for name in plans.MODELS}
MODELS |= {params: f"a GPT of {report.count(params)}" for params in (7.5e9, 1.75e11, 1e12)}
MOST = 5  # that the command prints


def speeds(*numbers):
    return [[one * 1e9, f"{one:g} GB/s"] for one in numbers]


CONTROLS = [
    choice("model", "model", MODELS, "llama3-405b"),
    control("gpus", "GPUs", powers(*range(15)), 2**14),
    control("seq", "tokens of a text", powers(*range(11, 18)), 8192),
    control("batch_tokens", "tokens of a step", powers(*range(19, 28)), 2**24),
    choice("memory", "memory of a GPU", {one * 1e9: f"{one} GB" for one in (24, 80, 141)}, 80e9),
    control("bandwidth_node", "node, one way", speeds(32, 64, 150, 300, 450, 900), 450e9),
    control("bandwidth_network", "network, one way", speeds(1.25, 12.5, 25, 50, 100), 50e9),
    control("price_per_hour", "a GPU's hour", [[one, f"{one:g} dollars"] for one in (1, 1.5, 2, 3, 4, 6)], 3),
]
NOTE = (
    "For each layout the search also tries the model chunks of a stage (x), the texts at once, what backward "
    "computes again, ZeRO's stages, and for stage 3 one copy in each node (x: so many copies). The fastest "
    "of what fits stays. What takes less than 5% of a step does not bound it. All other options of python "
    "lessons/planner have their defaults: nodes of eight H100s, half of whose peak is reached, 20 tokens for "
    "each parameter, Llama 3's rate of interruptions."
)


def job_of(inputs):
    """The options of the planner's command with --search, as its parser would hand them on."""
    job = {name.replace("-", "_"): option.default for name, option in command.OPTIONS.items()}
    job |= {name: choices[0] for name, (choices, _) in command.CHOICES.items()}
    job |= {"sequence_parallel": False} | dict.fromkeys(search.SEARCHED)
    model = inputs["model"]
    job |= plans.named(model) if model in plans.MODELS else {"params": int(model)}
    return job | {name: value for name, value in inputs.items() if name != "model"}


def words_of(inputs):
    """What to write behind python lessons/planner for the same search."""
    model = inputs["model"]
    words = [f"--model {model}" if model in plans.MODELS else f"--params {model:g}"]
    for name, value in inputs.items():
        option = name.replace("_", "-")
        if name != "model" and value != command.OPTIONS[option].default:
            words.append(f"--{option} {value:g}" if value > 2**27 else f"--{option} {value}")
    return " ".join([*words, "--search"])


def answer(**inputs):
    found = {"inputs": inputs, "tables": [], "ways": []}
    try:
        fitting = search.search(job_of(inputs), most=None)
    except ValueError as error:
        return found | {"said": f"No way: {error}."}
    best = fitting[:MOST]
    first = best[0]
    job = first["job"]
    said = (
        f"{report.count(job['params'])} parameters on {job['gpus']:,} GPUs: {len(fitting):,} layouts fit. "
        f"The fastest is {ways(first)}: {report.duration(first['days'] * 86_400)} and "
        f"{first['dollars']:,.0f} dollars."
    )
    table = {
        "caption": f"python lessons/planner {words_of(inputs)}",
        "head": [word.strip() for word in search.HEAD],
        "rows": [[cell.strip() for cell in search.cells(one)] for one in best],
        "chosen": 0,
    }
    longest = max(sum(one["step_seconds"].values()) for one in best)
    return found | {"said": said, "tables": [table], "ways": [bar(one, longest) for one in best]}


def ways(one):
    """The mesh of a plan, as its report has it: 16 data x 4 tensor x 2 pipeline."""
    return report.text(one).splitlines()[1].partition(": ")[2]


def bar(one, longest):
    """A step of a plan in its parts, and what the list says of it."""
    start, parts = 0.0, []
    for part, seconds in one["step_seconds"].items():
        if seconds:
            parts.append({"part": part, "from": start / longest, "to": (start + seconds) / longest})
        start += seconds
    held = f"{sum(one['memory_bytes'].values()) / 1e9:,.1f} GB"
    words = f"a step {report.duration(start)}, {held}, bound by {search.bound(one)}"
    return {"name": ways(one), "words": words, "parts": parts}
