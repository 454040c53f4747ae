//! Figures that one run of one variant measured.

use super::variant::Variant;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Figures by name, with the unit last in the name.
pub type Figures = BTreeMap<String, f64>;

/// Figures of one run. A ping-pong gives one sample per message size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// Name of the case.
    pub case: String,
    /// Variant that ran.
    pub variant: Variant,
    /// Message size, in bytes, if the workload has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Number of the repetition, from 0. Samples of the same repetition ran within the same minute
    /// and are compared in pairs.
    pub repetition: u32,
    /// Measured figures.
    pub figures: Figures,
    /// Received bytes over time and the events during the run, for workloads whose curves are
    /// drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<Value>,
}
