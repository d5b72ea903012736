"""A small language model written for PyTorch: causal attention over views, tied weights, groups of parameters, and
sampling from the k likeliest."""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, width, heads, context, fused):
        super().__init__()
        assert width % heads == 0
        self.c_attn = nn.Linear(width, 3 * width, bias=True)
        self.c_proj = nn.Linear(width, width, bias=True)
        self.drop = nn.Dropout(0.0)
        self.heads, self.width = heads, width
        self.fused = fused and hasattr(F, "scaled_dot_product_attention")
        if not self.fused:
            self.register_buffer("bias", torch.tril(torch.ones(context, context)).view(1, 1, context, context))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.width, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = self.drop(F.softmax(scores, dim=-1)) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, width, heads, context, fused):
        super().__init__()
        self.ln_1 = Norm(width, bias=True)
        self.attn = Attention(width, heads, context, fused)
        self.ln_2 = Norm(width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Model(nn.Module):
    def __init__(self, vocabulary, context, width, heads, layers, fused):
        super().__init__()
        self.context = context
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width),
            "wpe": nn.Embedding(context, width),
            "h": nn.ModuleList([Block(width, heads, context, fused) for _ in range(layers)]),
            "ln_f": Norm(width, bias=True),
        })
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._start)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * layers))

    def _start(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def parameters_count(self):
        return sum(p.numel() for p in self.parameters()) - self.transformer.wpe.weight.numel()

    def forward(self, idx, targets=None):
        device = idx.device
        b, t = idx.size()
        assert t <= self.context
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    def optimizer(self, rate, decay):
        named = {name: p for name, p in self.named_parameters() if p.requires_grad}
        groups = [{"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": decay},
                  {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))

    @torch.no_grad()
    def generate(self, idx, count, temperature=1.0, top_k=None):
        for _ in range(count):
            given = idx if idx.size(1) <= self.context else idx[:, -self.context:]
            logits, _ = self(given)
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            probs = F.softmax(logits, dim=-1)
            idx = torch.cat((idx, torch.multinomial(probs, num_samples=1)), dim=1)
        return idx


def main(start, batches, *, vocabulary=11, context=8, width=16, heads=2, layers=2, fused=False, top_k=1,
         begin=((0, 3),)):
    """Losses of each step, sampled tokens, and the parameters at the end."""
    torch.manual_seed(2)
    model = Model(vocabulary, context, width, heads, layers, fused)
    if start is not None:
        model.load_state_dict({name: torch.tensor(value) for name, value in start.items()}, strict=False)
    optimizer = model.optimizer(3e-3, 0.1)
    losses = []
    for step, (tokens, targets) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - 0.1 * step)
        logits, loss = model(torch.tensor(tokens), torch.tensor(targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    model.eval()
    tokens = model.generate(torch.tensor(begin), 10, temperature=0.8, top_k=top_k).tolist()
    return losses, tokens, {name: p.detach().numpy() for name, p in model.named_parameters()}
