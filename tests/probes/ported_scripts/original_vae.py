"""vae.py before it was ported."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

seed, batch_size = 3, 16
torch.manual_seed(seed)


class Images(Dataset):
    def __init__(self, count):
        self.images = torch.rand(count, 12, generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], index


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(12, 6), nn.Linear(3, 12)

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        if self.training:
            mean = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.decode(mean)), mean, log_variance


def loss_of(outputs, x):
    images, mean, log_variance = outputs
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return F.binary_cross_entropy(images, x, reduction="sum") + divergence


train_set, test_set = Images(48), Images(21)
train_loader = DataLoader(train_set, batch_size, shuffle=True)
test_loader = DataLoader(test_set, batch_size)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(1, 3):
    model.train()
    loss_sum = 0
    for images, _ in train_loader:
        optimizer.zero_grad()
        loss = loss_of(model(images), images)
        loss.backward()
        optimizer.step()
        loss_sum += loss.item()
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for images, _ in test_loader:
            test_loss += loss_of(model(images), images).item()
    print(f"epoch {epoch}: average loss {loss_sum / len(train_set):.4f}")
    print(f"test loss {test_loss / len(test_set):.4f}")
