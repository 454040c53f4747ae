//! What a bench plan found: rows of figures, and the checks its targets made of them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How a measured value is held against its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// The value must be at least the target.
    #[serde(rename = ">=")]
    AtLeast,
    /// The value must be at most the target.
    #[serde(rename = "<=")]
    AtMost,
    /// The value must equal the target.
    #[serde(rename = "==")]
    Equal,
}

/// One target of a plan and what was measured against it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// What is checked, with the unit last where it has one (`gap_ms`).
    pub name: String,
    /// What was measured; a ratio wherever the machine's speed would show in a bare figure.
    pub value: f64,
    /// How `value` relates to `target` when the check passes.
    pub op: Op,
    /// The plan's target.
    pub target: f64,
    /// Whether it holds.
    pub pass: bool,
}

impl Check {
    /// Judges `value` against `target`. A value that is not a number fails.
    pub fn new(name: impl Into<String>, value: f64, op: Op, target: f64) -> Self {
        let pass = match op {
            Op::AtLeast => value >= target,
            Op::AtMost => value <= target,
            Op::Equal => value == target,
        };
        Self {
            name: name.into(),
            value,
            op,
            target,
            pass,
        }
    }
}

/// The figures and the checks of one run of a plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// One row a variant and setting, keys with the unit last.
    pub rows: Vec<Map<String, Value>>,
    /// The plan's targets, met or missed.
    pub checks: Vec<Check>,
    /// Why the run does not count (the emulator or the ranks were late), if it does not.
    pub void: Vec<String>,
}
