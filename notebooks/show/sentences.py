"""What the notebooks say about each change from one lesson to the next: see show.diff."""

SENTENCES = {
    "02_data_parallel": {
        "Lesson 02": "The name of the lesson and its command.",
        "- You will see one line": "The docstring of lesson 01 describes its output.",
        "+ You will see lesson 01's losses": "The docstring of lesson 02 lists the six parts of a step. You "
        "will see them below as a timeline.",
        "from torch import nn": "`DataParallel` is in `torch.nn`.",
        "nn.DataParallel(model)": "The last of these lines wraps the model. The two lines above it print a "
        "message on machines with fewer than two GPUs.",
        "model.module": "`model.module` is the model inside the wrapper. In its `state_dict`, the names of "
        "the weights have no prefix `module.`.",
    },
    "03_ddp_spawn": {
        "Lesson 03": "The command now includes the number of processes.",
        "- You will see lesson 01's losses": "DDP copies no model and gathers no outputs during a step.",
        "+ You will see lesson 01's losses": "Instead, each process keeps its copy of the model, and DDP "
        "averages the gradients.",
        "import torch.multiprocessing": "`mp` starts processes, and `dist` connects them.",
        "- from torch.utils.data import DataLoader, RandomSampler": "`DistributedSampler` replaces "
        "`RandomSampler`.",
        "init_process_group": "Each new process begins in `worker`. It picks its device and joins the "
        "process group. The processes find each other through a file, so they need no port.",
        "+ train(rank": "Then the process trains and leaves the process group.",
        "+ def train(rank": "`train` receives the rank, the world size and the device.",
        "- order = torch.Generator()": "The sampler gives each process its shard of the images. With two "
        "processes, each one loads 60 of the 120 images of a batch.",
        "DistributedDataParallel(model)": "This is the central line. DDP sends rank 0's weights to all "
        "processes. From then on, it averages the gradients in every backward pass.",
        "sampler.set_epoch(epoch)": "In every epoch, the images need a new order, which must be the same in "
        "all processes.",
        "dist.all_reduce(loss_sum)": "Each process knows only the losses of its own images, so the "
        "processes add them up.",
        "- correct = workload.count_correct(model,": "The processes also add up their correct answers. "
        "Only rank 0 prints the results.",
        "- # Move the model": "Only rank 0 saves, because all processes hold the same weights.",
        "mp.spawn(worker": "The script starts the processes and waits for them. `spawn` passes each "
        "process its rank as the first argument.",
    },
    "04_ddp_torchrun": {
        "python lessons/03_ddp_spawn.py": "`torchrun` starts the script, not `python`.",
        "+ You will see lesson 01's losses again": "Environment variables tell each process its rank.",
        "+ import os": "The script reads these variables from `os.environ`.",
        "torch.multiprocessing": "The script no longer spawns processes.",
        "def worker": "In lesson 03, each new process started in `worker`. Now each process runs the script "
        "from its first line.",
        "--world-size": "`WORLD_SIZE` says how many processes there are, so this option is no longer needed.",
        "- rendezvous =": "`torchrun` has already started the processes. Each process reads its rank and "
        "picks its GPU by `LOCAL_RANK`. `init_process_group` reads from the environment where the processes "
        "meet.",
    },
    "05_snapshots": {
        "--crash-at 3": "`--max-restarts` lets `torchrun` restart the processes. The end of this notebook "
        "explains the variable at the beginning of the command.",
        "- You will see lesson 01's losses again": "This is what you will see.",
        "parts = {": "`parts` holds everything that has a `state_dict` and changes during training.",
        "+ if snapshot.exists()": "All processes load the snapshot if there is one.",
        "- for epoch in range(1": "Training continues with the epoch after the last saved one.",
        "crash_once": "This line is only for the lesson: it kills the last process in epoch `--crash-at`.",
        "temporary.replace(snapshot)": "At the end of each epoch, rank 0 saves to a temporary file and then "
        "renames it.",
        "--crash-at": "The option `--crash-at` sets the epoch of the crash.",
    },
    "06_multinode": {
        "Lesson 06: many machines.": "The command for one machine that acts as two.",
        "- You will see a process killed": "The command for two real machines.",
        "import record": "`record` is torchrun's own decorator for reporting errors.",
        "check_shared(arguments.out": "`@record` hands an exception to torchrun, whose report names the "
        "process that failed first. Before anything else, all processes check that they see the same "
        "folder: rank 0 writes the time into a file and broadcasts it, and a process that does not find "
        "this time in its own folder refuses to start.",
    },
    "06a_any_step": {
        "--snapshot-every 30 --crash-at 3": "This lesson runs on one machine again.",
        "- You will see lesson 01's losses": "This is what you will see.",
        "settle(model, train_set": "`settle` runs DDP's first backward pass before training, which changes "
        "nothing in the model: it only makes DDP rebuild its buckets.",
        "done, loss_sum = 1, 0": "`done` is the number of steps that the run has already taken in epoch "
        "`first`.",
        "first, done, processes": "Each process begins with the mean of the saved loss sums, which keeps "
        "the mean loss of the epoch right.",
        "torch.manual_seed": "In each epoch, each process sets a new seed, from which the workers of its "
        "DataLoader get their seeds. A resumed epoch therefore augments its images as before. The loop skips "
        "the steps that are already done. Loading their batches may use up random numbers, so each process "
        "takes its own random state from the snapshot afterwards.",
        "if step % every == 0": "After every `every` steps, each process hands over its random state and "
        "its loss sum,",
        "+ state = {name": "and rank 0 saves everything.",
        "done, loss_sum = 0": "The end of an epoch is no longer special: a snapshot is saved there only if "
        "the number of steps is a multiple of `every`.",
        "--snapshot-every": "By default, the script saves one snapshot per epoch, after the last step.",
    },
    "06b_preemption": {
        "06b_preemption.py --snapshot-every": "The command, and what you will see.",
        "import timedelta": "`timedelta` is needed for the time limit.",
        "import record": "`print_first_error` includes `record`.",
        "print_first_error": "When one process dies, the other processes fail too. "
        "`print_first_error` makes them wait before they print.",
        "snapshots = Snapshots": "`Snapshots` locks the folder, stores the settings of the run in each "
        "snapshot, and sets `told_to_stop` when a signal arrives.",
        "+ shared=not": "With `--own-disks`, each machine keeps the snapshots on its own disk.",
        "+ state = snapshots.find": "`find_newest` skips damaged files and refuses a snapshot with different "
        "settings.",
        "stop = snapshots.agree_to_stop()": "After each step the processes vote. If one process was told "
        "to stop, all processes save.",
        "+ processes = snapshots.gather": "`gather` and `save` are in `parts/snapshot.py`. After saving "
        "because of a signal, all processes leave the training loop.",
        "return False": "At the end, `close` releases the lock. `False` means that nobody told the run to "
        "stop.",
        "end_with_parent": "If the torchrun launcher is killed, its processes end too.",
        "--time-limit": "`--time-limit` sets how long a process waits for a process that hangs.",
        "stopped = train": "If the run was told to stop, `exit_with_status` ends the process with status 75.",
    },
    "07_mixed_precision": {
        "grown from lesson 04": "The name of the lesson and its command.",
        "- You will see lesson 01's losses": "The docstring describes the output, and the option that gives "
        "lesson 01's losses again.",
        "nullcontext": "`nullcontext` does nothing. The last micro-batch runs under it instead of `no_sync`.",
        "torch.autocast": "`autocast` computes convolutions and matrix products in bf16. With "
        "`--precision fp32` it is disabled.",
        "no_sync()": "Each process splits its images into micro-batches.",
        "+ # no_sync must also": "All but the last micro-batch run under `no_sync`, so DDP averages the "
        "gradients once per step. Each loss is a sum divided by the per-process batch size, because "
        "micro-batches may have unequal sizes.",
        "--accumulate": "There is one option for accumulation and one for the precision.",
        "refuse": "Before training starts, the script refuses a number of micro-batches that cannot work, "
        "and bf16 on a GPU that does not support it.",
    },
    "08_real_training": {
        "grown from lesson 06b": "The name of the lesson and its command.",
        "- You will see lesson 06a": "What you will see when you run it.",
        "from parts import loading": "Each part is in its own file, which you can read when you need it.",
        "loading.Sampler": "Validation images are split off the training images.",
        "+ sampler = loading": "The sampler sends the epoch along with each index, because the augmentation "
        "takes its random numbers from the seed, the epoch and the index.",
        "validation_loader = ": "Each process validates on its shard of the validation images.",
        "- model = workload": "The model is a ResNet whose batch norm uses the images of all processes.",
        "+ model.forward_sync_buffers": "DDP need not send rank 0's running statistics, because they are the "
        "same on all processes.",
        "- optimizer = torch": "`--compile` is optional. The learning rate grows with the global batch and "
        "follows a formula, step by step.",
        "+ best = Best": "`best` holds the best epoch and its weights. It is saved and restored like the "
        "model.",
        "board = Board": "Rank 0 prints the results and writes them for TensorBoard. All processes stop when "
        "`--patience` epochs in a row have brought no new best.",
        "non_blocking": "While a GPU copies the batch from pinned memory, the CPU continues.",
        "board.step()": "The learning rate changes at each step. The profiler counts the steps.",
        "scheduler.step()": "The learning rate no longer changes at the end of an epoch.",
        "best.see": "After each epoch, the processes count their correct answers on the validation images. "
        "The sum decides which epoch is the best.",
        "+ model.module.load_state_dict": "The test images are used once, with the weights of the best "
        "epoch. The script then saves these weights.",
        "options.add": "The options are in their own file.",
    },
    "09_fsdp": {
        "grown from lesson 04": "The name of the lesson and its command.",
        "- You will see lesson 01's losses": "The docstring of lesson 04 describes torchrun.",
        "+ You will see": "The docstring of lesson 09 describes what each process holds. (`math` is for the "
        "number of batches in an evaluation.)",
        "import CPUOffloadPolicy": "These imports replace DDP: sharding, a `state_dict` for sharded "
        "models, and activation checkpointing (which has nothing to do with files).",
        "from parts.checkpoints": "Saving and loading are in their own file, `checkpoints.py`.",
        "rounds": "Every forward pass gathers weights from all processes, so all processes must run the same "
        "number of forward passes. With 501 and 500 images in batches of 500, one process would run two "
        "passes and the other only one, and the run would hang. So each process splits its images into as "
        "many batches as the largest shard needs.",
        "- model = workload": "No process builds the whole model any more, and the DDP wrapper goes.",
        "+ with torch.device": "Instead, the model is built on `meta`, where it needs no memory, and the new "
        "function `shard` shards it.",
        "+ checkpoints = Checkpoints": "If there is a checkpoint, `load_newest` loads the newest one and "
        "returns its epoch, and the loop starts after this epoch.",
        "correct = workload.count_correct": "There is no wrapper to unpack: `fully_shard` has changed "
        "the model in place.",
        "checkpoints.save(epoch)": "After each epoch, a thread writes a checkpoint while the next epoch "
        "trains.",
        "- if rank == 0": "Under DDP, rank 0 had all weights and could save them alone. Now it cannot.",
        "+ checkpoints.wait": "`wait` returns when the thread has written the last checkpoint. Then each "
        "process reports how many bytes it holds.",
        "+ # Gathering is a collective": "At the end all processes gather the full weights, and rank 0 "
        "writes them.",
        "+ def shard": "With `--checkpoint-activations`, the backward pass computes activations again "
        "instead of keeping them.",
        "+ dtype = torch.bfloat16": "These are the options of `fully_shard`. The mesh says over which "
        "processes to shard, here over all processes, on the device that was picked. The policy says in "
        "which precision a layer computes (`param_dtype`) and in which precision gradients are averaged "
        "(`reduce_dtype`).",
        "+ if arguments.offload": "With `--offload`, the shards stay in the memory of the CPU.",
        "+ for layer in model": "One layer after the other gets memory (`to_empty`), is initialized in full "
        "(`reset_parameters`) and is then sharded.",
        "+ # The root comes last": "The last call is for the root, which is the whole model. The weights are "
        "already sharded, layer by layer, and the policy makes the whole model return 32-bit numbers.",
        "+ def report_memory": "`report_memory` adds up the bytes that this process holds (`to_local`).",
        "+ line = (": "Rank 0 prints the lines of all ranks.",
        "--precision": "You can try these options. The notebook explains what they do.",
        "device_id": "NCCL starts at once, and no process waits longer than two minutes.",
    },
    "10_pipeline": {
        "grown from lesson 04": "As in lesson 04, torchrun starts two processes.",
        "+ You will see": "The docstring now explains stages and names the four schedules.",
        "OrderedDict": "`OrderedDict` keeps the names of a stage's layers.",
        "torch.distributed.pipelining": "PyTorch's stages and schedules replace DDP.",
        "BEGINNINGS": "A table lists the first layer of each stage.",
        "num_replicas=1": "All processes read the same batches.",
        "- model = workload": "Each process has an optimizer, and thus momentum, only for its own stages.",
        "schedule.step(": "One call runs the forward and the backward pass of all micro-batches. Only the "
        "last stage computes the loss, so the other stages add zero.",
        "- mean_loss": "The sum of the losses is no longer divided by the number of processes, because only "
        "the last stage adds to it.",
        "gather_object": "At the end rank 0 collects the weights of all stages.",
        "+ if rank == 0": "Rank 0 combines them and saves one model.",
        "+ if arguments.timeline": "With `--timeline`, the script records which process worked when.",
        "+ def build_stages": "This function splits the model. Each process keeps only its own layers.",
        "+ def make_schedule": "This function chooses the schedule.",
        "+ def count_correct(schedule": "The evaluation also goes through the pipeline. All "
        "micro-batches must have the same size, so copies of the first images fill up the last micro-batch. "
        "These copies are not counted.",
        "+ count = len(test_set)": "Only the last stage gets the model's output and counts correct answers.",
        "--schedule": "The script has options for the schedule and for the number of micro-batches.",
        "- workload.require_torchrun": "The script requires PyTorch 2.13 or newer.",
        "device_id = None": "NCCL starts at once.",
    },
    "11_tensor_parallel": {
        "grown from lesson 04": "As in lesson 04, torchrun starts two processes.",
        "+ You will see": "The script also prints which collectives a step needs.",
        "import timedelta": "No process waits longer than two minutes for another process.",
        "DTensor, Replicate": "A `DTensor` is a tensor that is sharded (`Shard`) or replicated (`Replicate`) "
        "over a device mesh, which is a group of processes.",
        "+     ColwiseParallel": "PyTorch has two ways to shard a matrix, and a function that applies them.",
        "ImageTransformer": "The model is a transformer with four heads, and each process gets some of the "
        "heads.",
        "num_replicas=1": "All processes start with the same weights, because they use the same seed, and "
        "train on the same images: the sampler no longer gives each process a share of a batch, but gives "
        "every process the whole batch.",
        "- # A DistributedSampler may": "All processes also evaluate the same images.",
        "- model = workload": "Each process builds the whole model, and `parallelize_module` shards it over "
        "a mesh of all processes.",
        "+ images, labels": "Before the training begins, the function `count_collectives`, which follows "
        "below, counts the collectives of one step.",
        "+ # Not foreach": "The optimizer updates parameters one by one, because only some of them are "
        "sharded.",
        "of all images already": "All processes compute the same loss. Adding the losses up would count each "
        "image several times.",
        "make_plan": "Before the model is saved, all processes gather its shards.",
        "+ def make_plan": "The plan begins with the layout of the activations between two blocks.",
        "+ plan = {": "Then come the matrices, alternately column-wise and row-wise. (`PrepareModuleInput` "
        "says how the input of a module is laid out: here every process has the whole input.)",
        "+ if sequence_parallel": "The option for sequence parallelism also shards the activations between "
        "these layers.",
        '+ plan["head"]': "Before the head, the positions are gathered again.",
        "+ def count_collectives": "This function takes a step with a learning rate of 0.",
        "+ for name, mode": "It prints which collectives the step needed.",
        "+ def gather": "`full_tensor()` gathers a `DTensor`. It is a collective.",
        "--sequence-parallel": "There is one more option, for sequence parallelism.",
        "+ if HEADS": "The script refuses a number of processes that does not divide the number of heads.",
        "device_id = None": "NCCL starts at once.",
    },
    "12_mesh": {
        "grown from lesson 11": "torchrun now starts four processes.",
        "- You will see": "The losses must be the same as in lesson 11.",
        "import fully_shard": "In addition to lesson 11's functions, the script imports `fully_shard`, as in "
        "lesson 09.",
        "    SequenceParallel,": "Sequence parallelism is left out, to keep the lesson to one idea.",
        "def train(rank, mesh": "`train` needs the mesh instead of the number of processes.",
        'mesh["data"].get_local_rank()': "Which images a process reads depends only on its coordinate in "
        "`data`. Two processes that share matrices must read the same images.",
        "shard(model, mesh)": "The function `shard`, defined below, shards the model over both dimensions.",
        'group=mesh.get_group("data")': "Losses are added up over `data` only, because the processes of a "
        "row have the same loss.",
        "part.unshard()": "Before the weights are saved, FSDP gathers the shards within each column.",
        "def shard(": "This is the main idea of the lesson: the plan first shards the model over `tensor`. "
        "FSDP then shards it over `data`, block by block, and finally the layers outside the blocks.",
        "+ def make_plan": "The plan begins as in lesson 11.",
        "RowwiseParallel()": "The matrices are sharded as in lesson 11.",
        "- if sequence_parallel": "The lines for sequence parallelism are gone.",
        "lr=0).step()": "FSDP makes every parameter a `DTensor`, so the optimizer can update all of them "
        "together, here and in training.",
        "--tensor-parallel": "An option sets how many processes share the heads. The other dimension of the "
        "mesh is `data`.",
        "- if HEADS": "By default two processes share the heads.",
        "+ tensor_size": "The script refuses sizes that do not form a mesh.",
        "make_mesh(device, data=": "The mesh is created here. Neighbouring ranks are in one row, and each "
        "dimension has a name. `make_mesh` calls PyTorch's `init_device_mesh`, and sets a time limit for "
        "each group.",
    },
    "13_gpt": {
        "grown from lesson 12": "As in lesson 12, torchrun starts four processes.",
        "- You will see": "The model writes a text before and after training, and the run can be killed.",
        "from itertools import islice": "`islice` skips the batches that a killed run has already done.",
        "from torch import nn": "The script builds the head of the model itself. It no longer counts the "
        "collectives, because the notebook counts them.",
        "loss_parallel,": "PyTorch has a loss for sharded scores.",
        "from parts import limericks": "The text and the snapshots are in files of their own.",
        "print_first_error": "If one process fails, the others fail too, because they wait for it. "
        "You see only the first error.",
        "limericks.load": "`limericks.load` returns the texts and the list of all characters in them.",
        "snapshots.load_newest": "All processes test on all texts.",
        "- model = ImageTransformer": "The model is new, and so is the optimizer: AdamW, with a learning "
        "rate that changes from step to step.",
        "+ snapshots = Snapshots": "If there is a snapshot, the run resumes from the newest one. Then the "
        "model writes.",
        "- loss_sum = torch": "The loop over images is gone.",
        "+ batches = workload": "The new loop begins after the last step that was saved.",
        "+ with loss_parallel": "Each character of a text has its own loss. Forward and backward are "
        "inside `loss_parallel()`, because no process has all scores.",
        "+ scheduler.step()": "After some steps, the run saves a snapshot, and crashes if you asked for it. "
        "The losses of all processes are averaged only here and at the end of an epoch.",
        "+ snapshots.save(epoch + 1": "Each epoch ends with a snapshot. The two newest snapshots are kept.",
        "def build_model": "This is lesson 12's transformer, but it reads characters, and no position may "
        "attend to a later one (`causal`). `Recent` turns each character into a vector, and mixes in the "
        "vectors of the characters just before it.",
        "+ def shard": "`shard` passes its options on to `fully_shard`.",
        "**options": "Notebook 13a uses these options to ask for 16-bit precision.",
        '"embedding.table"': "The tables of characters and positions are also sharded.",
        '"head"': "The head is also sharded: each process computes the scores of its own characters. The "
        "scores stay a DTensor (`use_local_output=False`), and `loss_parallel()` computes the loss from this "
        "DTensor.",
        "def average": "The function that counted collectives is gone.",
        "- for name, mode": "The lines that printed these counts are gone too.",
        "+ def average": "The losses are averaged over `data`.",
        "def count_correct": "The accuracy is the share of characters that the model predicts correctly.",
        "+ workload.end_with_parent()": "The options of this lesson are in `limericks.py`. If `torchrun` "
        "itself is killed, its processes also end instead of continuing to train.",
    },
    "14_tuning": {
        "Lesson 14": "The command. There is no launcher: you start each worker yourself.",
        "- You will see one line per epoch": "The docstring of lesson 01 describes its output.",
        "+ You will see one line per trial": "The docstring of lesson 14 says how workers join the search, "
        "and what a killed worker costs.",
        "from parts import search_options": "The options, the search that the workers share, and the results "
        "are in separate files.",
        "+ def search": "Each worker calls `search`, which keeps some training images for validation. Then "
        "it creates the search, or joins the existing one.",
        "+ while trial": "As long as there are trials, the worker trains one and tells the journal how it "
        "ended: complete, pruned or out of budget.",
        "+ except optuna.exceptions": "If the worker sent no heartbeat for too long, another worker has "
        "marked its trial as lost, so the worker drops the trial.",
        "+ best = search_results": "The first worker that runs out of trials tests the best model. The test "
        "images are read only here.",
        "+ def train(study": "`train` is lesson 01's, but the trial suggests the learning rate and the "
        "batch size.",
        "- size = arguments": "`train` no longer uses test images.",
        "- optimizer = torch": "The optimizer uses the learning rate that the trial suggested.",
        "shared_search.beat": "At each step, the worker may write a heartbeat and check the budget.",
        "should_prune": "The accuracy is measured on validation images. It goes into the journal, and "
        "Optuna compares it with earlier trials.",
        "+ torch.save(model": "Each trial saves its own weights.",
        "+ def count_correct(model, test_set": "The same function counts correct answers on validation "
        "images and on test images.",
        "search_options.add(parser)": "This lesson has its own options and checks.",
    },
    "15_context_parallel": {
        "grown from lesson 13": "The command. Two processes are enough for a ring.",
        "- You will see": "Lesson 15 writes no text.",
        "from functools import partial": "`partial` gives attention its group and its order in advance.",
        "FlopCounterMode": "No matrix is sharded by columns or rows.",
        "+ from torch.distributed.tensor import DTensor": "PyTorch's own counter counts the multiply-adds.",
        "from parts.ring_attention": "The ring is in a separate file.",
        "that share a text": "Processes that share a text load the same text, and each computes a part of "
        "it.",
        "positions_of": "The process determines its positions, and builds a model for longer texts than "
        "lesson 13's.",
        "+ # In one group": "The ring gets groups of its own, so FSDP's messages do not wait for it.",
        "few = min(60": "This lesson generates no text.",
        "with loss_parallel": "Each process has all scores of its positions, so it needs only the ordinary "
        "loss.",
        "+ scores = model(": "Each process takes its own positions of each text, and tells the model which "
        "they are.",
        "dist.all_reduce(correct, group=": "Correct answers are summed over the processes that share a "
        "text. They are not summed over `data`, because along `data` all processes test on the same texts.",
        "part.unshard()": "Only FSDP shards the weights here, so `gather` alone gathers them in full.",
        "nn.Embedding(characters": "Lesson 13's embedding mixes each character with the three before it, "
        "which may be on a different process. This embedding treats each character separately.",
        "def shard": "`shard` no longer shards matrices by columns and rows.",
        "+ def shard": "The new `shard` also gets the ring's process group and the order of the positions. "
        "FSDP no longer runs over `data` alone:",
        "- def make_plan": "The plan of lesson 11 is gone:",
        '- "blocks.*.attention.query"': "no matrix is sharded by columns or rows any more.",
        "+ block.attention.attend": "Instead, the loop over the blocks puts ring attention into each block. "
        "FSDP gets the whole mesh: it shards over the last dimension, replicates over the first, and "
        "averages the gradients over both. This is HSDP.",
        "over all processes": "The loss is the mean over all processes, because each has different positions "
        "or different texts.",
        "+ def compare_orders": "A new function measures attention alone, in both orders:",
        "+ for order in ORDERS": "first the multiply-adds of each process,",
        "+ start = time": "then the time of all processes together.",
        "count_correct(model, test_loader, positions": "Each process counts the correct answers at its own "
        "positions.",
        "limericks.options_of_training": "New options set the length of a text, the order of positions and "
        "the number of processes per text.",
        "if arguments.tensor_parallel": "The number of processes per text must divide the number of "
        "processes.",
        "+ if arguments.context_parallel": "By default, all processes share each text.",
        "+ if arguments.length": "A text must divide into two chunks per process.",
        "make_mesh": "The mesh has a dimension `context` where lesson 13 has `tensor`.",
    },
    "16_experts": {
        "grown from lesson 13": "The command. Two processes are enough.",
        "- You will see": "The docstring of lesson 13 describes its output.",
        "+ You will see": "Lesson 16 prints the same output as lesson 13, and the load of the experts.",
        "import fully_shard": "FSDP and tensor parallelism are removed.",
        "from parts import experts": "The layer with the experts is in a separate file.",
        "world_size = mesh.size()": "Each process reads its own texts, as in lesson 04.",
        "add_experts(model, mesh": "The experts are DTensors and the rest are plain tensors. AdamW cannot "
        "combine the two with `fused` or `foreach`.",
        "with loss_parallel": "Each process has all scores, so it needs only the ordinary loss.",
        "+ loss = cross_entropy": "The balancing loss is added. Each process divides by the number of "
        "processes, so that gradients only need to be summed.",
        "show_load": "After each epoch, the script prints the load of the experts in the last step.",
        "part.unshard()": "Without FSDP, no weights have to be unsharded.",
        "def add_experts": "`add_experts` replaces `shard`.",
        "- fully_shard(block": "Experts replace each feed-forward layer, and each process keeps its own "
        "experts.",
        "- def make_plan": "The plan of tensor parallelism is removed,",
        '- "blocks.*.attention.value': "with all its layers.",
        "+ def add_up_gradients": "Parameters that are not DTensors are replicated, so their gradients are "
        "summed over all processes. An expert's gradients need no collective.",
        "+ def show_load": "The load counts the tokens of all processes, so only rank 0 prints it.",
        "over all processes": "The loss is the mean over all processes, because each has its own texts.",
        "model(texts.to(device))": "Each process has all scores in the test too.",
        "experts.options": "The lesson has its own options, and trains for fewer epochs than lesson 13.",
        "experts.check": "The number of experts must be a multiple of the number of processes.",
        "make_mesh": "The mesh has one dimension: all processes.",
    },
    "17_one_mesh": {
        "grown from lesson 13": "The command. Eight processes are the fewest that shard in three dimensions.",
        "- You will see": "The docstring of lesson 13 describes its output.",
        "+ You will see": "The docstring of lesson 17 describes what each process holds.",
        "from functools import partial": "`partial` gives attention its group in advance, as in lesson 15.",
        "import fully_shard": "FSDP is removed so that you can see how gradients are averaged. The schedule "
        "comes from lesson 10.",
        "loss_parallel,": "The head is not sharded.",
        "one_mesh  # the other": "The separate file `one_mesh.py` checks the sizes and keeps one stage of "
        "the model. The ring is lesson 15's. Four blocks can be split into two stages or four.",
        'at the same position in "data"': "Processes with the same coordinate in `data` read the same texts.",
        "DataLoader(test_set, len": "All test texts form one batch. The schedule splits it into "
        "micro-batches of equal size.",
        "+ context_rank, context_size": "The process looks up its own positions, and builds a model for "
        "texts of this length.",
        "- optimizer = ": "`shard` keeps one stage of the model, and a schedule runs it.",
        "- snapshots = Snapshots": "There are no snapshots, and no text is generated,",
        "- for epoch in range(first": "so every run starts with the first epoch,",
        "- batches = workload.progress": "and every epoch with its first step.",
        "+ loss_sum = torch.zeros": "Each process takes its own positions of its texts.",
        "+ losses = []": "A step of the schedule runs forward and backward of all micro-batches, as in "
        "lesson 10. Then comes the new function, `average_gradients`.",
        "- loss_sum += loss": "Nothing is saved within an epoch.",
        "+ loss_sum += sum(": "After an epoch, the loss is summed over the three dimensions in which it "
        "differs, and divided by the sizes of `data` and `context`. Stages before the last add 0.",
        "- correct = count_correct": "Only the processes of the last stage count correct answers, each at "
        "its own positions.",
        "- done, loss_sum": "There is no snapshot here either,",
        "- limericks.write(": "and no text.",
        "- for part in": "Without FSDP, no weights have to be unsharded. The first stage gets the weights of "
        "the other stages.",
        "def build_model": "The model has four blocks, and lesson 15's embedding.",
        "def shard(": "`shard` covers three dimensions in four lines:",
        "- fully_shard(block": "matrices over `tensor`, positions over `context`, and blocks over "
        "`pipeline`.",
        '"embedding.table"': "Embedding and head are replicated over `tensor`,",
        '"head": Colwise': "so the scores are ordinary tensors.",
        "def average": "There is no snapshot that needs an average of the losses.",
        "+ def make_schedule": "Instead there is the schedule of a stage,",
        "+ def loss_of": "the loss of a micro-batch,",
        "+ def average_gradients": "and the main idea of this lesson: gradients are averaged over `data` "
        "and `context`, but not over `pipeline` and `tensor`.",
        "count_correct(schedule": "Only the last stage has the scores.",
        "one_mesh.options(parser)": "The default sizes are smaller than in lesson 13. There is an option for "
        "each dimension except `data`, which gets the remaining processes.",
        "- workload.require_torchrun": "Schedules of older PyTorch versions accept one batch size only.",
        "- workload.check(arguments)": "Lesson 13 checked only the size of `tensor`.",
        "+ workload.check(arguments, replicas=1)": "Here `one_mesh.check` checks which sizes fit,",
        "make_mesh": "and returns the sizes of the mesh.",
    },
    "18_language_model": {
        "grown from lesson 07": "The task and the command are new.",
        "- You will see": "The docstring of lesson 07 describes its output.",
        "+ You will see": "The docstring of lesson 18 describes what the run prints.",
        "from datetime import timedelta": "The process group gets a time limit.",
        "from parts import language_model": "The text, the model, the guard and the snapshots are separate "
        "files that you can read one at a time.",
        "+ @workload.print_first_error": "If a process fails, its error is printed before the errors of "
        "processes that waited for it. Machines that do not share the folder `out` are refused.",
        "- train_set, test_set": "Both sets contain windows of text. A window has 128 tokens, and for each "
        "of them the token that follows it.",
        "# A DistributedSampler may": "The held-out windows are chosen in `validate`.",
        "- model = workload.ConvNet": "The model is a GPT. `settle` runs DDP's first backward pass before "
        "the training, so that a resumed run adds up gradients in the same order.",
        "- optimizer = torch.optim.SGD": "AdamW, a learning rate that warms up and then falls, and, for "
        "GPUs without bf16, a `GradScaler` replace lesson 07's lines.",
        "+ guard = Guard": "The guard decides which steps are skipped.",
        "+ journal = Journal": "The journal saves and reports. If there is a snapshot, `resume` loads it.",
        "- for epoch in range": "The run counts steps instead of epochs. After each `last` step, it "
        "validates.",
        "- sampler.set_epoch": "`batches` goes on in the epoch's permutation after the steps that are done.",
        "+ batches = language_model": "A batch is tokens and the tokens that follow them.",
        "- micro_batches = zip": "The micro-batches are formed as in lesson 07.",
        "loss = cross_entropy(model(images)": "The loss of a micro-batch is the sum over its tokens, "
        "divided by all tokens of this process in the step.",
        "- optimizer.step()": "The gradients have been averaged here, so all ranks compute the same norm, "
        "and make the same decision.",
        "+ if journal.save_or_stop": "After each step, a snapshot may be due, or the run may have been told "
        "to stop.",
        "- mean_loss = loss_sum": "The report covers the steps since the previous report.",
        "correct = workload.count_correct": "The held-out loss replaces the number of correct answers.",
        "+ journal.report(last": "Rank 0 reports, and lets the model write.",
        "+ held_out = language_model.validate(model.module, test_set, len": "At the end, the model is "
        "validated on all held-out windows.",
        "+ journal.close()": "The folder is free for other runs again.",
        "workload.end_with_parent()": "If the terminal or the launcher is killed, the processes end, too.",
        "- option = parser": "The options, and the checks of their values, are in `language_model.py`.",
        "- size, parts = arguments": "This check has moved there, too.",
        "+ arguments.precision = ": "CPUs compute in fp32, and GPUs in bf16 or fp16.",
        "- dist.init_process_group": "While rank 0 computes the tokens, the other ranks wait, but for ten "
        "minutes at most. If the run was told to stop, its exit status says so.",
    },
    "port/after": {
        "before.py on several": "`torchrun` starts the script, and starts it again after a crash.",
        "import torch.distributed as dist": "Everything new comes from PyTorch, except `batch_norm.py`, "
        "a file that you can copy.",
        "rank, local_rank": "Each process reads its rank. The line that sets `device` stays as it was.",
        "def sum_of_ranks": "This function adds up numbers over all processes, and every process gets "
        "the sums.",
        "sum_of_ranks(loss_sum, correct)": "All processes get the same validation loss and accuracy. So "
        "they all lower the learning rate, or none does, and they agree on the best epoch.",
        "init_process_group": "Each process chooses its GPU and joins the process group. These lines are in "
        "`main`, because a worker of a loader may import the file again, and must not join the group.",
        "- if not os.path.exists": "Only rank 0 draws the pictures. Otherwise several processes would write "
        "the same files at the same time.",
        "dist.barrier()": "Each process waits here for all others, so nobody reads a file that rank 0 is "
        "still writing.",
        "DistributedSampler(train_set": "Each process trains on its share of every global batch. For "
        "validation, rank 0 of two processes takes pictures 0, 2, 4 and so on. If validation used a "
        "`DistributedSampler`, it might repeat a picture, which would then count twice.",
        "batch_norm.convert": "Batch norm now uses the pictures of all processes. `convert` keeps the "
        "parameters, and it comes before DDP.",
        "if args.resume and": "`torchrun` repeats the same command after a crash, so `--resume` is also "
        "given at the first start, when there is no checkpoint. Each process loads the checkpoint to its own "
        "GPU.",
        "DistributedDataParallel(model)": "DDP wraps the model after it has loaded its weights. The name "
        "`model` still means the plain model, so the lines that evaluate and save it stay as they are. The "
        "next four lines run one backward pass and discard its gradients. After its first backward pass, "
        "DDP adds up gradients in a different order. Without these lines, a killed run on three or more "
        "processes would end with different last digits than an uninterrupted run.",
        "- loss_sum = 0": "Every epoch has a new order. Every process draws its own random numbers, "
        "and they depend only on the seed, the epoch and the rank. So a resumed run needs no saved "
        "random state.",
        "seen += len(labels)": "The training loss is the mean over the pictures of all processes. If the "
        "sampler repeats a picture, `seen` counts it too.",
        'print(f"epoch': "Only rank 0 prints.",
        'torch.save(model.state_dict(), f"': "Only rank 0 writes the best weights.",
        "checkpoint.new": "Only rank 0 writes the checkpoint, into a new file that then replaces the old "
        "one. If rank 0 is killed while it writes, the old file is still there.",
        '- print(f"best': "At the end, nothing may refer to the process group any more. Otherwise a "
        "process that uses gloo may abort after its work is done.",
    },
    "port/after_iterations": {
        "before_iterations.py on several": "`torchrun` starts this script too.",
        "from contextlib import nullcontext": "There is no `DistributedSampler`, because the script has "
        "no DataLoader.",
        "rank, local_rank": "This line is the same as in `after.py`.",
        "def get_batch(data, iteration, part)": "The global batch depends only on the seed, the "
        "iteration and the number of the micro-batch. All processes draw the same batch, and each takes "
        "its rows.",
        "get_batch(data, 0, part)": "Each process evaluates its rows, and an all-reduce adds up the "
        "means. All shares have the same size, so the mean of the means is right.",
        "init_process_group": "The first lines of `main` are the same as in `after.py`, too. There are no "
        "loaders, and so no workers that import the file again: these lines could be at module level.",
        "if args.resume and": "`--resume` also works when there is no checkpoint yet.",
        "DistributedDataParallel(model)": "As in `after.py`, a first backward pass lets DDP find its "
        "order of summation.",
        "no_sync": "DDP sends gradients only in the last micro-batch of an iteration. Clipping comes "
        "after it, when all processes hold the same gradients, and doesn't change.",
        "val_loss = evaluate(": "`evaluate` contains an all-reduce, so every process calls it. Rank 0 "
        "prints the result and writes the file.",
    },
}
