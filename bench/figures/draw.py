#!/usr/bin/env python3
"""Draws a figure for every result file: bench/results/PLAN.ndjson -> bench/results/PLAN.svg.

    draw.py bench/results

What a plan's figure shows follows from its samples: a time series, goodput over message size, or
goodput by variant. The paper's values stand beside ours where it has them.
"""

import json
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (after the back end is chosen)

# Without these, the same result would give another file each time.
matplotlib.rcParams["svg.hashsalt"] = "kumihimo"
METADATA = {"Date": None}

# The multilink paper, section 6.2, in MB/s: two Gigabit links, interrupt coalescing on.
PAPER_MB_PER_S = {"single": 112, "ri2n": 222, "rr": 215}

# The paper's figure 15: seconds from the cut to detection, and from the heal to full rate.
PAPER_DETECT_S = 2.0

MB_PER_S = 8e6  # bit/s


def read(path):
    """The outcome and the samples of a result file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return lines[0], lines[1:]


def cases(samples):
    """Samples by case, in the order of the file."""
    grouped = {}
    for sample in samples:
        grouped.setdefault(sample["case"], []).append(sample)
    return grouped


def draw_series(axes, case, samples):
    """Goodput over time, the first repetition of each variant, in bins of 100 ms as the paper has."""
    for sample in samples:
        if sample["repetition"] or "series" not in sample:
            continue
        series = sample["series"]
        width = max(1, round(100 / series["bin_ms"]))
        bins = series["bytes"]
        rates = [sum(bins[at : at + width]) / 0.1 / 1e6 for at in range(0, len(bins) - width + 1, width)]
        axes.plot([at / 10 for at in range(len(rates))], rates, label=sample["variant"], linewidth=1)
        for event in series["events"]:
            axes.axvline(event["at_s"], color="tab:red", linewidth=0.6, linestyle="--")
            if event["name"] == "cut" and case == "figure-15":
                axes.axvspan(event["at_s"], event["at_s"] + PAPER_DETECT_S, color="0.9", zorder=0)
    axes.set(xlabel="s", ylabel="MB/s", ylim=(0, None))


def draw_sizes(axes, _case, samples):
    """Goodput over message size: the median of the repetitions."""
    for variant in dict.fromkeys(sample["variant"] for sample in samples):
        points = {}
        for sample in samples:
            if sample["variant"] == variant:
                points.setdefault(sample["size_bytes"], []).append(sample["figures"]["goodput_bps"])
        sizes = sorted(points)
        rates = [statistics.median(points[size]) / MB_PER_S for size in sizes]
        axes.plot(sizes, rates, marker=".", label=variant)
    for variant, rate in PAPER_MB_PER_S.items():
        axes.axhline(rate, color="0.7", linewidth=0.6)
        axes.annotate(f"paper: {variant}", (64, rate), fontsize=6, color="0.4", va="bottom")
    axes.set(xscale="log", xlabel="message, bytes", ylabel="MB/s", ylim=(0, None))


def draw_bars(axes, case, samples):
    """Goodput by variant, a dot a repetition, the paper's value as a line across the bar."""
    variants = list(dict.fromkeys(sample["variant"] for sample in samples))
    for at, variant in enumerate(variants):
        rates = [s["figures"]["goodput_bps"] / MB_PER_S for s in samples if s["variant"] == variant]
        axes.bar(at, statistics.median(rates), color="tab:blue", alpha=0.5)
        axes.plot([at] * len(rates), rates, "k.", markersize=3)
        if case == "tcp-1" and variant in PAPER_MB_PER_S:
            axes.hlines(PAPER_MB_PER_S[variant], at - 0.4, at + 0.4, color="tab:red", linewidth=1)
    axes.set_xticks(range(len(variants)), variants, rotation=30, ha="right", fontsize=7)
    axes.set(ylabel="MB/s", ylim=(0, None))


def painter(samples):
    """Which kind of figure the samples make."""
    if any("series" in sample for sample in samples):
        return draw_series
    if any("size_bytes" in sample for sample in samples):
        return draw_sizes
    return draw_bars


def draw(path):
    """One figure for one result file, a panel a case."""
    outcome, samples = read(path)
    panels = {
        case: of_case
        for case, of_case in cases(samples).items()
        if all("goodput_bps" in sample["figures"] for sample in of_case)
    }
    if not panels:
        return None
    figure, grid = plt.subplots(len(panels), 1, figsize=(7, 2.8 * len(panels)), squeeze=False)
    for axes, (case, of_case) in zip(grid[:, 0], panels.items()):
        paint = painter(of_case)
        paint(axes, case, of_case)
        axes.set_title(f"{outcome['plan']}: {case}", fontsize=9)
        if paint is not draw_bars:
            axes.legend(fontsize=7)
    figure.tight_layout()
    target = path.with_suffix(".svg")
    figure.savefig(target, metadata=METADATA)
    plt.close(figure)
    return target


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bench/results")
    for path in sorted(folder.glob("*.ndjson")):
        target = draw(path)
        print(f"{path.name}: {target.name if target else 'nothing to draw'}")


if __name__ == "__main__":
    main()
