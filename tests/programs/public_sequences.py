"""Small programs as they are found in public, of sequences, graphs and decisions; as ``public_images``."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cpu")


def data(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def tokens(*shape, count=11, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, count, shape))


def same(model, scale=0.3):
    with torch.no_grad():
        for number, (_, p) in enumerate(model.named_parameters()):
            p.copy_(data(*p.shape, seed=number) * scale)
    return model.to(device)


def fit(model, loss_of, steps=3, make=lambda p: optim.Adam(p, lr=0.01)):
    optimizer, losses = make(model.parameters()), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Words(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.encoder = nn.Embedding(11, 6)
        self.rnn = getattr(nn, kind)(6, 6, 2)
        self.decoder = nn.Linear(6, 11)
        self.decoder.weight = self.encoder.weight

    def forward(self, x, hidden):
        y, hidden = self.rnn(self.encoder(x), hidden)
        return F.log_softmax(self.decoder(y).view(-1, 11), dim=1), hidden

    def init_hidden(self, batch):
        weight = next(self.parameters())
        if isinstance(self.rnn, nn.LSTM):
            return weight.new_zeros(2, batch, 6), weight.new_zeros(2, batch, 6)
        return weight.new_zeros(2, batch, 6)


def language_model(kind):
    model, losses = same(Words(kind)), []
    hidden = model.init_hidden(3)
    for i in range(3):
        x = tokens(5, 3, seed=i)
        hidden = tuple(h.detach() for h in hidden) if isinstance(hidden, tuple) else hidden.detach()
        model.zero_grad()
        output, hidden = model(x[:-1], hidden)
        loss = F.nll_loss(output, x[1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.5)
        losses.append(loss.item())
    return losses


def lstm_words():
    return language_model("LSTM")


def gru_words():
    return language_model("GRU")


def elman_words():
    return language_model("RNN")


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 4, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        y, (h, c) = self.lstm(self.embedding(x))
        return self.fc(torch.cat((h[-2, :, :], h[-1, :, :]), dim=1) + y.amax(1))


def sentiment():
    model = same(Reader())
    loader = DataLoader(TensorDataset(tokens(9, 6), tokens(9, count=2)), batch_size=4, shuffle=False)
    optimizer, losses = optim.Adam(model.parameters(), lr=0.02), []
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(11, 6), nn.Embedding(11, 6)
        self.encoder, self.decoder = nn.GRU(6, 6), nn.GRUCell(12, 6)
        self.out = nn.Linear(12, 11)

    def forward(self, src, tgt):
        seen, hidden = self.encoder(self.source(src))
        h, made = hidden[0], []
        for step in self.target(tgt).unbind(0):
            weights = F.softmax(torch.einsum("lnd,nd->nl", seen, h), dim=1)
            context = torch.bmm(weights.unsqueeze(1), seen.transpose(0, 1)).squeeze(1)
            h = self.decoder(torch.cat([step, context], 1), h)
            made.append(self.out(torch.cat([h, context], 1)))
        return torch.stack(made)


def translation_with_attention():
    model = same(Translator())
    return fit(model, lambda i: F.cross_entropy(
        model(tokens(5, 3, seed=i), tokens(4, 3, seed=i + 7)).view(-1, 11), tokens(12, seed=i + 9)))


class Positions(nn.Module):
    def __init__(self, width, most=20):
        super().__init__()
        pe = torch.zeros(most, width)
        position = torch.arange(0, most, dtype=torch.float).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        pe[:, 0::2] = torch.sin(position * rate)
        pe[:, 1::2] = torch.cos(position * rate)
        self.register_buffer("pe", pe.unsqueeze(1))

    def forward(self, x):
        return x + self.pe[:x.size(0), :]


class EncoderWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(11, 8), Positions(8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(8, 11)

    def forward(self, x):
        mask = torch.log(torch.tril(torch.ones(len(x), len(x))))
        return self.decoder(self.encoder(self.position(self.embed(x) * math.sqrt(8)), mask=mask))


def transformer_words():
    model = same(EncoderWords())
    return fit(model, lambda i: F.cross_entropy(model(tokens(6, 3, seed=i)).view(-1, 11), tokens(18, seed=i + 5)))


def transformer_translation():
    embed, net = same(nn.Embedding(11, 8)), same(nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True))
    mask = nn.Transformer.generate_square_subsequent_mask(4)

    def loss_of(i):
        y = net(embed(tokens(3, 5, seed=i)), embed(tokens(3, 4, seed=i + 3)), tgt_mask=mask)
        return F.mse_loss(y, data(3, 4, 8, seed=i))
    return fit(net, loss_of)


class Block(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width, bias=False)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "act": nn.GELU(approximate="tanh"),
                                  "c_proj": nn.Linear(4 * width, width)})
        self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (y.view(B, T, self.heads, C // self.heads).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = F.softmax(att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf")), dim=-1)
        x = x + self.c_proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))
        m = self.mlp
        return x + m.c_proj(m.act(m.c_fc(self.ln_2(x))))


def gpt():
    wte, blocks = nn.Embedding(11, 8), nn.Sequential(Block(), Block())
    model = same(nn.Sequential(wte, blocks, nn.Linear(8, 11, bias=False)))
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    losses = fit(model, lambda i: F.cross_entropy(model(tokens(2, 7, seed=i)).view(-1, 11), tokens(14, seed=i + 5),
                                                  ignore_index=-1),
                 make=lambda _: optim.AdamW([{"params": decay, "weight_decay": 0.1},
                                             {"params": rest, "weight_decay": 0.0}], lr=1e-2,
                                            betas=(0.9, 0.95), fused=False))
    with torch.no_grad():
        x = tokens(1, 3)
        for _ in range(4):
            logits = model(x)[:, -1, :] / 0.8
            v, _ = torch.topk(logits, 5)
            logits[logits < v[:, [-1]]] = -float("Inf")
            x = torch.cat((x, logits.argmax(dim=-1, keepdim=True)), dim=1)
    return [*losses, *x[0].tolist()]


def rotated(x, cos, sin):
    real, imaginary = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1).flatten(3)


class Llama(nn.Module):
    def __init__(self, width=8, heads=4, kv_heads=2):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, kv_heads * self.size, bias=False) for _ in range(2))
        self.wo, self.norm1, self.norm2 = nn.Linear(width, width, bias=False), nn.RMSNorm(width), nn.RMSNorm(width)
        self.w1, self.w3 = nn.Linear(width, 16, bias=False), nn.Linear(width, 16, bias=False)
        self.w2 = nn.Linear(16, width, bias=False)
        freqs = 1.0 / (10000.0 ** (torch.arange(0, self.size, 2).float() / self.size))
        angles = torch.outer(torch.arange(12).float(), freqs)
        self.register_buffer("cos", torch.cos(angles), persistent=False)
        self.register_buffer("sin", torch.sin(angles), persistent=False)

    def forward(self, x):
        n, t, c = x.shape
        y = self.norm1(x)
        q = self.wq(y).view(n, t, self.heads, self.size)
        k, v = (w(y).view(n, t, self.kv_heads, self.size) for w in (self.wk, self.wv))
        cos, sin = (table[:t].view(1, t, 1, self.size // 2) for table in (self.cos, self.sin))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = (torch.repeat_interleave(z, self.heads // self.kv_heads, dim=2) for z in (k, v))
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).contiguous().view(n, t, c))
        y = self.norm2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


def llama():
    model = same(nn.Sequential(nn.Embedding(11, 8), Llama(), nn.RMSNorm(8), nn.Linear(8, 11, bias=False)))
    return fit(model, lambda i: F.cross_entropy(model(tokens(2, 6, seed=i)).view(-1, 11), tokens(12, seed=i + 5)))


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, 4)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 5, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        y = self.embed(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.cls.expand(y.shape[0], -1, -1), y], dim=1) + self.pos
        return self.head(self.layer(y)[:, 0])


def vision_transformer():
    model = same(Patches())
    return fit(model, lambda i: F.cross_entropy(model(data(3, 3, 8, 8, seed=i)), tokens(3, count=4, seed=i)))


def dilated_convolutions_of_sound():
    model = same(nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.GLU(dim=1), nn.Conv1d(2, 4, 3, padding=2, dilation=2),
                               nn.Softsign(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(20, 3)))
    return fit(model, lambda i: F.cross_entropy(model(data(4, 1, 10, seed=i)), tokens(4, count=3, seed=i)))


def graph():
    generator = np.random.default_rng(3)
    adjacency = torch.tensor((generator.random((7, 7)) > 0.6).astype("float32")) + torch.eye(7)
    degree = adjacency.sum(1).pow(-0.5)
    adjacency = torch.outer(degree, degree) * adjacency
    w1, w2 = (nn.Parameter(data(*s, seed=i) * 0.3) for i, s in enumerate(((5, 8), (8, 3))))
    optimizer, losses = optim.Adam([w1, w2], lr=0.01, weight_decay=5e-4), []
    for _ in range(3):
        optimizer.zero_grad()
        out = F.log_softmax(torch.mm(adjacency, torch.mm(F.relu(torch.mm(adjacency, data(7, 5).mm(w1))), w2)), dim=1)
        loss = F.nll_loss(out[:4], tokens(7, count=3)[:4])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def graph_attention():
    w, a = nn.Parameter(data(5, 4) * 0.3), nn.Parameter(data(8, 1, seed=1) * 0.3)
    seen = torch.tensor(np.random.default_rng(3).random((6, 6)) > 0.5) | torch.eye(6).bool()
    optimizer, losses = optim.Adagrad([w, a], lr=0.1), []
    for i in range(3):
        h = data(6, 5) @ w
        e = F.leaky_relu(torch.matmul(h, a[:4]) + torch.matmul(h, a[4:]).T, 0.2)
        attention = F.softmax(torch.where(seen, e, -9e15 * torch.ones_like(e)), dim=1)
        loss = F.cross_entropy(F.elu(attention @ h), tokens(6, count=4, seed=i))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def words_in_context():
    centre, around = same(nn.Embedding(11, 5)), same(nn.Embedding(11, 5))
    optimizer, losses = optim.SGD([*centre.parameters(), *around.parameters()], lr=0.5), []
    for i in range(3):
        v, u = centre(tokens(6, 1, seed=i)), around(tokens(6, 4, seed=i + 5))
        scores = torch.bmm(v, u.permute(0, 2, 1)).squeeze(1)
        loss = -(F.logsigmoid(scores[:, 0]) + F.logsigmoid(-scores[:, 1:]).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def factors_of_a_matrix():
    users, items = same(nn.Embedding(6, 3)), same(nn.Embedding(7, 3))
    bias = nn.Parameter(torch.zeros(7))
    optimizer, losses = optim.Adam([*users.parameters(), *items.parameters(), bias], lr=0.05, amsgrad=True), []
    for i in range(3):
        u, m = tokens(9, count=6, seed=i), tokens(9, count=7, seed=i + 4)
        loss = (((users(u) * items(m)).sum(1) + bias[m] - data(9, seed=i)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def reinforce():
    policy = same(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    optimizer, losses = optim.Adam(policy.parameters(), lr=1e-2), []
    for i in range(3):
        actions, rewards, returns, total = tokens(6, count=2, seed=i), np.arange(6.0), [], 0.0
        for r in rewards[::-1]:
            total = r + 0.99 * total
            returns.insert(0, total)
        returns = torch.tensor(returns, dtype=torch.float32)
        returns = (returns - returns.mean()) / (returns.std() + 1e-7)
        logs = F.log_softmax(policy(data(6, 4, seed=i)), dim=1).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = torch.stack([-log * value for log, value in zip(logs, returns, strict=True)]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def value_learning():
    online, target = same(nn.Linear(4, 3)), nn.Linear(4, 3)
    target.load_state_dict(online.state_dict())
    memory = [(data(4, seed=i), int(i % 3), float(i), data(4, seed=i + 20)) for i in range(6)]
    optimizer, losses = optim.RMSprop(online.parameters(), lr=0.01, momentum=0.9), []
    for i in range(3):
        states, actions, rewards, later = zip(*memory[i:i + 4], strict=True)
        q = online(torch.stack(states)).gather(1, torch.tensor(actions).view(-1, 1))
        with torch.no_grad():
            expected = torch.tensor(rewards) + 0.9 * target(torch.stack(later)).max(1).values
        loss = nn.SmoothL1Loss()(q, expected.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        for p in online.parameters():
            p.grad.data.clamp_(-1, 1)
        optimizer.step()
        losses.append(loss.item())
    return losses


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(5, 4, bias=False), nn.ModuleList([nn.Linear(5, 5) for _ in range(4)])

    def forward(self, x):
        weights, chosen = torch.topk(F.softmax(self.gate(x), dim=-1), 2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.nonzero(chosen == number, as_tuple=True)
            if rows.numel():
                out = out.index_add(0, rows, weights[rows, place].unsqueeze(-1) * expert(x[rows]))
        return out


def mixture_of_experts():
    model = same(Experts())
    return fit(model, lambda i: F.mse_loss(model(data(6, 5, seed=i)), data(6, 5, seed=i + 8)))


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.linear = nn.LSTMCell(1, 6), nn.Linear(6, 1)

    def forward(self, x):
        made = []
        h = torch.zeros(x.size(0), 6, dtype=torch.double)
        c = torch.zeros(x.size(0), 6, dtype=torch.double)
        for step in x.split(1, dim=1):
            h, c = self.lstm1(step, (h, c))
            made += [self.linear(h)]
        return torch.cat(made, dim=1)


def time_sequence():
    model = same(Steps())
    model.double()
    x = torch.sin(torch.arange(7).double().unsqueeze(0) * torch.tensor([[0.5], [0.7], [1.1]]).double())
    optimizer, losses = optim.LBFGS(model.parameters(), lr=0.8, max_iter=4), []
    criterion = nn.MSELoss()

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x[:, :-1]), x[:, 1:])
        losses.append(loss.item())
        loss.backward()
        return loss
    for _ in range(2):
        optimizer.step(closure)
    return losses


def diffusion():
    betas = torch.linspace(1e-4, 0.02, 10)
    alphas = torch.cumprod(1.0 - betas, dim=0)
    model = same(nn.Sequential(nn.Linear(4 + 6, 16), nn.SiLU(), nn.Linear(16, 4)))

    def embedded(t):
        angles = t[:, None].float() * torch.exp(-math.log(10000) * torch.arange(0, 3).float() / 2)[None]
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def loss_of(i):
        x, noise, t = data(5, 4, seed=i), data(5, 4, seed=i + 9), tokens(5, count=10, seed=i)
        a = alphas[t].view(-1, 1)
        return F.mse_loss(model(torch.cat([a.sqrt() * x + (1 - a).sqrt() * noise, embedded(t)], 1)), noise)
    return fit(model, loss_of)


def normalizing_flow():
    nets = same(nn.ModuleList([nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(2)]))

    def loss_of(i):
        z, total = data(6, 4, seed=i), 0.0
        for number, net in enumerate(nets):
            a, b = z.chunk(2, dim=1)
            s, t = net(a).chunk(2, dim=1)
            s = torch.tanh(s)
            b = b * s.exp() + t
            z, total = (torch.cat([b, a], 1) if number % 2 else torch.cat([a, b], 1)), total + s.sum(1)
        return (0.5 * z.pow(2).sum(1) - total).mean()
    return fit(nets, loss_of)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1).float()


def binary_network():
    model = same(nn.ModuleList([nn.Linear(5, 6), nn.Linear(6, 3)]))
    return fit(model, lambda i: F.cross_entropy(model[1](Straight.apply(model[0](data(6, 5, seed=i)))),
                                                tokens(6, count=3, seed=i)))


PROGRAMS = [lstm_words, gru_words, elman_words, sentiment, translation_with_attention, transformer_words,
            transformer_translation, gpt, llama, vision_transformer, dilated_convolutions_of_sound, graph,
            graph_attention, words_in_context, factors_of_a_matrix, reinforce, value_learning, mixture_of_experts,
            time_sequence, diffusion, normalizing_flow, binary_network]
