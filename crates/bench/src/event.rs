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

/// Latest time in a case, in seconds: a day, far above the length of any case.
const TIME_MAX_S: f64 = 86_400.0;

impl Event {
    /// Checks the times of the event. The error names the wrong one.
    pub fn check(&self) -> Result<(), String> {
        let every_s = self.again.as_ref().map(|again| ("every_s", again.every_s));
        let times = [("at_s", self.at_s)].into_iter().chain(every_s);
        for (key, time_s) in times {
            if !(0.0..=TIME_MAX_S).contains(&time_s) {
                let name = &self.name;
                return Err(format!(
                    "event `{name}`: invalid {key} = {time_s}: expected 0 to {TIME_MAX_S} seconds"
                ));
            }
        }
        Ok(())
    }
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

impl Window {
    /// Checks the ends of the period. The error names them.
    pub fn check(&self) -> Result<(), String> {
        let Self { name, from_s, to_s } = self;
        if (0.0..*to_s).contains(from_s) && *to_s <= TIME_MAX_S {
            return Ok(());
        }
        Err(format!(
            "window `{name}`: invalid from_s = {from_s}, to_s = {to_s}: expected 0 to {TIME_MAX_S} \
             seconds, from_s below to_s"
        ))
    }
}
