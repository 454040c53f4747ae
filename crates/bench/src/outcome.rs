//! Outcome of a bench plan: rows of figures, and the checks of the plan's targets.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Relation between a measured value and its target.
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

/// A target of a plan, with the measured value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Name of the check, with the unit last where it has one (`gap_ms`).
    pub name: String,
    /// Measured value. It is a ratio wherever a bare figure would show the machine's speed (ADR
    /// 005).
    pub value: f64,
    /// Relation of `value` to `target` in a check that passes.
    pub op: Op,
    /// Value that the plan requires.
    pub target: f64,
    /// True if the relation holds.
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

/// Figures and checks of one run of a plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// One row per variant and setting. Keys have the unit last.
    pub rows: Vec<Map<String, Value>>,
    /// Checks of the plan's targets, met or missed.
    pub checks: Vec<Check>,
    /// Reasons why the run does not count (the emulator or the ranks were late). Empty for a valid
    /// run.
    pub void: Vec<String>,
}
