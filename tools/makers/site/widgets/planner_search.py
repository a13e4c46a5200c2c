"""The planner's search, with sliders: the best few ways to shard a job, and what bounds each."""

from planner import plans, report, search
from tools.makers.site import gpus, models
from tools.makers.site.controls import NETWORK, choice, control, powers, stacked, typed, with_commas

TITLE = "The planner's search"
INTRODUCTION = """\
How should you shard a job: data, tensor, pipeline, context or expert parallelism? The planner tries all
combinations and lists the fastest five that fit. On a slower network the best layout has fewer
data-parallel ranks and more pipeline stages; long sequences call for context parallelism. A search takes a
second or two. <a href="planner.html#gpus">The planner's page</a> says where the numbers of a GPU come
from, and [the notebook on planning](../notebooks/planning.ipynb) says what the formulas leave out.
"""
NAMES = ("formulas", "plans", "report", "search", "measured", "__main__")
FILES = {f"lessons/planner/{name}.py": () for name in NAMES}
FILES |= {f"tools/makers/site/{name}.py": () for name in ("gpus", "models")}
MODELS = {name: name for name in plans.MODELS}
MODELS |= {params: f"a GPT of {report.count(params)}" for params in (7.5e9, 1.75e11, 1e12)}
HEADS = {
    "texts": "micro-batch",
    "again": "check\u00adpointing",
    "a step": "step time",
}  # else the command's own
MOST = 5  # that the command prints


CONTROLS = [
    choice("model", "model", MODELS, "llama3-405b"),
    control("gpus", "GPUs", powers(*range(15)), 2**14),
    control("seq", "sequence length", powers(*range(11, 18)), 8192),
    control("batch_tokens", "tokens per step", powers(*range(19, 28)), 2**24),
    gpus.CONTROL,
    gpus.MEMORY,
    typed(
        "bandwidth_node", "or GB/s between GPUs of a machine", (None, 25, 63, 150), None, empty="as the GPU"
    ),
    gpus.PRICE,
    control("bandwidth_network", "network bandwidth", NETWORK, 50e9),
]
PRESETS = {
    "Llama 3 405B on 16,384 GPUs": {},
    "the same, 10 Gb/s network": {"bandwidth_network": 1.25e9},
    "the same, 131,072-token sequences": {"seq": 2**17},
    "Llama 3 8B on 64 GPUs": {"model": "llama3-8b", "gpus": 64},
    "Mixtral 8x7B on 1,024 GPUs": {"model": "mixtral-8x7b", "gpus": 1024},
}
NOTE = (
    "For each layout the search also tries the micro-batch size, activation checkpointing, the model chunks "
    "per pipeline stage, the ZeRO stages, and for stage 3 one copy in each node; in the table, x stands "
    "before the number of chunks or copies. The fastest combination that fits is listed. A part that takes "
    "less than 5% of a step does not count as a bottleneck. Everything else has the defaults of python "
    "lessons/planner: nodes of eight GPUs that reach half of their peak, 20 training tokens per parameter, "
    "and the failure rate of Llama 3's training run."
)


def shape_of(model):
    return plans.named(model) if model in plans.MODELS else {"params": int(model)}


def job_of(inputs):
    """The options of the planner's command with --search, as its parser would hand them on."""
    return models.job_of(inputs, shape_of(inputs["model"]), **dict.fromkeys(search.SEARCHED))


def answer(**inputs):
    found = {"inputs": inputs, "tables": [], "ways": []}
    try:
        fitting = search.search(job_of(inputs), most=None)
    except ValueError as error:
        reason = str(error)
        found["said"] = with_commas(f"{reason[0].upper()}{reason[1:]}.")
        return found

    best = fitting[:MOST]
    first = best[0]
    job = first["job"]
    found["said"] = (
        f"{report.count(job['params'])} parameters on {job['gpus']:,} GPUs: {len(fitting):,} layouts fit. "
        f"The fastest is {ways(first)}: {report.duration(first['days'] * 86_400)} and "
        f"${first['dollars']:,.0f}."
    )
    longest = 0
    rows = []
    for one in best:
        rows.append([cell.strip() for cell in search.cells(one)])
        longest = max(longest, sum(one["step_seconds"].values()))
    found["ways"] = [bar(one, longest) for one in best]

    model = inputs["model"]
    words = models.words_of(inputs, {"model" if model in plans.MODELS else "params": model})
    head = []
    for word in search.HEAD:
        head.append(HEADS.get(word.strip(), word.strip()))
    caption = f"python lessons/planner {words} --search"
    found["tables"].append({"caption": caption, "head": head, "rows": rows, "chosen": 0})
    return found


def ways(one):
    """The mesh of a plan, as its report has it: 16 data x 4 tensor x 2 pipeline."""
    return report.text(one).splitlines()[1].partition(": ")[2]


def bar(one, longest):
    """A step of a plan in its parts, and what the list says of it."""
    seconds = {part: taken for part, taken in one["step_seconds"].items() if taken}
    held = f"{sum(one['memory_bytes'].values()) / 1e9:,.1f} GB"
    taken = report.duration(sum(seconds.values()))
    words = f"step time {taken}, {held}, bound by {search.bound(one)}"
    return {"name": ways(one), "words": words, "parts": stacked(seconds, longest)}
