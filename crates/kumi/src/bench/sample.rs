//! What one run of one variant measured.

use super::variant::Variant;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Figures by name, the unit last in the name.
pub type Figures = BTreeMap<String, f64>;

/// One run's figures. A ping-pong gives one sample a message size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// The case's name.
    pub case: String,
    /// The variant that ran.
    pub variant: Variant,
    /// Message size, where the workload has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// From 0; samples of the same repetition ran within the same minute and are compared in pairs.
    pub repetition: u32,
    /// What was measured.
    pub figures: Figures,
    /// Received bytes over time and the events meanwhile, where the plan draws them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<Value>,
}
