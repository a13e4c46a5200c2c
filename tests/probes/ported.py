"""What a script has after the ten lines of the page "Your own script", whose rows are tried with it."""

import tempfile

import torch
from their_models import *  # noqa: F403
from their_models import connect, gather
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

connect()
torch.manual_seed(0)
seed, epoch, epochs, batch_size, size = 1, 1, 2, 8, 4
train_set = TensorDataset(torch.arange(48.0).view(48, 1), torch.arange(48))
model = nn.Linear(1, 1)
loss_function = nn.functional.mse_loss
ddp_model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
folder = gather(tempfile.mkdtemp())[0]
