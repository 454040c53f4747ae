//! Promises of the demo, and the tables that compare its measurements with them.

use super::Story;
use super::run::Timeline;
use crate::variant::Variant;

/// Least goodput of iperf3 over both links, in multiples of one bare link's goodput.
const BOTH_LINKS_MIN: f64 = 1.9;

/// Least goodput of Open MPI over both links, in multiples of one bare link's goodput. Open MPI
/// sends each message of 1 MB with a handshake of its own (rendezvous). The links idle for a round
/// trip between two messages.
const BOTH_LINKS_MPI_MIN: f64 = 1.7;

/// Least goodput while one link is cut, in multiples of one bare link's goodput.
const ONE_LINK_MIN: f64 = 0.93;

/// Least goodput in the worst 100 ms after the cut, in multiples of one bare link's goodput.
const WORST_BIN_MIN: f64 = 0.3;

/// Longest time from plugging the cable in to 90 % of the goodput before the cut, in seconds.
const RECOVERY_MAX_S: f64 = 2.0;

/// Longest time between two messages of 1 MB while a link is cut and plugged in, in milliseconds.
const MESSAGE_WAIT_MAX_MS: f64 = 200.0;

/// Least goodput across the WAN, in multiples of CUBIC's.
const WAN_MIN: f64 = 2.0;

/// Least speed of a planned all-to-all, in multiples of the speed of the MPI library's own.
const PLAN_MIN: f64 = 1.0;

/// Longest time of a put to a stopped program, in multiples of an exchange of datagrams with a
/// running one. A stopped program never answers a datagram.
const STOPPED_PUT_MAX: f64 = 4.0;

/// Share of the goodput before the cut that counts as full recovery.
const RECOVERY_SHARE: f64 = 0.9;

/// Bound that a promise sets for a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Promise {
    /// At least this value.
    AtLeast(f64),
    /// At most this value.
    AtMost(f64),
}

impl Promise {
    /// Returns whether `value` keeps the promise; false for NaN, a value that was not measured.
    pub fn is_kept_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

/// Measured row of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Name of the row.
    pub name: String,
    /// Measured value, in the table's unit.
    pub value: f64,
    /// Value as a multiple of the table's base, if the table has one.
    pub multiple: Option<f64>,
    /// Promise for the multiple if there is one, otherwise for the value.
    pub promise: Option<Promise>,
}

impl Row {
    fn new(name: impl Into<String>, value: f64) -> Self {
        Self {
            name: name.into(),
            value,
            multiple: None,
            promise: None,
        }
    }

    fn with_base(mut self, base: f64) -> Self {
        self.multiple = Some(self.value / base);
        self
    }

    fn with_promise(mut self, promise: Option<Promise>) -> Self {
        self.promise = promise;
        self
    }

    /// Returns the number that the promise applies to.
    pub fn judged_value(&self) -> f64 {
        self.multiple.unwrap_or(self.value)
    }

    /// Returns whether the row keeps its promise; true for a row without one.
    pub fn is_kept(&self) -> bool {
        self.promise
            .is_none_or(|promise| promise.is_kept_by(self.judged_value()))
    }
}

/// Rows that share a unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Title of the table.
    pub title: &'static str,
    /// Unit of every value.
    pub unit: &'static str,
    /// Digits after the decimal point of a value.
    pub digits: usize,
    /// Name of the base of every multiple.
    pub base: Option<&'static str>,
    /// The rows, in the order of the run.
    pub rows: Vec<Row>,
}

/// Returns every table of the demo.
pub fn tables(story: &Story) -> Vec<Table> {
    let mut tables = vec![goodput(story), interruption(story)];
    if let Some(count) = story.mpi.wrong_messages {
        tables.push(Table {
            title: "Messages with wrong contents",
            unit: "messages",
            digits: 0,
            base: None,
            rows: vec![Row::new("Open MPI", count as f64).with_promise(Some(Promise::AtMost(0.0)))],
        });
    }
    if !story.crossings.is_empty() {
        tables.push(wan(story));
    }
    if !story.exchanges.is_empty() {
        tables.extend(exchange(story));
    }
    if !story.answers.is_empty() {
        tables.push(answers(story));
    }
    tables
}

fn goodput(story: &Story) -> Table {
    // A rival is shown for comparison and has no promise.
    let promise = |promise| (story.variant == Variant::Kumi).then_some(promise);
    let bare_bps = story.single_bps;
    let mbps = |name: String, bps: f64| Row::new(name, bps / 1e6).with_base(bare_bps / 1e6);
    let mut rows = vec![mbps("iperf3, one bare link".into(), bare_bps)];
    let both_min = [BOTH_LINKS_MIN, BOTH_LINKS_MPI_MIN];
    for ((program, timeline), both_min) in programs(story).into_iter().zip(both_min) {
        let setup = format!("{program} over {}", story.variant);
        let both_links = promise(Promise::AtLeast(both_min));
        let one_link = promise(Promise::AtLeast(ONE_LINK_MIN));
        let worst = promise(Promise::AtLeast(WORST_BIN_MIN));
        let [before_bps, cut_bps, after_bps] = phases(timeline);
        rows.push(mbps(format!("{setup}, both links"), before_bps).with_promise(both_links));
        rows.push(mbps(format!("{setup}, one link cut"), cut_bps).with_promise(one_link));
        let low_bps = lowest_bps(timeline);
        rows.push(
            mbps(format!("{program}, slowest 100 ms after the cut"), low_bps).with_promise(worst),
        );
        rows.push(mbps(format!("{setup}, healed"), after_bps).with_promise(both_links));
    }
    Table {
        title: "Goodput over two links, one cut and plugged in again",
        unit: "Mb/s",
        digits: 0,
        base: Some("one bare link"),
        rows,
    }
}

fn interruption(story: &Story) -> Table {
    let promise = |promise| (story.variant == Variant::Kumi).then_some(promise);
    let mut rows = Vec::new();
    for (program, timeline) in programs(story) {
        let recovery = promise(Promise::AtMost(RECOVERY_MAX_S * 1e3));
        let name = format!("{program}, from the heal to 90 % of the goodput before the cut");
        rows.push(Row::new(name, recovery_s(timeline) * 1e3).with_promise(recovery));
    }
    if let Some(gap_ms) = story.mpi.gap_max_ms {
        let wait = promise(Promise::AtMost(MESSAGE_WAIT_MAX_MS));
        let name = "Open MPI, longest time between two messages of 1 MB";
        rows.push(Row::new(name, gap_ms).with_promise(wait));
    }
    Table {
        title: "Interruption",
        unit: "ms",
        digits: 0,
        base: None,
        rows,
    }
}

fn wan(story: &Story) -> Table {
    let base = story
        .crossings
        .first()
        .map_or(f64::NAN, |crossing| crossing.goodput_bps);
    let rows = story.crossings.iter().enumerate().map(|(index, crossing)| {
        let promise = (index > 0).then_some(Promise::AtLeast(WAN_MIN));
        let row = Row::new(
            format!("Open MPI with {}", crossing.name),
            crossing.goodput_bps / 1e6,
        );
        row.with_base(base / 1e6).with_promise(promise)
    });
    Table {
        title: "4 MB across a WAN of 500 Mb/s and 20 ms, after a collective",
        unit: "Mb/s",
        digits: 0,
        base: Some("CUBIC"),
        rows: rows.collect(),
    }
}

fn answers(story: &Story) -> Table {
    let base_us = story
        .answers
        .first()
        .map_or(f64::NAN, |first| first.median_us);
    let last = story.answers.len() - 1;
    let rows = story.answers.iter().enumerate().map(|(index, answer)| {
        let promise = (index == last).then_some(Promise::AtMost(STOPPED_PUT_MAX));
        let row = Row::new(answer.name, answer.median_us);
        row.with_base(base_us).with_promise(promise)
    });
    Table {
        title: "64 bytes to another host, until the answer",
        unit: "us",
        digits: 1,
        base: Some("UDP echo"),
        rows: rows.collect(),
    }
}

fn exchange(story: &Story) -> [Table; 2] {
    let base_s = story
        .exchanges
        .first()
        .map_or(f64::NAN, |exchange| exchange.median_s);
    let speeds = story.exchanges.iter().enumerate().map(|(index, exchange)| {
        let promise = (index > 0).then_some(Promise::AtLeast(PLAN_MIN));
        let row = Row::new(
            format!("MPI_Alltoallv, {}", exchange.author),
            1.0 / exchange.median_s,
        );
        row.with_base(1.0 / base_s).with_promise(promise)
    });
    let base_retransmits = story
        .exchanges
        .first()
        .map_or(f64::NAN, |exchange| exchange.retransmits);
    let retransmits = story.exchanges.iter().enumerate().map(|(index, exchange)| {
        let promise = (index > 0).then_some(Promise::AtMost(base_retransmits));
        Row::new(
            format!("MPI_Alltoallv, {}", exchange.author),
            exchange.retransmits,
        )
        .with_promise(promise)
    });
    [
        Table {
            title: "Eight hosts exchange data through switch ports of 32 KB",
            unit: "rounds/s",
            digits: 1,
            base: Some("Open MPI's own"),
            rows: speeds.collect(),
        },
        Table {
            title: "Segments that TCP retransmitted in that exchange",
            unit: "segments",
            digits: 0,
            base: None,
            rows: retransmits.collect(),
        },
    ]
}

fn programs(story: &Story) -> [(&'static str, &Timeline); 2] {
    [("iperf3", &story.stream), ("Open MPI", &story.mpi)]
}

/// Returns the goodput in bit/s before the cut, during it, and after the device may have recovered.
/// The times between are the subject of [`interruption`].
fn phases(timeline: &Timeline) -> [f64; 3] {
    let (cut_s, healed_s) = (timeline.mark_s("cut"), timeline.mark_s("healed"));
    [
        timeline.between_bps(1.0, cut_s),
        timeline.between_bps(cut_s + 0.5, healed_s),
        timeline.between_bps(healed_s + RECOVERY_MAX_S, timeline.end_s()),
    ]
}

/// Returns the lowest goodput of 100 ms within a second of the cut, in bit/s.
fn lowest_bps(timeline: &Timeline) -> f64 {
    let cut_s = timeline.mark_s("cut");
    let bins = timeline
        .goodput
        .iter()
        .filter(|(time_s, _)| (cut_s..cut_s + 1.0).contains(time_s));
    bins.map(|(_, bps)| *bps).fold(f64::INFINITY, f64::min)
}

/// Returns the time from plugging the cable in to the first two bins in a row at [`RECOVERY_SHARE`]
/// of the goodput before the cut, in seconds; infinite if no such bins exist.
///
/// A single bin does not count, because it may carry a retransmitted backlog.
fn recovery_s(timeline: &Timeline) -> f64 {
    let (cut_s, healed_s) = (timeline.mark_s("cut"), timeline.mark_s("healed"));
    let recovered_bps = timeline.between_bps(1.0, cut_s) * RECOVERY_SHARE;
    let bins: Vec<_> = timeline
        .goodput
        .iter()
        .filter(|(time_s, _)| *time_s > healed_s)
        .collect();
    bins.windows(2)
        .find(|pair| pair.iter().all(|(_, bps)| *bps >= recovered_bps))
        .map_or(f64::INFINITY, |pair| pair[0].0 - healed_s)
}

#[cfg(test)]
mod tests {
    use super::super::tests::story;
    use super::*;

    fn row<'a>(tables: &'a [Table], name: &str) -> &'a Row {
        let rows = tables.iter().flat_map(|table| &table.rows);
        rows.into_iter()
            .find(|row| row.name.contains(name))
            .unwrap_or_else(|| panic!("no row {name}"))
    }

    #[test]
    fn promises__good_run__are_all_kept() {
        let tables = tables(&story());
        let broken = tables.iter().flat_map(|table| &table.rows);
        let broken: Vec<_> = broken.filter(|row| !row.is_kept()).collect();
        assert!(broken.is_empty(), "{broken:?}");
        assert_eq!(row(&tables, "iperf3 over kumi, healed").judged_value(), 2.0);
    }

    #[test]
    fn promises__one_link_rate_after_healing__are_broken() {
        let mut story = story();
        let healed_s = story.stream.mark_s("healed");
        let bins = story.stream.goodput.iter_mut();
        bins.filter(|(time_s, _)| *time_s > healed_s)
            .for_each(|(_, bps)| *bps = 0.9e9);
        let tables = tables(&story);
        assert!(!row(&tables, "iperf3 over kumi, healed").is_kept());
        let recovery = row(&tables, "iperf3, from the heal");
        assert!(!recovery.is_kept() && recovery.value.is_infinite());
        assert!(row(&tables, "Open MPI over kumi, healed").is_kept());
    }

    #[test]
    fn promises__baseline_unmeasured_or_variant_a_rival__are_broken_or_not_made() {
        let mut story = story();
        story.single_bps = f64::NAN;
        assert!(!row(&tables(&story), "iperf3 over kumi, both links").is_kept());
        story.variant = Variant::Rr;
        assert!(
            row(&tables(&story), "iperf3 over rr, both links")
                .promise
                .is_none()
        );
    }
}
