"""What is told of a plan: numbers worked out by hand, numbers that the engine then shows, and names of layers.

In the small traces a mebibyte takes a millisecond each way, latency none; times are in ms, sizes in MiB.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from flags import NET

import train
from minidl import Runtime, nn
from minidl.memory.guided.sequence import Followed, Returns
from minidl.meta import int64
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.plan.costs import Costs
from minidl.plan.plan import Action, Plan
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.policies import create
from minidl.report.decisions import Decision, decisions
from minidl.report.explain import explanation, observed
from minidl.report.layers import layer_names
from minidl.report.sentences import sentence, sentences

MIB = 1 << 20
COSTS = Costs(1e-3 / MIB, 1e-3 / MIB, 0.0)
OUT, DROP = Action.SWAP_OUT, Action.DROP


def trace(calls: Sequence[tuple[Sequence[int], Sequence[int], float]], sizes: dict[int, float]) -> Trace:
    """Calls as (inputs, outputs, ms); every tensor of positive id is freed by its last use."""
    last = {t: k for k, (inputs, outputs, _) in enumerate(calls) for t in (*inputs, *outputs) if t >= 0}
    return Trace(tuple(TraceCall(f"op{k}", tuple(inputs), tuple(outputs), ms / 1e3, (),
                                 tuple(t for t, at in last.items() if at == k))
                       for k, (inputs, outputs, ms) in enumerate(calls)),
                 {t: TraceTensor(t, int(size * MIB), t < 0) for t, size in sizes.items()})


def explained(t: Trace, plan: Plan) -> dict[int, Decision]:
    return {d.tensor_id: d for d in decisions(t, plan, COSTS)}


# 0 (4 MiB) is made at 0 and wanted again at 3 + 5 + 2 = 10; 3 ms make it.
WIDE = trace([((-1,), (0,), 3), ((), (1,), 5), ((), (2,), 2), ((0,), (3,), 1)], {-1: 1, 0: 4, 1: 1, 2: 1, 3: 1})


def test_a_decision_names_its_gap_and_what_both_ways_would_cost():
    # FT: 10 - 4 - (0 + 4) = 2. Recomputing frees 4 MiB for 3 ms.
    d, = decisions(WIDE, Plan({(0, 1): OUT}), COSTS)
    assert (d.op, d.nbytes, d.action, d.count, d.evict, d.back) == ("op0", 4 * MIB, OUT, 1, 0, 3)
    assert (d.evict_s, d.back_s) == pytest.approx((0.0, 10e-3))
    assert d.free_time_s == pytest.approx(2e-3) and d.swap_seconds == 0.0
    assert d.recompute_seconds == pytest.approx(3e-3) and d.msps == pytest.approx(4 * MIB / 3e-3)


def test_a_gap_that_is_too_short_costs_what_sticks_out():
    # The gap from 3 on: 0 is used at 10 and, 1 ms later, again.
    t = trace([((-1,), (0,), 10), ((0,), (1,), 1), ((0,), (2,), 1)], {-1: 1, 0: 4, 1: 1, 2: 1})
    d, = decisions(t, Plan({(0, 2): OUT}), COSTS)
    assert d.free_time_s == pytest.approx(-7e-3) and d.swap_seconds == pytest.approx(7e-3)  # 11 - 4 - (10 + 4)


def test_what_cannot_be_made_again_has_no_msps():
    d, = decisions(WIDE, Plan({(-1, 1): OUT}), COSTS)
    assert d.recompute_seconds is None and d.msps is None and d.op == ""
    assert d.back == len(WIDE.calls)  # and nothing wants it back


@pytest.mark.parametrize(("trigger", "lost"), [
    ((1, 1), 0.0),   # after call 1, at 8: there at 12, which is 2 too late
    (None, 4.0),     # on demand
    ((0, 1), 0.0),   # after call 0, at 3: there at 7
])
def test_a_swap_in_is_expected_as_late_as_its_in_trigger_makes_it(trigger, lost):
    plan = Plan({(0, 1): OUT}, {trigger: (0,)} if trigger else {})
    assert explained(WIDE, plan)[0].expected_s == pytest.approx((2.0 if trigger == (1, 1) else lost) / 1e3)


def test_swap_ins_queue_and_a_wait_gives_the_next_one_time():
    # Both start at 2; 0 arrives at 6, wanted at 3: 3 late, so that call 2 starts at 6. 1 arrives at 10, wanted at 7.
    t = trace([((), (0, 1), 1), ((), (2,), 1), ((), (3,), 1), ((0,), (4,), 1), ((1,), (5,), 1)],
              {0: 4, 1: 4, 2: 1, 3: 1, 4: 1, 5: 1})
    found = explained(t, Plan({(0, 1): OUT, (1, 1): OUT}, {(2, 1): (0, 1)}))
    assert found[0].expected_s == pytest.approx(3e-3) and found[1].expected_s == pytest.approx(3e-3)


def test_what_comes_by_in_a_replay_is_expected_to_cost_nothing_more():
    # 0 -> 1 -> 2, made in 1, 2 and 4 ms, all dropped; 2 is wanted first, then 1 and 0: one replay of 7 ms.
    t = trace([((-1,), (0,), 1), ((0,), (1,), 2), ((1,), (2,), 4), ((), (3,), 1), ((2,), (4,), 1), ((1,), (5,), 1),
               ((0,), (6,), 1)], {-1: 1, 0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1})
    found = explained(t, Plan({(0, 2): DROP, (1, 2): DROP, (2, 1): DROP}))
    assert [found[n].expected_s for n in (0, 1, 2)] == pytest.approx([0.0, 0.0, 7e-3])
    assert found[1].recompute_seconds == pytest.approx(2e-3)  # alone: from 0, which is still live


def test_decisions_come_largest_first_and_unknown_accesses_are_left_out():
    found = decisions(WIDE, Plan({(2, 1): OUT, (0, 1): DROP, (77, 1): OUT, (0, 9): OUT}), COSTS)
    assert [d.tensor_id for d in found] == [0, 2]


@pytest.mark.parametrize(("returns", "action", "word"), [
    (Returns(late={(0, 1): 2e-3}), OUT, "late 2.0"), (Returns(late={(0, 1): 0.0}), OUT, "in time"),
    (Returns(paged_in={(0, 1): 4e-3}), OUT, "on demand 4.0"),
    (Returns(recomputed={(0, 1): 3e-3}), DROP, "replayed 3.0"),
    (Returns(), DROP, "came by"), (Returns(late={(0, 2): 1.0}), OUT, "stayed"),
])
def test_what_was_observed_is_told_of_the_same_gap(returns, action, word):
    d, = decisions(WIDE, Plan({(0, 1): action}), COSTS)
    assert observed(d, len(WIDE.calls), returns) == word


def test_the_table_is_cut_and_the_totals_are_not():
    plan = Plan({(0, 1): OUT, (1, 1): DROP}, {(1, 1): (0,)}, predicted_seconds=13e-3)
    followed = Followed(plan, 14e-3, 5e-3, Returns(late={(0, 1): 2e-3}))
    lines = explanation(WIDE, followed, decisions(WIDE, plan, COSTS), {0: "block.conv"}, rows=1).splitlines()
    assert "the 1 largest of 2" in lines[0] and len(lines) == 1 + 1 + 1 + 4
    assert lines[2].split()[:4] == ["block.conv", "op0", "4.0", "MiB"]
    # Both copies of 4 MiB take 8 ms; alone the swap would fit, so its column is 0.0.
    assert lines[3] == "  swapped: 1 tensors, 4.0 MiB, copies 8.0 ms, expected to lose 2.0 ms"
    assert "copies  swap alone  again alone" in lines[1] and lines[2].split()[11:14] == ["8.0", "0.0", "3.0"]
    assert lines[0].endswith("alone: if nothing else left")
    assert lines[4] == "  dropped: 1 tensors, 1.0 MiB, expected to lose 0.0 ms"
    assert "0.0 ms of replays; 5.0 ms of waiting for copies, of these 2.0 for swap-ins" in lines[5]
    assert lines[6] == "  step: 11.0 ms without memory management, 13.0 predicted, 14.0 observed"
    nothing = Followed(Plan(), 1.0, 0.0, Returns())
    assert explanation(WIDE, nothing, decisions(WIDE, Plan(), COSTS), {}, rows=1) == "plan: nothing leaves the device"


# Layers --------------------------------------------------------------------------------------------------------------
class Block(nn.Module):
    """Two layers of its own and an operation that belongs to no layer below it."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.last(self.norm(self.conv(x))) * 2.0


def test_tensors_go_by_the_innermost_module_and_gradients_by_their_layer():
    with Runtime("sim:p100", policy="passive") as runtime:
        model = nn.Sequential(Block(), nn.Flatten(), nn.Linear(4 * 64, 5))
        optimizer = SGD(model.parameters(), lr=0.1)
        with layer_names(model, runtime.executor) as names:
            for _ in range(2):
                with runtime.iteration():
                    loss = cross_entropy(model(runtime.tensor(None, shape=(2, 3, 8, 8))),
                                         runtime.tensor(None, shape=(2,), dtype=int64))
                    loss.backward()
                    optimizer.step()
                    t = runtime.trace()
        assert not any("forward" in vars(module) for module in model.modules())
        found = names.of(t)
        layers = {(call.op, found.get(out)) for call in t.calls for out in call.outputs}
        ops = {op: {layer for name, layer in layers if name == op} for op, _ in layers}
        assert ops["conv2d"] == {"0.conv", "0.last"} and ops["conv2d_dgrad"] == {"0.last"}
        assert {layer for op, of in ops.items() if op.startswith("batch_norm") for layer in of} == {"0.norm"}
        assert "0" in {layer for _, layer in layers}  # the product with 2, in no layer of the block
        assert "2" in ops["linear"] and ops["upload"] == {None}
        assert {found[p.tensor_id] for p in model.parameters()} == {name for name, _ in model.named_parameters()}


# In a run ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", ["capuchin", "capuchin-recompute", "auto"])
def test_the_engine_shows_what_is_expected_of_replays(policy):
    with Runtime("sim:p100", policy=create(policy), memory_budget="28MiB") as runtime:
        model = nn.Sequential(*[layer for n in range(8) for layer in (nn.Conv2d(3 if not n else 16, 16, 3, padding=1),
                                                                      nn.Tanh())], nn.Flatten(), nn.Linear(4096, 5))
        optimizer = SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            with runtime.iteration():
                loss = cross_entropy(model(runtime.tensor(None, shape=(256, 3, 16, 16))),
                                     runtime.tensor(None, shape=(256,), dtype=int64))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                del loss
        trace, last = runtime.followed()
        found = decisions(trace, last.plan, runtime.guide.costs)
        assert found and last.plan.evictions.keys() == {d.key for d in found}
        replayed = last.returns.recomputed
        assert sum(d.expected_s for d in found if d.action is DROP) == pytest.approx(sum(replayed.values()), rel=0.05)
        for d in found:
            assert (d.action is DROP) or d.key not in replayed


def test_train_py_explains_the_plan_it_ends_with(capsys):
    assert train.main([*NET, "--policy", "capuchin", "--steps", "8", "--explain", "5"]) == 0
    told = capsys.readouterr().out
    table = told[told.index("plan: what leaves the device"):].splitlines()
    assert "the 5 largest of" in table[0] and len(table) == 1 + 1 + 5 + 4
    assert any(line.startswith("layer1.") for line in table[2:7])


def test_a_decision_in_words_says_why_what_else_and_what_came_of_it():
    d, = decisions(WIDE, Plan({(0, 1): OUT}), COSTS)
    text = sentence(d, len(WIDE.calls), Returns(late={(0, 1): 0.0}), "block.conv")
    assert text == ("Tensor 0 (block.conv, op0, 4.0 MiB) is copied to the host after call 0 and is used again by "
                    "call 3, 10.0 ms later. Both copies fit into that time, with 2.0 ms to spare; to recompute it "
                    "would take 3.0 ms. It was expected to lose 4.0 ms, since its copy back starts late or waits for "
                    "others; observed: in time.")
    d, = decisions(WIDE, Plan({(0, 1): DROP}), COSTS)
    text = sentence(d, len(WIDE.calls), Returns(recomputed={(0, 1): 3e-3}), "")
    assert text == ("Tensor 0 (op0, 4.0 MiB) is dropped after call 0 and is used again by call 3, 10.0 ms later. To "
                    "recompute it takes 3.0 ms, which saves 1.3 GiB for each second; a swap could be hidden if "
                    "it were the only one. It was expected to lose 3.0 ms; observed: replayed 3.0 ms.")


def test_the_swap_of_what_is_not_used_again_is_one_copy_in_the_rest_of_the_iteration():
    d, = decisions(WIDE, Plan({(-1, 1): OUT}), COSTS)
    assert d.free_time_s == pytest.approx(10e-3) and d.copy_seconds == pytest.approx(1e-3)  # 11 - 1
    assert observed(d, 4, Returns(late={(-1, 0): 2e-3, (-1, 1): 0.0})) == "late 2.0"  # in the next iteration
    text = sentence(d, len(WIDE.calls), Returns(), "")
    assert text.endswith("observed: it was not used again.")
    assert ("after call 0 and is not used again in this iteration. Its copy fits into the rest of it, with 10.0 ms to "
            "spare; it cannot be recomputed.") in text
    text = sentence(replace(d, free_time_s=-4e-3), len(WIDE.calls), Returns(), "")
    assert "Its copy takes 4.0 ms more than the rest of it" in text


def test_a_decision_in_words_says_why_it_stayed_or_came_by_and_why_it_costs_more_than_alone():
    out, = decisions(WIDE, Plan({(0, 1): OUT}), COSTS)
    drop, = decisions(WIDE, Plan({(0, 1): DROP}), COSTS)
    assert "observed: it stayed, as it was used again before its memory was needed." in sentence(
        out, 4, Returns(late={(0, 2): 1.0}), "")
    text = sentence(replace(drop, expected_s=7 * drop.recompute_seconds), 4, Returns(), "")
    assert "lose 21.0 ms, since its replay also computes other dropped tensors; observed: the replay of another" in text
    for d, way in ((drop, "lose 3.0 ms;"), (replace(out, free_time_s=-4e-3), "lose 4.0 ms;")):
        assert way in sentence(d, 4, Returns(late={(0, 1): 0.0}), "")


def test_a_drop_whose_swap_could_be_hidden_alone_says_how_busy_the_link_is_already():
    dropped, = decisions(WIDE, Plan({(0, 1): DROP}), COSTS)  # 4 MiB each way at 1 ms/MiB: 8 ms, and 10 ms for them
    swapped = replace(dropped, tensor_id=9, action=OUT, free_time_s=-20e-3)  # 30 ms of copies in these 10
    first, second = sentences([dropped, swapped], 3, Returns(), {})
    assert "if it were the only one: its copies would add 8.0 ms to 30.0 ms of this plan's others. It was" in first
    assert "if it were the only one" not in second
    assert sentences([dropped, swapped], 3, Returns(), {}, told=1) == [first]
    assert "if it were the only one. It was" in sentences([dropped], 3, Returns(), {})[0]


def test_a_quiet_run_prints_the_explanation_that_was_asked_for_and_nothing_else(capsys):
    flags = ["--model", "lenet", "--batch", "100", "--device", "sim:p100", "--memory-budget", "60%", "--policy",
             "capuchin", "--steps", "6", "--explain"]
    assert train.main(flags) == 0
    whole = capsys.readouterr().out
    assert train.main([*flags, "--quiet"]) == 0
    told = capsys.readouterr()
    assert told.err == "" and told.out.startswith("plan: ") and whole.endswith(told.out)
