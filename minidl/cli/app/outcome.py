"""Computes a run's ``Result``, the numbers that --json writes, from its measured steps, test score and data."""

from dataclasses import replace

from minidl.cli.app.options import Options
from minidl.cli.app.sizes import Sizes
from minidl.data import BadFiles, Data
from minidl.report.meter import Meter
from minidl.report.result import LargestOp, RankMemory, Result
from minidl.training.metrics import Score


def result_of(options: Options, sizes: Sizes, meter: Meter, score: Score | None, data: Data, bad: BadFiles, *,
              unmanaged_seconds: float | None = None) -> Result:
    """Return the numbers of a run of at least one step. score: that on the test data; None if it was not measured.
    unmanaged_seconds: the modelled seconds of a step with unlimited memory; None if they are not modelled.

    With several ranks this is an exchange, which all must call: the Result of each lists the memory of all.
    If the device computes values while its clock is simulated (``cpu:virtual``), times of that clock are None.
    """
    runtime = meter.runtime
    stats, device = runtime.stats(), runtime.device
    scores = score.named if score else {}
    simulated = not device.has_values
    timed = simulated or device.wall_clock
    seconds = meter.median(lambda step: step.seconds)
    allowance = runtime.guide.allowance if runtime.guide is not None else None
    swapped_out = int(meter.median(lambda step: step.grown.swapped_out_bytes))
    swapped_in = int(meter.median(lambda step: step.grown.swapped_in_bytes))
    recomputed = int(meter.median(lambda step: step.grown.recomputed_bytes))
    stall_seconds = meter.median(lambda step: step.grown.stall_seconds) if timed else None
    ranks = () if runtime.ranks is None else tuple([
        replace(each, rank=number) for number, each in enumerate(runtime.ranks.agree(RankMemory(
            runtime.ranks.rank, stats.budget_bytes, stats.peak_bytes, stats.host_peak_bytes, swapped_out, swapped_in,
            recomputed, stall_seconds)))])
    return Result(
        model=options.model, batch=sizes.batch, device=device.name, policy=runtime.policy.name,
        precision=runtime.precision.name, budget_bytes=stats.budget_bytes, peak_bytes=stats.peak_bytes,
        unmanaged_peak_bytes=sizes.demand.unmanaged_peak_bytes,
        largest_op=LargestOp(sizes.demand.largest_op, sizes.demand.largest_op_bytes),
        step_seconds=seconds, items_per_second=meter.batch / seconds,
        swapped_out_bytes=swapped_out, swapped_in_bytes=swapped_in, recomputed_bytes=recomputed,
        recompute_seconds=meter.median(lambda step: step.grown.recompute_seconds) if timed else None,
        stall_seconds=stall_seconds,
        host_peak_bytes=stats.host_peak_bytes, loss=None if simulated else meter.steps[-1].loss,
        accuracy=scores.get("top1"), accuracy_top5=scores.get("top5"), dice=scores.get("dice"),
        masked_lm_loss=scores.get("masked_lm_loss"), masked_lm_accuracy=scores.get("masked_lm_accuracy"),
        next_token_loss=scores.get("next_token_loss"), next_sentence_accuracy=scores.get("next_sentence_accuracy"),
        data_seconds=meter.median(lambda step: step.data_seconds),
        examples_per_second=data.feed.per_second if data.feed is not None else None, skipped_files=len(bad),
        planning_seconds=allowance.seconds if allowance is not None and allowance.limited else None,
        planning_share=allowance.share if allowance is not None else None,
        moved_bytes=int(meter.median(lambda step: step.grown.moved_bytes)),
        slid_seconds=meter.median(lambda step: step.grown.slid_seconds) if timed else None,
        slower_seconds=meter.median(lambda step: step.grown.slower_seconds) if timed else None,
        search_seconds=meter.unsettled_seconds() if runtime.guide is not None and timed else None,
        unmanaged_step_seconds=unmanaged_seconds, ranks=ranks, seed=options.seed)
