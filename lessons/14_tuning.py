"""Lesson 14, grown from lesson 01: many short training runs at once, to find the best settings.

    python lessons/14_tuning.py

You will see one line per trial: learning rate, batch size, accuracy. You start one
worker. To add a worker to the search, start the same command in a second terminal,
with another GPU in CUDA_VISIBLE_DEVICES, or on another machine that shares this disk.
After a minute, all workers stop and one of them tests the best model. If a worker is
killed, only its trial is lost, whereas torchrun would stop all workers.
"""

import time

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler

import workload
from parts import search_options, search_results, shared_search
from parts.shared_search import optuna


def search(arguments):
    device = workload.pick_device()
    torch.set_num_threads(1)  # with more threads, workers would compete for cores
    train_set, test_set = workload.load_images(arguments, device)
    train_set, validation_set = search_options.split_images(train_set, arguments)
    study = shared_search.open_study(arguments)

    while trial := shared_search.next_trial(study, arguments):
        try:
            accuracy = train(study, trial, train_set, validation_set, device, arguments)
            study.tell(trial, accuracy, skip_if_finished=True)
        except optuna.TrialPruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED, skip_if_finished=True)
        except shared_search.OutOfBudget:
            study.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
        except optuna.exceptions.UpdateFinishedTrialError:
            pass  # this worker was silent for too long, so another one marked the trial as lost
        search_results.show_trial(study, trial.number)

    best = search_results.find_best(study, arguments)
    if search_results.is_first_to_test(arguments):  # test once, so no decision depends on the test images
        model = workload.ConvNet(test_set.images.shape[1:], arguments.width).to(device)
        model.load_state_dict(torch.load(shared_search.weights_of(arguments, best.number)))
        correct = count_correct(model, test_set, device)
        search_results.finish(study, best, correct.item() / len(test_set), arguments)


def train(study, trial, train_set, validation_set, device, arguments):
    lr = trial.suggest_float("lr", *arguments.lr, log=True)
    size = trial.suggest_categorical("batch_size", arguments.batch_size)
    workload.set_seed(arguments.seed)
    order = torch.Generator()
    sampler = RandomSampler(train_set, generator=order)
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        order.manual_seed(arguments.seed + epoch)  # otherwise --seed would not change the image order
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
            shared_search.beat(study, trial, arguments)  # other workers mark a silent worker's trial as lost
        scheduler.step()
        mean_loss = loss_sum.item() / len(train_loader)
        seconds = time.perf_counter() - start

        accuracy = count_correct(model, validation_set, device).item() / len(validation_set)
        speed = len(train_loader) * size / seconds
        shared_search.report(trial, epoch, mean_loss, accuracy, speed)
        if epoch < arguments.epochs and trial.should_prune():
            raise optuna.TrialPruned  # at least half of the completed trials were better at this epoch

    # Move the model to the CPU first: a machine without a GPU can load GPU tensors only with map_location.
    torch.save(model.cpu().state_dict(), shared_search.weights_of(arguments, trial.number))
    return accuracy


@torch.no_grad()
def count_correct(model, test_set, device):
    test_loader = DataLoader(test_set, 500, collate_fn=workload.collate)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    return correct


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    search_options.add(parser)
    arguments = parser.parse_args()
    search_options.check(arguments)
    search(arguments)
