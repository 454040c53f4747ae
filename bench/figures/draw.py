#!/usr/bin/env python3
"""Draws a figure for every result file: bench/results/PLAN.ndjson -> bench/results/PLAN.svg.

    draw.py bench/results

What a plan's figure shows follows from its samples: a time series, goodput over message size, or
goodput by variant; the plans of kumi tcp name their figure in TCP_FIGURES. The papers' values stand beside
ours where they have them.
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

# Yoshitomi and Taura, figure 7: the most that their gather reached of what the root's link allows.
PAPER_GATHER_RATIO = 0.85

MB_PER_S = 8e6  # bit/s

# Plans of collectives and of kumi tcp: the figure that is drawn, its label, what divides it.
TCP_FIGURES = {
    "coll-allgather": ("efficiency_ratio", "of what the busiest link allows", 1),
    "coll-allreduce": ("efficiency_ratio", "of what the busiest link allows", 1),
    "coll-alltoall": ("efficiency_ratio", "of what the busiest link allows", 1),
    "coll-bcast": ("efficiency_ratio", "of what the busiest link allows", 1),
    "coll-collapse": ("efficiency_ratio", "of what the root's link allows", 1),
    "coll-gather": ("efficiency_ratio", "of what the root's link allows", 1),
    "coll-tree": ("efficiency_ratio", "of what the root's link allows", 1),
    "coll-wan": ("efficiency_ratio", "of what the root's link allows", 1),
    "tcp-alltoall": ("efficiency_ratio", "of what the busiest port allows", 1),
    "tcp-cost": ("cpu_ns_per_byte", "CPU, ns a byte", 1),
    "tcp-explain": ("right_cause_ratio", "of the lost time, named rightly", 1),
    "tcp-fairness": ("neighbour_bps", "a neighbour's MB/s", MB_PER_S),
    "tcp-npb": ("total_s", "s", 1),
    "tcp-over-link": ("goodput_bps", "MB/s", MB_PER_S),
    "tcp-phases": ("goodput_bps", "MB/s", MB_PER_S),
    "tcp-restart": ("burst_median_vs_ideal_ratio", "times of what the path allows", 1),
    "tcp-stall": ("of_allowed_ratio", "of what the pattern allows", 1),
}

# Matsuda et al., table 2 (Mop/s of 16 ranks): standard TCP, and its columns under our variants' names.
PAPER_NPB_MOPS = {
    "BT": (2835.48, {"kumi-tcp-rto": 2606.81, "kumi-tcp-pce": 3520.48, "kumi-tcp-no-phases": 3887.74, "kumi-tcp": 3571.02}),
    "CG": (293.86, {"kumi-tcp-rto": 318.37, "kumi-tcp-pce": 325.94, "kumi-tcp-no-phases": 372.48, "kumi-tcp": 371.99}),
    "EP": (82.23, {"kumi-tcp-rto": 82.23, "kumi-tcp-pce": 82.22, "kumi-tcp-no-phases": 82.22, "kumi-tcp": 82.23}),
    "FT": (1168.01, {"kumi-tcp-rto": 1177.80, "kumi-tcp-pce": 1182.74, "kumi-tcp-no-phases": 1191.58, "kumi-tcp": 1182.69}),
    "IS": (23.61, {"kumi-tcp-rto": 25.39, "kumi-tcp-pce": 26.15, "kumi-tcp-no-phases": 27.60, "kumi-tcp": 26.25}),
    "LU": (4143.90, {"kumi-tcp-rto": 2531.91, "kumi-tcp-pce": 4198.00, "kumi-tcp-no-phases": 3535.71, "kumi-tcp": 3781.36}),
    "MG": (1130.55, {"kumi-tcp-rto": 922.44, "kumi-tcp-pce": 1160.35, "kumi-tcp-no-phases": 1112.02, "kumi-tcp": 1107.41}),
    "SP": (995.72, {"kumi-tcp-rto": 862.46, "kumi-tcp-pce": 1243.75, "kumi-tcp-no-phases": 1368.42, "kumi-tcp": 1323.11}),
}

# Takano et al., table 3: 1 MB messages, MB/s with stalls taken for congestion and not, of 117.4.
PAPER_STALL_MB_PER_S = {
    "near-one-way-streaming": (117.4, 117.4),
    "8ms-one-way-streaming": (66.8, 117.3),
    "near-one-connection-streaming": (71.6, 74.6),
    "8ms-one-connection-streaming": (39.7, 48.7),
    "near-two-connections-streaming": (71.2, 29.7),
    "8ms-two-connections-streaming": (34.7, 37.0),
}
PAPER_STALL_BEST = 117.4


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


def draw_tcp(axes, case, samples, plan):
    """The plan's figure over message size, or by variant."""
    key, label, unit = TCP_FIGURES[plan]
    values = {}
    for sample in samples:
        if sample["figures"].get(key) is not None:
            by_size = values.setdefault(sample["variant"], {})
            by_size.setdefault(sample.get("size_bytes"), []).append(sample["figures"][key] / unit)
    if any(None not in by_size for by_size in values.values()):
        for variant, by_size in values.items():
            sizes = sorted(by_size)
            axes.plot(sizes, [statistics.median(by_size[size]) for size in sizes], marker=".", label=variant)
        axes.set(xscale="log", xlabel="message, bytes")
        axes.legend(fontsize=6)
    else:
        for at, by_size in enumerate(values.values()):
            axes.bar(at, statistics.median(by_size[None]), color="tab:blue", alpha=0.5)
            axes.plot([at] * len(by_size[None]), by_size[None], "k.", markersize=3)
        axes.set_xticks(range(len(values)), list(values), rotation=30, ha="right", fontsize=7)
    axes.set(ylabel=label, ylim=(0, None))
    draw_papers_tcp(axes, case, plan, values)


def draw_papers_tcp(axes, case, plan, values):
    """What the papers measured, in red."""
    if plan == "tcp-npb" and "cubic" in values:
        standard, columns = PAPER_NPB_MOPS[case]
        ours = statistics.median(values["cubic"][None])
        for at, variant in enumerate(values):
            if variant in columns:
                axes.hlines(ours * standard / columns[variant], at - 0.4, at + 0.4, color="tab:red", linewidth=1)
    if plan == "tcp-stall" and case in PAPER_STALL_MB_PER_S:
        for rate, style in zip(PAPER_STALL_MB_PER_S[case], ("--", "-")):
            axes.axhline(rate / PAPER_STALL_BEST, color="tab:red", linewidth=0.7, linestyle=style)
    if plan in ("coll-gather", "coll-tree", "coll-wan"):
        axes.axhline(PAPER_GATHER_RATIO, color="tab:red", linewidth=0.7)
    if plan in ("tcp-restart", "tcp-alltoall", "tcp-stall"):
        axes.axhline(1, color="0.7", linewidth=0.6)


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
    plan = outcome["plan"]
    key = TCP_FIGURES[plan][0] if plan in TCP_FIGURES else "goodput_bps"
    panels = {
        case: of_case
        for case, of_case in cases(samples).items()
        if all(key in sample["figures"] for sample in of_case)
    }
    if not panels:
        return None
    figure, grid = plt.subplots(len(panels), 1, figsize=(7, 2.8 * len(panels)), squeeze=False)
    for axes, (case, of_case) in zip(grid[:, 0], panels.items()):
        axes.set_title(f"{plan}: {case}", fontsize=9)
        if plan in TCP_FIGURES:
            draw_tcp(axes, case, of_case, plan)
            continue
        paint = painter(of_case)
        paint(axes, case, of_case)
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
