#!/usr/bin/env python3
"""Draws a figure for every result file: bench/results/PLAN.ndjson -> bench/results/PLAN.svg.

    draw.py bench/results

The samples determine the kind of a panel: goodput over time, a figure over message size, or a
figure by variant. FIGURES has the figures of plans that do not show goodput. Values of the papers
are drawn where they exist. The README's picture is drawn from the result of link-failover.
"""

import json
import pathlib
import statistics
import sys
import textwrap

import matplotlib
import tomllib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (after the back end is chosen)

# Without these settings, the same result would give a different file each time.
matplotlib.rcParams["svg.hashsalt"] = "kumihimo"
METADATA = {"Date": None}

# Goodput in the RI2N/DRV paper, section 6.2, in MB/s, on two Gigabit links with interrupt
# coalescing.
PAPER_MB_PER_S = {"single": 112, "ri2n": 222, "rr": 215}

# Highest goodput in figures 12 and 13 of that paper over that of one link. Figure 13 is without interrupt
# coalescing; the paper gives 185 MB/s for both, and "1.6 times" one link.
PAPER_VS_ONE_LINK = {
    "figure-12": {"ri2n": 222 / 112, "rr": 215 / 112},
    "figure-13": {"ri2n and rr": 1.6},
}

# Time from the cut to its detection in the RI2N/DRV paper, figure 15, in seconds. The time from the
# heal to the full rate is the same.
PAPER_DETECT_S = 2.0

# Largest share of the root link's rate that the contention-free gather reached (Yoshitomi and
# Taura, figure 7).
PAPER_GATHER_RATIO = 0.85

MB_PER_S = 8e6  # bit/s

# Plans that do not show goodput: the figure, the axis label, the unit.
FIGURES = {
    "coll-allgather": ("efficiency_ratio", "share of the cut bound", 1),
    "coll-allreduce": ("efficiency_ratio", "share of the cut bound", 1),
    "coll-alltoall": ("efficiency_ratio", "share of the cut bound", 1),
    "coll-bcast": ("efficiency_ratio", "share of the cut bound", 1),
    "coll-collapse": ("efficiency_ratio", "share of the root link's bound", 1),
    "coll-gather": ("efficiency_ratio", "share of the root link's bound", 1),
    "coll-tree": ("efficiency_ratio", "share of the root link's bound", 1),
    "coll-wan": ("efficiency_ratio", "share of the root link's bound", 1),
    "tcp-alltoall": ("efficiency_ratio", "share of the busiest port's bound", 1),
    "tcp-cost": ("cpu_ns_per_byte", "processor time, ns per byte", 1),
    "tcp-explain": ("right_cause_ratio", "share of lost time with the right cause", 1),
    "tcp-fairness": ("neighbour_bps", "goodput of the neighbour, MB/s", MB_PER_S),
    "tcp-npb": ("total_s", "run time, s", 1),
    "tcp-over-link": ("goodput_bps", "goodput, MB/s", MB_PER_S),
    "tcp-phases": ("goodput_bps", "goodput, MB/s", MB_PER_S),
    "tcp-restart": ("burst_median_vs_ideal_ratio", "time, relative to the ideal", 1),
    "tcp-stall": ("of_allowed_ratio", "share of the pattern's bound", 1),
    "dsm-apps": ("total_s", "run time, s", 1),
    "dsm-barrier": ("barrier_median_us", "barrier with updates, median, µs", 1),
    "dsm-crash": ("error_after_ms", "longest time to the error, ms", 1),
    "dsm-litmus": ("telling_ratio", "share of tests that saw a new value", 1),
    "dsm-miss": ("miss_median_us", "access to a page, median, µs", 1),
    "dsm-write": ("write_median_us", "first write to a page, median, µs", 1),
    "shmem-perf": ("put_median_us", "put, median, µs", 1),
    "wind-goodput": ("unordered_goodput_bps", "goodput of unordered messages, MB/s", MB_PER_S),
    "wind-latency": ("put_median_us", "put, median, µs", 1),
    "wind-libfabric": ("half_round_trip_median_us", "half a round trip, median, µs", 1),
    "wind-loss": ("unordered_goodput_bps", "goodput of unordered messages, MB/s", MB_PER_S),
    "wind-multicast": ("rate_vs_one_copy_ratio", "share of one copy's rate", 1),
    "wind-peers": ("goodput_vs_alone_ratio", "share of one peer's goodput", 1),
    "wind-stopped": ("put_median_us", "put, median, µs", 1),
}

# Cases that show another figure than their plan.
CASE_FIGURES = {
    ("link-paper", "figure-10"): ("half_round_trip_median_us", "half a round trip, median, µs", 1),
    ("link-paper", "figure-11"): ("half_round_trip_median_us", "half a round trip, median, µs", 1),
}

# Mop/s of 16 ranks in GridMPI (Matsuda et al., table 2): standard TCP, and the other columns by the
# names of the corresponding variants.
PAPER_NPB_MOPS = {
    "BT": (
        2835.48,
        {
            "kumi-tcp-rto": 2606.81,
            "kumi-tcp-pce": 3520.48,
            "kumi-tcp-no-phases": 3887.74,
            "kumi-tcp": 3571.02,
        },
    ),
    "CG": (
        293.86,
        {"kumi-tcp-rto": 318.37, "kumi-tcp-pce": 325.94, "kumi-tcp-no-phases": 372.48, "kumi-tcp": 371.99},
    ),
    "EP": (
        82.23,
        {"kumi-tcp-rto": 82.23, "kumi-tcp-pce": 82.22, "kumi-tcp-no-phases": 82.22, "kumi-tcp": 82.23},
    ),
    "FT": (
        1168.01,
        {
            "kumi-tcp-rto": 1177.80,
            "kumi-tcp-pce": 1182.74,
            "kumi-tcp-no-phases": 1191.58,
            "kumi-tcp": 1182.69,
        },
    ),
    "IS": (
        23.61,
        {"kumi-tcp-rto": 25.39, "kumi-tcp-pce": 26.15, "kumi-tcp-no-phases": 27.60, "kumi-tcp": 26.25},
    ),
    "LU": (
        4143.90,
        {
            "kumi-tcp-rto": 2531.91,
            "kumi-tcp-pce": 4198.00,
            "kumi-tcp-no-phases": 3535.71,
            "kumi-tcp": 3781.36,
        },
    ),
    "MG": (
        1130.55,
        {"kumi-tcp-rto": 922.44, "kumi-tcp-pce": 1160.35, "kumi-tcp-no-phases": 1112.02, "kumi-tcp": 1107.41},
    ),
    "SP": (
        995.72,
        {"kumi-tcp-rto": 862.46, "kumi-tcp-pce": 1243.75, "kumi-tcp-no-phases": 1368.42, "kumi-tcp": 1323.11},
    ),
}

# Goodput of 1 MB messages in the send-stall paper (Takano et al., table 3), in MB/s: with stalls
# taken for congestion, and with stalls ignored. The best rate is 117.4.
PAPER_STALL_MB_PER_S = {
    "near-one-way-streaming": (117.4, 117.4),
    "8ms-one-way-streaming": (66.8, 117.3),
    "near-one-connection-streaming": (71.6, 74.6),
    "8ms-one-connection-streaming": (39.7, 48.7),
    "near-two-connections-streaming": (71.2, 29.7),
    "8ms-two-connections-streaming": (34.7, 37.0),
}
PAPER_STALL_BEST = 117.4


# Palette of Okabe and Ito, which readers with any colour vision can distinguish. kumi is blue.
RIVAL_COLOURS = ["#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000", "#999999", "#F0E442"]
KUMI_COLOURS = ["#D55E00", "#882255", "#332288"]
KUMI_COLOUR = "#0072B2"  # kumi with its defaults
KUMI_VARIANTS = ("kumi", "kumi-tcp", "kumi-coll")
PAPER_COLOUR = "#AA0000"

PANEL_INCHES = (5.2, 3.0)
COLUMNS_MAX = 2
TICKS_MAX = 7
BIN_MS = 100  # bin of goodput over time, as in the RI2N/DRV paper


def read(path):
    """Returns the outcome and the samples of a result file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return lines[0], lines[1:]


def cases(samples):
    """Returns samples by case, in the order of the file."""
    grouped = {}
    for sample in samples:
        grouped.setdefault(sample["case"], []).append(sample)
    return grouped


def variants_of(samples):
    return list(dict.fromkeys(sample["variant"] for sample in samples))


def colours_of(samples):
    """Returns one colour for each variant, the same in all panels of a figure."""
    colours = {}
    used = {True: 0, False: 0}
    for variant in variants_of(samples):
        is_kumi = variant.startswith("kumi")
        if variant in KUMI_VARIANTS:
            colours[variant] = KUMI_COLOUR
            continue
        palette = KUMI_COLOURS if is_kumi else RIVAL_COLOURS
        colours[variant] = palette[used[is_kumi] % len(palette)]
        used[is_kumi] += 1
    return colours


def rates_over_time(series):
    """Returns times in seconds and goodput in MB/s, in bins of BIN_MS."""
    width = max(1, round(BIN_MS / series["bin_ms"]))
    bins = series["bytes"]
    seconds = width * series["bin_ms"] / 1000
    starts = range(0, len(bins) - width + 1, width)
    rates = [sum(bins[at : at + width]) / seconds / 1e6 for at in starts]
    return [at * series["bin_ms"] / 1000 for at in starts], rates


def draw_series(axes, case, samples, colours):
    """Draws goodput over time: each variant's first repetition, with faults as dashed lines."""
    named = set()
    for sample in samples:
        if sample["repetition"] or "series" not in sample:
            continue
        series = sample["series"]
        times, rates = rates_over_time(series)
        axes.plot(times, rates, color=colours[sample["variant"]], linewidth=1.2)
        for event in series["events"]:
            axes.axvline(event["at_s"], color="0.4", linewidth=0.7, linestyle="--")
            if event["name"] not in named and len(named) < 2:
                named.add(event["name"])
                axes.annotate(
                    event["name"],
                    (event["at_s"], 0),
                    rotation=90,
                    fontsize=7,
                    color="0.3",
                    va="bottom",
                    ha="right",
                )
            if event["name"] == "cut" and case == "figure-15":
                axes.axvspan(event["at_s"], event["at_s"] + PAPER_DETECT_S, color="0.9", zorder=0)
    axes.set(xlabel="time, s", ylabel="goodput, MB/s", ylim=(0, None))


def medians_by_size(samples, key, unit):
    """Returns the values of a figure by variant and message size. A size may be None."""
    values = {}
    for sample in samples:
        if sample["figures"].get(key) is not None:
            by_size = values.setdefault(sample["variant"], {})
            by_size.setdefault(sample.get("size_bytes"), []).append(sample["figures"][key] / unit)
    return values


def draw_sizes(axes, values, colours, label):
    """Draws a figure over message size: the median of the repetitions."""
    for variant, by_size in values.items():
        sizes = sorted(by_size)
        rates = [statistics.median(by_size[size]) for size in sizes]
        style = {"linewidth": 1.8, "zorder": 3} if variant.startswith("kumi") else {"linewidth": 1.1}
        axes.plot(sizes, rates, marker=".", color=colours[variant], **style)
    sizes = sorted({size for by_size in values.values() for size in by_size})
    axes.set(xscale="log", xlabel="message size, bytes", ylabel=label, ylim=(0, None))
    axes.minorticks_off()
    shown = sizes[:: -(-len(sizes) // TICKS_MAX)]
    axes.set_xticks(shown, [short(size) for size in shown])


def short(size):
    """Returns a size in bytes with a binary unit: 65536 is "64Ki"."""
    units = ["", "Ki", "Mi", "Gi"]
    while size >= 1024 and size % 1024 == 0 and len(units) > 1:
        size //= 1024
        del units[0]
    return f"{size}{units[0]}"


def draw_bars(axes, values, colours, label):
    """Draws a figure by variant: the median as a bar with its value, and a dot per repetition."""
    places = range(len(values))
    for at, (variant, by_size) in zip(places, values.items()):
        points = [point for of_size in by_size.values() for point in of_size]
        median = statistics.median(points)
        axes.barh(at, median, color=colours[variant], alpha=0.6, height=0.7)
        axes.plot(points, [at] * len(points), "k.", markersize=3)
        place = (max([median, *points]), at)
        axes.annotate(
            f"{median:.3g}", place, xytext=(4, 0), textcoords="offset points", fontsize=7, va="center"
        )
    axes.set_yticks(places, list(values), fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel=label, xlim=(0, None))


def draw_papers(axes, case, plan, values):
    """Draws the papers' values in dark red, and returns whether there are any."""
    is_bars = len({size for by_size in values.values() for size in by_size}) == 1
    line = axes.axvline if is_bars else axes.axhline
    marks = []
    if plan == "tcp-npb" and "cubic" in values:
        standard, columns = PAPER_NPB_MOPS[case]
        ours = statistics.median(values["cubic"][None])
        for at, variant in enumerate(values):
            if variant in columns:
                axes.vlines(
                    ours * standard / columns[variant], at - 0.4, at + 0.4, color=PAPER_COLOUR, linewidth=1.2
                )
        return True
    if plan == "tcp-stall" and case in PAPER_STALL_MB_PER_S:
        before, after = PAPER_STALL_MB_PER_S[case]
        marks = [
            (before / PAPER_STALL_BEST, "stall taken as congestion"),
            (after / PAPER_STALL_BEST, "stall ignored"),
        ]
    elif plan in ("coll-gather", "coll-tree", "coll-wan"):
        marks = [(PAPER_GATHER_RATIO, "")]
    elif plan == "link-paper" and case in PAPER_VS_ONE_LINK:
        one_link = max(statistics.median(of_size) for of_size in values["single"].values())
        ratios = PAPER_VS_ONE_LINK[case]
        marks = [(ratio * one_link, variant) for variant, ratio in ratios.items()]
    elif plan == "link-sizes" or case == "tcp-1":
        marks = [(rate, variant) for variant, rate in PAPER_MB_PER_S.items()]
    for value, text in marks:
        line(value, color=PAPER_COLOUR, linewidth=0.8)
        place = (value, 0.02) if is_bars else (0.01, value)
        transform = axes.get_xaxis_transform() if is_bars else axes.get_yaxis_transform()
        turn = 90 if is_bars else 0
        axes.annotate(
            text,
            place,
            xycoords=transform,
            fontsize=6,
            color=PAPER_COLOUR,
            va="bottom",
            ha="left",
            rotation=turn,
        )
    return bool(marks)


def figure_of(plan, case):
    """Returns the figure that a case shows, the label of its axis, and its unit."""
    of_plan = FIGURES.get(plan, ("goodput_bps", "goodput, MB/s", MB_PER_S))
    return CASE_FIGURES.get((plan, case), of_plan)


def draw(path):
    """Draws a result file's figure, a panel per case. Returns its path, or None without data."""
    outcome, samples = read(path)
    plan = outcome["plan"]
    panels = {
        case: of_case
        for case, of_case in cases(samples).items()
        if any(sample["figures"].get(figure_of(plan, case)[0]) for sample in of_case)
    }
    if not panels:
        return None
    colours = colours_of([sample for of_case in panels.values() for sample in of_case])
    columns = min(COLUMNS_MAX, len(panels))
    rows = -(-len(panels) // columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.9)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    has_lines, has_papers = False, False
    for axes, (case, of_case) in zip(grid.flat, panels.items()):
        axes.set_title(case.replace("-", " "), fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7)
        key, label, unit = figure_of(plan, case)
        values = medians_by_size(of_case, key, unit)
        if any("series" in sample for sample in of_case):
            draw_series(axes, case, of_case, colours)
            has_lines = True
            continue
        if len({size for by_size in values.values() for size in by_size}) > 1:
            draw_sizes(axes, values, colours, label)
            has_lines = True
        else:
            draw_bars(axes, values, colours, label)
        has_papers |= draw_papers(axes, case, plan, values)
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    figure.suptitle(textwrap.fill(f"{plan}: {shows(path, plan)}", 60 * columns), fontsize=10)
    handles = []
    if has_lines:
        handles += [plt.Line2D([], [], color=colour, label=variant) for variant, colour in colours.items()]
    if has_papers:
        handles.append(plt.Line2D([], [], color=PAPER_COLOUR, label="the paper's value"))
    if handles:
        figure.legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            ncols=min(5, len(handles)),
            fontsize=7,
            frameon=False,
        )
    target = path.with_suffix(".svg")
    save(figure, target)
    return target


def shows(path, plan):
    """Returns the plan's claim."""
    text = (path.parents[1] / "plans" / f"{plan}.toml").read_text()
    return tomllib.loads(text)["shows"]


def save(figure, target):
    figure.savefig(target, metadata=METADATA, bbox_inches="tight")
    plt.close(figure)


def draw_cut_cable(path, target):
    """Draws the README's picture: two hosts with a cut cable, above the goodput of that time."""
    _, samples = read(path)
    series = next(s["series"] for s in samples if s["case"] == "carrier" and s["variant"] == "kumi")
    times, rates = rates_over_time(series)
    cut, heal = (event["at_s"] for event in series["events"][:2])
    figure, (hosts, curve) = plt.subplots(
        2, 1, figsize=(7, 3.6), height_ratios=[1, 2.4], layout="constrained"
    )
    hosts.set(xlim=(0, 10), ylim=(0, 3))
    hosts.axis("off")
    for left, name in ((0.5, "host a"), (7.5, "host b")):
        hosts.add_patch(
            plt.Rectangle((left, 0.4), 2, 2.2, facecolor="#0072B2", alpha=0.15, edgecolor="#0072B2")
        )
        hosts.text(left + 1, 1.5, f"{name}\nkumi0", ha="center", va="center", fontsize=9)
    hosts.plot([2.5, 7.5], [2.1, 2.1], color="#009E73", linewidth=2)
    hosts.plot([2.5, 4.8], [0.9, 0.9], color="#D55E00", linewidth=2)
    hosts.plot([5.2, 7.5], [0.9, 0.9], color="#D55E00", linewidth=2)
    hosts.text(5, 0.9, "×", ha="center", va="center", fontsize=13, color="#D55E00")
    hosts.text(5, 2.2, "1 Gb/s", ha="center", va="bottom", fontsize=8)
    hosts.text(5, 0.2, "1 Gb/s, cut and plugged in again", ha="center", va="center", fontsize=8)
    curve.axvspan(cut, heal, color="#D55E00", alpha=0.12)
    curve.plot(times, [rate * 8 / 1000 for rate in rates], color="#0072B2", linewidth=1.6)
    curve.annotate("one cable cut", ((cut + heal) / 2, 0.05), ha="center", fontsize=8, color="#803300")
    curve.spines[["top", "right"]].set_visible(False)
    curve.set(xlabel="time, s", ylabel="one TCP stream, Gb/s", ylim=(0, None), xlim=(0, times[-1]))
    save(figure, target)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bench/results")
    for path in sorted(folder.glob("*.ndjson")):
        target = draw(path)
        print(f"{path.name}: {target.name if target else 'nothing to draw'}")
    draw_cut_cable(folder / "link-failover.ndjson", folder / "cut-cable.svg")


if __name__ == "__main__":
    main()
