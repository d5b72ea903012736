"""Small programs as they are found in public, of images and vectors: each trains a network of its own for some steps.

A function returns its losses, or what it measures. Weights and batches come from NumPy, by name and number, so that
they are the same whatever library ``torch`` is.
"""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def data(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def labels(count, classes, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, classes, count))


def same(model, scale=0.3):
    with torch.no_grad():
        for number, (_, p) in enumerate(model.named_parameters()):
            p.copy_(data(*p.shape, seed=number) * scale)
    return model.to(device)


def fit(model, loss_of, steps=3, make=lambda p: optim.SGD(p, lr=0.05, momentum=0.9)):
    optimizer, losses = make(model.parameters()), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def regression_by_hand():
    x, w, b = data(20, 3), torch.zeros(3, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    y, losses = x.mm(torch.tensor([[1.0], [-2.0], [0.5]])) + 3.0, []
    for _ in range(5):
        loss = F.smooth_l1_loss(x @ w + b, y)
        loss.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= 0.5 * p.grad
                p.grad.zero_()
        losses.append(loss.item())
    return losses


def perceptron_with_schedule():
    model = same(nn.Sequential(nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(16, 4)))
    optimizer = optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    scheduler, losses = CosineAnnealingLR(optimizer, T_max=4), []
    for epoch in range(4):
        for i in range(2):
            x, y = data(8, 6, seed=10 * epoch + i), labels(8, 4, epoch + i)
            optimizer.zero_grad()
            loss = nn.CrossEntropyLoss(label_smoothing=0.1)(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    return [*losses, scheduler.get_last_lr()[0]]


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1)
        self.drop = nn.Dropout2d(0.0)
        self.fc = nn.Linear(8 * 5 * 5, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.drop(self.conv2(x))), 2)
        return F.log_softmax(self.fc(torch.flatten(x, 1)), dim=1)


def digits():
    model = same(Digits(), 0.1)
    losses = fit(model, lambda i: F.nll_loss(model(data(4, 1, 12, 12, seed=i)), labels(4, 10, i)),
                 make=lambda p: optim.Adadelta(p, lr=1.0))
    model.eval()
    with torch.no_grad():
        right = model(data(9, 1, 12, 12)).argmax(dim=1, keepdim=True).eq(labels(9, 10).view(-1, 1)).sum().item()
    return [*losses, right]


class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mu, self.logvar = nn.Linear(12, 16), nn.Linear(16, 3), nn.Linear(16, 3)
        self.fc3, self.fc4 = nn.Linear(3, 16), nn.Linear(16, 12)

    def forward(self, x, eps):
        h = F.relu(self.fc1(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + eps * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def variational_autoencoder():
    model = same(Variational())

    def loss_of(step):
        x = torch.sigmoid(data(5, 12, seed=step))
        recon, mu, logvar = model(x, data(5, 3, seed=step + 50))
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return F.binary_cross_entropy(recon, x, reduction="sum") + kl
    return fit(model, loss_of, make=lambda p: optim.Adam(p, lr=1e-2))


def adversarial():
    generator = same(nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 6), nn.Tanh()))
    critic = same(nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1), nn.Sigmoid()))
    g, d = (optim.Adam(m.parameters(), lr=0.01, betas=(0.5, 0.999)) for m in (generator, critic))
    criterion, losses = nn.BCELoss(), []
    for i in range(3):
        real, fake = torch.ones(5, 1), torch.zeros(5, 1)
        made = generator(data(5, 4, seed=i))
        g.zero_grad()
        g_loss = criterion(critic(made), real)
        g_loss.backward()
        g.step()
        d.zero_grad()
        d_loss = (criterion(critic(data(5, 6, seed=i + 9)), real) + criterion(critic(made.detach()), fake)) / 2
        d_loss.backward()
        d.step()
        losses += [g_loss.item(), d_loss.item()]
    return losses


def convolutional_adversarial():
    def init_weights(m):
        if m.__class__.__name__.find("BatchNorm") != -1:
            nn.init.ones_(m.weight)
            nn.init.zeros_(m.bias)
    generator = same(nn.Sequential(nn.ConvTranspose2d(5, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
                                   nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh()))
    critic = same(nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.2),
                                nn.Conv2d(8, 1, 4, 1, 0, bias=False), nn.Sigmoid()))
    generator.apply(init_weights)
    critic.apply(init_weights)
    g, d = optim.RMSprop(generator.parameters(), lr=1e-3), optim.RMSprop(critic.parameters(), lr=1e-3)
    losses = []
    for i in range(3):
        critic.zero_grad()
        label = torch.full((4,), 1.0)
        err_real = F.binary_cross_entropy(critic(data(4, 1, 8, 8, seed=i)).view(-1), label)
        err_real.backward()
        fake = generator(data(4, 5, 1, 1, seed=i))
        label.fill_(0.0)
        err_fake = F.binary_cross_entropy(critic(fake.detach()).view(-1), label)
        err_fake.backward()
        d.step()
        generator.zero_grad()
        label.fill_(1.0)
        err = F.binary_cross_entropy(critic(fake).view(-1), label)
        err.backward()
        g.step()
        losses += [err_real.item(), err_fake.item(), err.item()]
    return losses


def wasserstein_with_clipped_weights():
    critic = same(nn.Sequential(nn.Linear(3, 8), nn.ELU(), nn.Linear(8, 1)))
    optimizer, losses = optim.RMSprop(critic.parameters(), lr=5e-2), []
    for i in range(4):
        optimizer.zero_grad()
        loss = -torch.mean(critic(data(6, 3, seed=i))) + torch.mean(critic(data(6, 3, seed=i + 40) + 1))
        loss.backward()
        optimizer.step()
        for p in critic.parameters():
            p.data.clamp_(-0.2, 0.2)
        losses.append(loss.item())
    return losses


def denoising_autoencoder():
    model = same(nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.SELU(), nn.Conv2d(4, 8, 3, 2, 1),
                               nn.Hardswish(), nn.ConvTranspose2d(8, 4, 3, 2, 1, 1), nn.Mish(),
                               nn.ConvTranspose2d(4, 1, 3, 2, 1, output_padding=1)), 0.2)
    return fit(model, lambda i: F.mse_loss(model(data(3, 1, 8, 8, seed=i) * 0.5), data(3, 1, 8, 8, seed=i)))


class Basic(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or inplanes != planes:
            self.shortcut = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        out += self.shortcut(x)
        return F.relu(out)


def residual():
    model = same(nn.Sequential(Basic(2, 4), Basic(4, 8, 2), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(),
                               nn.Linear(8, 5)))
    return fit(model, lambda i: F.cross_entropy(model(data(4, 2, 8, 8, seed=i)), labels(4, 5, i)),
               make=lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True))


def depthwise_separable():
    def block(inp, oup, stride):
        return nn.Sequential(nn.Conv2d(inp, inp, 3, stride, 1, groups=inp, bias=False), nn.BatchNorm2d(inp), nn.ReLU6(),
                             nn.Conv2d(inp, oup, 1, 1, 0, bias=False), nn.BatchNorm2d(oup), nn.ReLU6(inplace=True))
    model = same(nn.Sequential(block(3, 6, 1), block(6, 8, 2), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8, 3)))
    return fit(model, lambda i: F.cross_entropy(model(data(4, 3, 8, 8, seed=i)), labels(4, 3, i)))


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(2 + 3 * i, 3, 3, padding=1) for i in range(3)])
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(11, 4, 1), nn.SiLU(), nn.Conv2d(4, 11, 1),
                                     nn.Hardsigmoid())

    def forward(self, x):
        features = [x]
        for layer in self.layers:
            features.append(torch.tanh(layer(torch.cat(features, 1))))
        y = torch.cat(features, 1)
        return (y * self.squeeze(y)).mean([2, 3])


def dense_with_squeeze_and_excitation():
    model = same(Dense())
    return fit(model, lambda i: F.cross_entropy(model(data(3, 2, 6, 6, seed=i)), labels(3, 11, i)))


class Mask(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.last = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(12, 2, 1)

    def forward(self, x):
        skip = F.gelu(self.down(x))
        y = self.up(F.gelu(self.middle(F.max_pool2d(skip, 2))))
        return self.last(torch.cat([skip, F.pad(y, (0, skip.size(3) - y.size(3), 0, skip.size(2) - y.size(2)))], dim=1))


def segmentation():
    model = same(Mask())

    def loss_of(i):
        logits, target = model(data(2, 1, 7, 7, seed=i)), labels(98, 2, i).view(2, 7, 7)
        p = F.softmax(logits, dim=1)[:, 1]
        dice = 1 - (2 * (p * target.float()).sum() + 1) / (p.sum() + target.sum() + 1)
        return F.cross_entropy(logits, target) + dice
    return fit(model, loss_of)


def super_resolution():
    model = same(nn.Sequential(nn.Conv2d(1, 6, 5, 1, 2), nn.ReLU(), nn.Conv2d(6, 4, 3, 1, 1), nn.PixelShuffle(2)), 0.2)
    losses = fit(model, lambda i: F.mse_loss(model(data(2, 1, 6, 6, seed=i)), data(2, 1, 12, 12, seed=i)))
    with torch.inference_mode():
        psnr = 10 * torch.log10(1 / F.mse_loss(model(data(1, 1, 6, 6)), data(1, 1, 12, 12)))
    return [*losses, psnr.item()]


def gram(x):
    b, c, h, w = x.size()
    features = x.view(b, c, h * w)
    return features.bmm(features.transpose(1, 2)).div(c * h * w)


def style_transfer():
    net = same(nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU()))
    for p in net.parameters():
        p.requires_grad_(False)
    content, style = net(data(1, 3, 8, 8)), gram(net(data(1, 3, 8, 8, seed=7)))
    image, losses = data(1, 3, 8, 8, seed=3).requires_grad_(True), []
    optimizer = optim.Adam([image], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        y = net(image)
        variation = (image[..., 1:] - image[..., :-1]).abs().mean()
        loss = F.mse_loss(y, content) + 100 * F.mse_loss(gram(y), style) + 0.1 * variation
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def siamese():
    net = same(nn.Sequential(nn.Linear(5, 8), nn.PReLU(), nn.Linear(8, 3)))

    def loss_of(i):
        apart = F.normalize(net(data(6, 5, seed=i))) - F.normalize(net(data(6, 5, seed=i + 30)))
        distance = torch.sqrt(apart.pow(2).sum(1) + 1e-6)
        alike = labels(6, 2, i).float()
        return (alike * distance ** 2 + (1 - alike) * torch.clamp(1.0 - distance, min=0) ** 2).mean()
    return fit(net, loss_of)


def image_retrieval():
    net = same(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(),
                             nn.Linear(36, 6)))

    def loss_of(i):
        anchor, near, far = (net(data(4, 1, 7, 7, seed=3 * i + j)) for j in range(3))
        return F.relu((anchor - near).norm(dim=1) - (anchor - far).norm(dim=1) + 1.0).mean()
    losses = fit(net, loss_of)
    with torch.no_grad():
        index = F.normalize(net(data(12, 1, 7, 7, seed=90)), dim=1)
        scores, places = (F.normalize(net(data(3, 1, 7, 7, seed=91)), dim=1) @ index.t()).topk(4, dim=1)
        far = torch.cdist(index, index).max()
    return [*losses, *scores.flatten().tolist(), *places.flatten().tolist(), far.item()]


def contrastive():
    net = same(nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4)))

    def loss_of(i):
        z = F.normalize(torch.cat([net(data(4, 6, seed=i)), net(data(4, 6, seed=i) + 0.1)]), dim=1)
        similar = torch.mm(z, z.t()) / 0.5
        similar = similar.masked_fill(torch.eye(8).bool(), float("-inf"))
        return F.cross_entropy(similar, torch.arange(8).roll(4))
    return fit(net, loss_of)


def distillation():
    teacher = same(nn.Linear(6, 5)).eval()
    student = same(nn.Sequential(nn.Linear(6, 3), nn.Softplus(), nn.Linear(3, 5)))

    def loss_of(i):
        x, t = data(7, 6, seed=i), 4.0
        with torch.no_grad():
            soft = F.softmax(teacher(x) / t, dim=1)
        logits = student(x)
        return nn.KLDivLoss(reduction="batchmean")(F.log_softmax(logits / t, dim=1), soft) * t * t + F.cross_entropy(
            logits, labels(7, 5, i), weight=torch.tensor([1.0, 2.0, 1.0, 0.5, 1.0]))
    return fit(student, loss_of)


def average_of_weights():
    model = same(nn.Linear(4, 2))
    ema, optimizer, losses = copy.deepcopy(model), optim.SGD(model.parameters(), lr=0.2), []
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)
    for i in range(4):
        loss = F.l1_loss(model(data(5, 4, seed=i)), data(5, 2, seed=i))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            for slow, fast in zip(ema.parameters(), model.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
        losses.append(float(loss))
    return [*losses, ema(data(1, 4)).sum().item()]


def fourier_features():
    b = data(2, 8, seed=5)
    model = same(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)))

    def encoded(x):
        y = 2 * np.pi * x @ b
        return torch.cat([torch.sin(y), torch.cos(y)], dim=-1)
    axis = torch.linspace(0, 1, 5)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    return fit(model, lambda i: F.huber_loss(model(encoded(grid)).squeeze(-1), grid.prod(dim=1)), steps=4)


def style_of_bytes():
    model, criterion = same(nn.Linear(3, 2)), nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 0.5]))
    loss = criterion(model(data(4, 3)), labels(8, 2).view(4, 2).float())
    loss.backward()
    return [float(f"{loss.item():.3f}"), float(f"{model.weight.grad.norm():.4f}")]


PROGRAMS = [regression_by_hand, perceptron_with_schedule, digits, variational_autoencoder, adversarial,
            convolutional_adversarial, wasserstein_with_clipped_weights, denoising_autoencoder, residual,
            depthwise_separable, dense_with_squeeze_and_excitation, segmentation, super_resolution, style_transfer,
            siamese, image_retrieval, contrastive, distillation, average_of_weights, fourier_features, style_of_bytes]
