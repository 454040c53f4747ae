//! Changes of the network during a case, and the periods between them that are measured.

use kumi_lab::topology::LinkChange;
use serde::Deserialize;

/// A change of a link while a case runs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Time of the change, in seconds after the workload's start.
    pub at_s: f64,
    /// Name of the event. It is a part of three figures:
    ///
    /// - `gap_NAME_ms`: the longest time without an arrival that overlaps the first second after
    ///   the event.
    /// - `detected_NAME_ms`: the time until the sending device has taken the link out of use for
    ///   good.
    /// - `late_retransmits_NAME`: segments that a flow retransmits from the third round trip after
    ///   the event to 1.5 s after it.
    pub name: String,
    /// End whose link changes, as `h2:eth2`.
    pub link: String,
    /// Change, in the lab's notation: `{ carrier = false }`, `{ faults = { loss = 0.01 } }`.
    pub change: LinkChange,
    /// Repetition of the change, in turn with its reverse, every `every_s`.
    #[serde(default)]
    pub again: Option<Repetition>,
}

/// Repetition of an event, for a link that flaps.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repetition {
    /// Seconds between a change and its reverse.
    pub every_s: f64,
    /// Change that reverses the event's.
    pub reverse: LinkChange,
    /// Total number of changes, the first included.
    pub count: u32,
}

/// A period whose goodput is the figure `goodput_NAME_bps`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Middle part of the figure's name.
    pub name: String,
    /// Start of the period, in seconds after the first byte.
    pub from_s: f64,
    /// End of the period, in seconds after the first byte.
    pub to_s: f64,
}
