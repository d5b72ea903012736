"""A convolutional network for small images, written for PyTorch: convolutions, dropout, Adadelta, a rate that falls."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR


class Net(nn.Module):
    def __init__(self, rate=0.25):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.conv2 = nn.Conv2d(4, 8, 3, 1)
        self.dropout1 = nn.Dropout(rate)
        self.dropout2 = nn.Dropout(2 * rate)
        self.fc1 = nn.Linear(128, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = torch.flatten(x, 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, device, batches, optimizer):
    model.train()
    losses = []
    for data, target in batches:
        data, target = torch.tensor(data).to(device), torch.tensor(target).to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test(model, device, batches):
    model.eval()
    loss, correct, count = 0, 0, 0
    with torch.no_grad():
        for data, target in batches:
            data, target = torch.tensor(data).to(device), torch.tensor(target).to(device)
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
            count += len(target)
    return loss / count, correct / count


def main(start, batches, *, epochs=2, rate=0.25):
    """Losses of each step, losses and accuracies of each epoch, and the parameters at the end."""
    torch.manual_seed(1)
    device = "cpu"
    model = Net(rate).to(device)
    if start is not None:
        model.load_state_dict({name: torch.tensor(value) for name, value in start.items()})
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    losses, scores = [], []
    for _ in range(epochs):
        losses += train(model, device, batches, optimizer)
        scores.append(test(model, device, batches))
        scheduler.step()
    return losses, scores, {name: p.detach().numpy() for name, p in model.named_parameters()}
