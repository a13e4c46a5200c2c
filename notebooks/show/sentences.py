"""What the notebooks say of each place at which a lesson differs from the one before: see show.diff."""

SENTENCES = {
    "02_data_parallel": {
        "Lesson 02": "The name and the command.",
        "- You will see one line": "Lesson 01 says what you will see.",
        "+ You will see lesson 01's lines": "Lesson 02 says what happens in each step. "
        "The timeline below shows all six parts.",
        "from torch import nn": "`DataParallel` is in `torch.nn`.",
        "nn.DataParallel(model)": "The one line. Above it, a message to those who have fewer than two GPUs.",
        "model.module": "The weights are one level deeper now. The file should have their old names.",
    },
    "03_ddp_spawn": {
        "Lesson 03": "The command now says how many processes there are.",
        "- You will see lesson 01's lines": "DDP copies no model and gathers no outputs during a step.",
        "+ You will see lesson 01's losses": "This is what it does instead.",
        "import torch.multiprocessing": "`mp` starts processes, and `dist` connects them.",
        "- from torch.utils.data import DataLoader, RandomSampler": "This sampler knows about ranks.",
        "init_process_group": "Each new process begins in `worker`. It picks its device and joins the "
        "process group. The processes find each other through a file, so no port is needed.",
        "+ train(rank": "Then it trains and leaves the group.",
        "+ def train(rank": "`train` is told its rank, the world size and the device.",
        "- order = torch.Generator()": "The sampler gives each process its shard of the images. Each process "
        "loads its part of the batch: 60 of 120 images.",
        "DistributedDataParallel(model)": "This is the central line. DDP sends rank 0's weights to all "
        "processes, and from then on averages the gradients in every backward pass.",
        "sampler.set_epoch(epoch)": "All processes must shuffle in the same way, and differently in each "
        "epoch.",
        "dist.all_reduce(loss_sum)": "Each process has seen only its own images, so the losses are added up.",
        "- correct = count_correct(model,": "So are the correct answers. Only rank 0 reports.",
        "- # From the CPU": "Only rank 0 saves, because all processes hold the same weights.",
        "mp.spawn(worker": "This process starts the others and waits for them. `spawn` passes the rank as "
        "the first argument.",
    },
    "04_ddp_torchrun": {
        "python lessons/03_ddp_spawn.py": "`torchrun` starts the script, not `python`.",
        "+ You will see lesson 01's losses again": "It tells each process in its environment who it is.",
        "+ import os": "The script reads the environment.",
        "torch.multiprocessing": "It spawns nothing.",
        "def worker": "`worker` was the function that each new process began with. Now each process runs the "
        "script from its first line.",
        "--world-size": "The environment also says how many processes there are, so the option goes.",
        "- rendezvous =": "`torchrun` has already started the processes. Each one reads its rank and picks "
        "its GPU by `LOCAL_RANK`. `init_process_group` finds the other processes by itself.",
    },
    "05_snapshots": {
        "--crash-at 3": "`--max-restarts` lets `torchrun` restart the processes. The end of this notebook "
        "explains the variable.",
        "- You will see lesson 01's losses again": "This is what you will see.",
        "parts = {": "`parts` holds everything that has a `state_dict` and changes during training.",
        "+ if snapshot.exists()": "All processes load the snapshot if there is one.",
        "- for epoch in range(1": "Training continues with the next epoch.",
        "crash_once": "This line is only for the lesson: it kills the last process in epoch `--crash-at`.",
        "temporary.replace(snapshot)": "At the end of each epoch, rank 0 saves to a temporary file and then "
        "renames it.",
        "--crash-at": "The option for the crash.",
    },
    "06_multinode": {
        "Lesson 06: many machines.": "The command for one machine that plays two.",
        "- You will see a process killed": "The command for two real machines.",
        "import record": "`record` is torchrun's own decorator for reporting errors.",
        "check_shared(arguments.out": "`@record` hands an exception to torchrun, whose report names the "
        "process that failed first. Before anything else, all processes check that they see the same "
        "folder.",
        "def check_shared": "Rank 0 writes the time into a file",
        "+ dist.broadcast": "and broadcasts it. A process that does not find this time in its own folder "
        "refuses to start.",
    },
    "06a_any_step": {
        "--snapshot-every 30 --crash-at 3": "This lesson runs on one machine again.",
        "- You will see lesson 01's losses": "This is what you will see.",
        "import islice": "`islice` skips batches.",
        "train_loader.generator": "A DataLoader draws a random number each time it starts. With its own "
        "generator, it takes none of the numbers that dropout would get.",
        "settle(model, train_set": "Run DDP's first backward pass before training. `settle` is defined "
        "further down.",
        "done, loss_sum = 1, 0": "`done` is the number of steps already done in the first epoch.",
        "processes[rank % len(processes)]": "Each process takes its own random state from the snapshot. It "
        "begins with the mean of the saved loss sums, which keeps the mean loss of the epoch right.",
        "islice(workload.progress": "The epoch continues after the steps that are already done.",
        "if step % every == 0": "After every `every` steps, each process hands over what only it has,",
        "+ state = {name": "and rank 0 saves everything.",
        "done, loss_sum = 0": "The end of an epoch is no longer special: its last step saves a snapshot only "
        "if any other step would.",
        "def settle": "This pass leaves no trace in the model. It only makes DDP rebuild its buckets.",
        "--snapshot-every": "By default, each epoch saves one snapshot, after its last step.",
    },
    "06b_preemption": {
        "06b_preemption.py --snapshot-every": "The command, and what you will see.",
        "import timedelta": "This is for the time limit.",
        "import record": "`let_the_first_speak` includes `record`.",
        "let_the_first_speak": "When one process dies, the other processes fail too. "
        "`let_the_first_speak` makes them wait before they print.",
        "snapshots = Snapshots": "`Snapshots` locks the folder and knows the settings of the run. "
        "`find_newest` skips damaged files and refuses a snapshot with different settings.",
        "stop = snapshots.agree_to_stop()": "After each step the processes vote. If one process was told "
        "to stop, all processes save.",
        "+ processes = snapshots.gather": "`gather` and `save` are in the module. After saving, all "
        "processes leave the training loop.",
        "return False": "At the end, `close` releases the lock. `False` means that nobody told the run to "
        "stop.",
        "end_with_parent": "If its launcher is killed, a process ends too.",
        "--time-limit": "This is how long a process waits for one that hangs.",
        "stopped = train": "If the run was told to stop, `leave` ends the process with status 75.",
    },
    "07_mixed_precision": {
        "grown from lesson 04": "The command.",
        "- You will see lesson 01's losses": "What you will see, and the option that brings lesson 01's "
        "losses back.",
        "nullcontext": "`nullcontext` does nothing. The last micro-batch runs under it instead of `no_sync`.",
        "torch.autocast": "`autocast` computes convolutions and matrix products in bf16. With "
        "`--precision fp32` it is disabled.",
        "no_sync()": "Each process splits its images into micro-batches.",
        "+ # no_sync is around": "All but the last micro-batch run under `no_sync`, so DDP averages the "
        "gradients once a step. Each loss is a sum divided by the number of images in the step, because "
        "micro-batches may have unequal sizes.",
        "--accumulate": "There is one option for each idea.",
        "refuse": "A number of micro-batches that cannot work is refused before training starts, and so is "
        "bf16 on a GPU that does not have it.",
    },
    "08_real_training": {
        "grown from lesson 06b": "The command.",
        "- You will see what lesson 06a": "What you will see when you run it.",
        "from parts import loading": "The parts. You can read each file when you need it.",
        "loading.Sampler": "Validation images are split off the training images. The sampler sends the epoch "
        "along with each index, because the augmentation takes its random numbers from the seed, the epoch "
        "and the index.",
        "validation_loader = ": "Each process validates on its shard of the validation images.",
        "- model = workload": "A ResNet whose batch norm uses the images of all processes.",
        "- optimizer = torch": "`--compile` is optional. The learning rate grows with the global batch and "
        "follows a formula, step by step.",
        "+ best = Best": "`best` holds the best epoch and its weights. It is saved and restored like the "
        "model.",
        "board = Board": "Rank 0 prints, and writes for TensorBoard. All processes stop when `--patience` "
        "epochs have brought no better one.",
        "non_blocking": "While a GPU copies the batch from pinned memory, the CPU goes on.",
        "board.step()": "The learning rate changes at each step. The profiler counts steps.",
        "scheduler.step()": "It no longer changes at the end of an epoch.",
        "best.see": "The validation images are counted after each epoch. The sum decides which epoch is the "
        "best.",
        "+ model.module.load_state_dict": "The test images are used once, with the weights of the best "
        "epoch. The run leaves these weights behind.",
        "model.eval()": "While the model is tested, batch norm must not look at the batch.",
        "model.train()": "While it is trained, it must.",
        "options.add": "The options are in a file of their own.",
    },
    "09_fsdp": {
        "grown from lesson 04": "The command.",
        "- You will see lesson 01's losses": "Lesson 04 said what torchrun does.",
        "+ You will see": "This lesson says what each process holds. (`math` counts the rounds of the "
        "evaluation.)",
        "import CPUOffloadPolicy": "In place of DDP: sharding, a `state_dict` that knows of shards, and "
        "activation checkpointing (which has nothing to do with files).",
        "from parts.checkpoints": "Saving and loading are in a file of their own: `checkpoints.py`.",
        "rounds": "Every forward pass gathers weights from all processes, so all must make equally many. "
        "With 501 and 500 images, in batches of 500, one process would make two, the other one: a hang. So "
        "each splits its images into as many batches as the longest part needs.",
        "+ with torch.device": "The model begins on `meta`, where it needs no memory, and `shard` takes the "
        "place of DDP's wrapper. The newest checkpoint is loaded, if there is one, and the loop begins after "
        "its epoch.",
        "correct = count_correct": "There is no wrapper to look into: `fully_shard` has changed the model "
        "in place.",
        "checkpoints.save(epoch)": "Each epoch is saved while the next one trains.",
        "+ # Gathering is a collective": "At the end all gather the whole weights, and rank 0 writes them.",
        "+ def shard": "What `fully_shard` is told. The mesh says over which processes to shard: all of "
        "them, on the device that was picked.",
        "+ if arguments.offload": "Each layer is drawn in full and then sharded, one after the other. The "
        "root comes last.",
        "+ def report_memory": "`report_memory` adds up what this process holds (`to_local`).",
        "+ line = (": "Rank 0 prints the lines of all.",
        "--precision": "What else `fully_shard` can do, to be tried.",
        "device_id": "NCCL connects all processes at the start, and none waits longer than two minutes.",
    },
    "10_pipeline": {
        "grown from lesson 04": "The same command starts it.",
        "+ You will see": "It now says what a stage is, and names the four schedules.",
        "OrderedDict": "The layers of a stage keep their names.",
        "torch.distributed.pipelining": "PyTorch has stages and schedules. They take the place of DDP.",
        "BEGINNINGS": "A table says with which layer each stage begins.",
        "num_replicas=1": "All processes read the same batches.",
        "- model = workload": "Each process has an optimizer for its own stage only, and so only its own "
        "momentum.",
        "schedule.step(": "One call does the forward and the backward pass of all micro-batches. The loss is "
        "known to the last stage; the others add zero to it.",
        "- mean_loss": "No gradient is averaged over processes.",
        "gather_object": "At the end rank 0 collects the weights of all stages.",
        "+ if rank == 0": "Rank 0 puts them together and saves one model.",
        "+ if arguments.timeline": "On request the script writes down who worked when.",
        "+ def build_stages": "This function splits the model: each process keeps only its own layers.",
        "+ def make_schedule": "This one chooses the schedule.",
        "def count_correct(model": "The evaluation goes through the pipeline too. All micro-batches must "
        "have "
        "one size, so the last one is filled up with images that do not count.",
        "+ count = len(test_set)": "Only the last stage knows the answers.",
        "--schedule": "The script has options for the schedule and for the number of micro-batches.",
        "- workload.require_torchrun": "It asks for a torch that is new enough.",
        "+ device_id = None": "NCCL connects all processes at the start, because stages send to one another.",
    },
    "11_tensor_parallel": {
        "grown from lesson 04": "The same command starts it.",
        "+ You will see": "It also prints which collectives a step needs.",
        "import timedelta": "No process waits longer than two minutes for another one.",
        "DTensor, Replicate": "A `DTensor` is a tensor that is sharded (`Shard`) or replicated (`Replicate`) "
        "over a device mesh: the processes that hold it.",
        "+     ColwiseParallel": "The two ways to shard a matrix, and the function that does it.",
        "ImageTransformer": "Each process gets some of the heads, so their number matters.",
        "num_replicas=1": "All processes read the same images.",
        "+ test_loader": "`parallelize_module` shards the model, after it has been built in each process.",
        "+ # Not foreach": "The optimizer updates parameters one by one: some are sharded, some are not.",
        "of all images already": "All processes compute the same loss. To add them up would count each image "
        "several times.",
        "make_plan": "To save the model, its shards are gathered first.",
        "+ def make_plan": "The plan. First, what a block hands on to the next.",
        "+ plan = {": "Then the matrices, alternately column-wise and row-wise. (`PrepareModuleInput` says "
        "how what a module reads is laid out: whole on every process.)",
        "+ if sequence_parallel": "Sequence parallelism, an option, also shards what is between the "
        "matrices.",
        '+ plan["head"]': "At the head they are gathered again.",
        "+ def count_collectives": "This function takes a step with a learning rate of 0.",
        "+ for name, mode": "It prints which collectives the step needed.",
        "+ def gather": "A `DTensor` is gathered by `full_tensor()`, a collective.",
        "--sequence-parallel": "One more option.",
        "+ if HEADS": "What does not divide is refused: here the heads, not the batch.",
    },
    "12_mesh": {
        "grown from lesson 11": "It starts four processes now.",
        "- You will see": "It has to give lesson 11's losses.",
        "import fully_shard": "Lesson 09's function is added to those of lesson 11.",
        "    SequenceParallel,": "Sequence parallelism is left out: one idea at a time.",
        "def train(rank, mesh": "Training needs the mesh, not the number of processes.",
        'mesh["data"].get_local_rank()': "Which images a process reads depends on its coordinate in `data` "
        "only. Two that share matrices must read the same ones.",
        "shard(model, mesh)": "The model is sharded twice, in a function below.",
        'group=mesh.get_group("data")': "Losses are added up over `data` only: those in a row have the same.",
        "part.unshard()": "Before the weights are saved, FSDP gathers what its column has.",
        "def shard(": "The idea of this lesson. First over `tensor`, by the plan. Then over `data`, block by "
        "block, and last what is in no block.",
        "+ def make_plan": "The plan begins as before.",
        "RowwiseParallel()": "The matrices are sharded as before.",
        "- if sequence_parallel": "What sequence parallelism needs is gone.",
        "lr=0).step()": "FSDP makes a `DTensor` of every parameter: an optimizer can take them "
        "all at once, here and in training.",
        "--tensor-parallel": "An option says how many processes share the heads; the rest of the mesh is "
        "`data`.",
        "- if HEADS": "By default two processes share the heads.",
        "+ tensor_size": "What cannot be a mesh is refused.",
        "- dist.init_process_group": "The mesh: neighbouring ranks are in one row, and each dimension has a "
        "name. `make_mesh` is PyTorch's `init_device_mesh`, which it tells the time limit of each group.",
    },
    "13_gpt": {
        "grown from lesson 12": "It is started as before.",
        "- You will see": "It writes before and after training, and can be killed.",
        "from itertools import islice": "This skips the batches that a killed run had done.",
        "from torch import nn": "The head of the model is made here. This notebook counts the collectives, "
        "not the lesson.",
        "loss_parallel,": "A loss of scores that are sharded.",
        "from parts import limericks": "The text and the snapshots are in files of their own.",
        "let_the_first_speak": "If one process fails, the others fail too, since they wait for it. "
        "You see only the first error.",
        "limericks.load": "The data are texts, and the list of all characters in them.",
        "snapshots.load_newest": "All processes test on all texts.",
        "- model = ImageTransformer": "The model is new, and so is the optimizer: AdamW, with a learning "
        "rate that changes from step to step.",
        "+ snapshots = Snapshots": "If there is a snapshot, the run goes on from the newest. Then it writes.",
        "- loss_sum = torch": "The loop over images goes.",
        "+ batches = workload": "The new loop begins after the last step that was saved.",
        "+ with loss_parallel": "Each character of a text has a loss of its own. Forward and backward are "
        "inside `loss_parallel()`, because no process has all scores.",
        "+ scheduler.step()": "After some steps there is a snapshot, and perhaps the crash. Only then and "
        "at the end of an epoch, the losses of all processes are averaged.",
        "snapshots.save(epoch + 1": "There is one more snapshot after each epoch. The two newest are kept.",
        "def build_model": "This is lesson 12's transformer, but it reads characters, and no position may "
        "look at a later one (`causal`). `Recent` turns each character into a vector, with some of the "
        "characters before it.",
        "+ def shard": "`shard` passes its options on to `fully_shard`.",
        "**options": "With them, notebook 13a asks for 16 bits.",
        '"embedding.table"': "The tables of characters and of positions are sharded too.",
        '"head"': "So is the head. Each process computes the scores of its own characters. They stay a "
        "DTensor (`use_local_output=False`), from which `loss_parallel()` computes the loss.",
        "def average": "The function that counted collectives is gone.",
        "- for name, mode": "What it printed is gone too.",
        "+ def average": "The losses are averaged over `data`.",
        "following in test_loader": "The accuracy counts the characters that it predicts.",
        "limericks.options(parser)": "A language model has other options. If `torchrun` itself is killed, "
        "its processes end too, and do not train on.",
    },
    "14_tuning": {
        "Lesson 14": "The command. There is no launcher: each worker is started by itself.",
        "- You will see one line an epoch": "Lesson 01 says what you will see.",
        "+ You will see one line a trial": "Lesson 14 says how others join, and what a dead one costs.",
        "from parts import tuning": "The journal, the budget and the plot are in a file of their own.",
        "+ def search": "`search` is what a worker does. It keeps some training images back to decide on, "
        "and opens the search, or joins the one that is there.",
        "+ while trial": "While there is a trial to be had, it trains it, and tells the journal how it "
        "ended: complete, pruned, out of budget.",
        "+ except optuna.exceptions": "A worker that was silent for too long finds its trial given up.",
        "+ best = tuning": "Then the first one to come here tests the best model. Here alone the test images "
        "are read.",
        "+ def train(study": "`train` is lesson 01's. Learning rate and batch size are asked for, not given.",
        "- size = arguments": "The test images are not here any more.",
        "- optimizer = torch": "The learning rate is the trial's.",
        "a trial would depend": "Each trial has the same order of images, whatever was trained before it.",
        "tuning.beat": "At each step the worker may say that it lives, and look whether the budget is spent.",
        "should_prune": "The accuracy is that of the validation images. It goes into the journal, and "
        "Optuna compares it with the earlier trials.",
        "+ torch.save(model": "Each trial has a file of its own.",
        "def count_correct(model, test_set": "The same function counts validation and test images.",
        "tuning.options(parser)": "This lesson has options of its own, and their checks.",
    },
    "15_context_parallel": {
        "grown from lesson 13": "The command. Two processes are enough to see a ring.",
        "- You will see what it writes": "This one does not write.",
        "from functools import partial": "Attention is given its group and its order beforehand.",
        "FlopCounterMode": "No matrix is sharded by columns or rows here.",
        "+ from torch.distributed.tensor import DTensor": "PyTorch's own counter counts what is multiplied.",
        "from parts.ring_attention": "The ring is in a file of its own.",
        "those that share a text": "Those that share a text read the same one, and each a part of it.",
        "positions_of": "Which positions are this process's, and a model for longer texts.",
        "few = min(60": "No text is generated.",
        "with loss_parallel": "Each process has all scores of its positions, so the loss is an ordinary one.",
        "+ scores = model(": "Each process takes its own positions of each text, and says "
        "to the model which they are.",
        "dist.all_reduce(correct, group=": "The right answers of those that share a text are added up. In "
        "`data` nothing is: there all test on the same texts.",
        "part.unshard()": "The weights are sharded by FSDP alone, so `gather` has all of them.",
        "nn.Embedding(characters": "Lesson 13's embedding mixes each character with the three before, which "
        "may be on a different process. This one looks at one at a time, as do norms and feed-forward.",
        "def shard": "`shard` no longer shards matrices by columns and rows,",
        "+ def shard": "but puts ring attention into each block. FSDP gets the whole mesh: it shards in the "
        "last dimension, copies in the first, and takes the mean of the gradients over both. That is HSDP.",
        "- def make_plan": "The plan of lesson 11 is gone:",
        '- "blocks.*.attention.query"': "all matrices are ordinary ones again.",
        "Over all": "The loss is the mean over all processes: each has other positions, or other texts.",
        "+ def compare_orders": "A new function measures attention alone, in both orders,",
        "+ for order in ORDERS": "first what each process multiplies,",
        "+ start = time": "and then the time of all.",
        "count_correct(model, test_loader, positions": "The accuracy counts this process's positions.",
        "limericks.options_of_training": "The length of a text, the order of positions, and how many share "
        "a text.",
        "if arguments.tensor_parallel": "The number of processes that share a text must divide that of all,",
        "+ if arguments.context_parallel": "by default it is all of them.",
        "+ if arguments.length": "A text must divide into two chunks for each.",
        "make_mesh": "The mesh has `context` where lesson 13 has `tensor`.",
    },
    "16_experts": {
        "grown from lesson 13": "Two processes are enough.",
        "- You will see": "Lesson 13 said what it shows.",
        "+ You will see": "This lesson shows the same, and the load of the experts.",
        "import fully_shard": "FSDP and the plan of tensor parallelism go.",
        "from parts import experts": "The layer with the experts is in a file of its own.",
        "world_size = mesh.size()": "Each process reads its own texts again, as in lesson 04.",
        "add_experts(model, mesh": "The experts are put in place. They are DTensors and the rest are plain "
        "tensors: AdamW can take the two together neither fused nor with `foreach`.",
        "with loss_parallel": "Each process has all scores, so the loss is an ordinary one.",
        "+ loss = cross_entropy": "The balancing loss is added. Each process divides by their number, so "
        "that gradients only have to be added up.",
        "show_load": "After each epoch it prints the load of the experts, in the last step.",
        "part.unshard()": "FSDP has nothing to gather any more.",
        "def add_experts": "`add_experts` is in place of `shard`.",
        "- fully_shard(block": "Experts take the place of each feed-forward layer, and each process keeps "
        "its own.",
        "- def make_plan": "The plan goes.",
        '- "blocks.*.attention.value': "This too.",
        "+ def add_up_gradients": "What is not a DTensor is replicated, and its gradients are added up over "
        "all processes. An expert's need no collective.",
        "+ def show_load": "The load is that of all processes together, so one of them prints it.",
        "Over all": "The loss is the mean over all processes: each has texts of its own.",
        "model(texts.to(device))": "Here too.",
        "experts.options": "The lesson has options of its own, and fewer epochs.",
        "experts.check": "The number of processes must divide that of the experts.",
        "make_mesh": "The mesh has one dimension: all processes.",
    },
    "17_one_mesh": {
        "grown from lesson 13": "Eight processes are the fewest that shard in three dimensions.",
        "- You will see": "Lesson 13 said what it writes.",
        "+ You will see": "This one says who has what.",
        "from functools import partial": "Attention is given its group beforehand, as in lesson 15.",
        "import fully_shard": "FSDP goes, so that averaging is in sight. A schedule comes, from lesson 10.",
        "loss_parallel,": "The head is not sharded here.",
        "one_mesh  # the other": "What checks sizes and keeps a stage is in a file of its "
        "own. The ring is lesson 15's. Four blocks can be two stages, or four.",
        'those with one place in "data"': "Processes with the same place in `data` read the same texts.",
        "DataLoader(test_set, len": "One batch of all test texts: a schedule splits it into micro-batches, "
        "which must be of one size. The other file refuses a number that does not divide.",
        "+ context_rank, context_size": "This process's positions, and a model for texts of this length.",
        "- optimizer = ": "`shard` has left one stage of the model. The schedule runs it.",
        "- snapshots = Snapshots": "There are no snapshots, and no text is generated.",
        "- for epoch in range(first": "So every run begins with the first epoch,",
        "- batches = workload.progress": "and each epoch with its first step.",
        "+ loss_sum = torch.zeros": "Of its texts, each process takes its own positions.",
        "+ losses = []": "A step of the schedule is forward and backward of all micro-batches, as in "
        "lesson 10. Then comes the one new function.",
        "- loss_sum += loss": "Nothing is saved within an epoch.",
        "+ loss_sum += sum(": "At the end of an epoch the loss is added up over the three dimensions in "
        "which it differs, and divided by the sizes of `data` and `context`: stages before the last have "
        "added nothing.",
        "- correct = count_correct": "What was answered right is on the last stage, for this process's "
        "positions.",
        "- done, loss_sum": "No snapshot here either,",
        "- limericks.write(": "and no text.",
        "- for part in": "FSDP has nothing to gather. The first stage gets the weights of the others.",
        "def build_model": "The model has four blocks, and lesson 15's embedding.",
        "def shard(": "`shard` is three dimensions in four lines:",
        "- fully_shard(block": "matrices, the ring, and the stage.",
        '"embedding.table"': "Embedding and head are replicated in `tensor`,",
        '"head": Colwise': "so that scores are ordinary tensors, as the loss and the counting take them.",
        "def average": "There is no snapshot to average the losses for.",
        "+ def make_schedule": "Instead there is the schedule of a stage.",
        "+ def loss_of": "The loss of a micro-batch.",
        "+ def average_gradients": "And what this lesson is about: in `data` and `context` gradients are "
        "averaged, in `pipeline` and `tensor` they are not.",
        "count_correct(schedule": "Only the last stage knows the scores.",
        "one_mesh.options(parser)": "Smaller sizes, and an option for each dimension but `data`, which is "
        "what is left.",
        "- workload.require_torchrun": "Schedules of older torch accept one batch size only.",
        "- workload.check(arguments)": "Lesson 13 checked one size.",
        "+ workload.check(arguments, replicas=1)": "Which sizes fit is checked in the other file,",
        "make_mesh": "where the sizes of the mesh come from.",
    },
}
