//! Ceilings: upper bounds of a plan's goodput, computed from the link rates.
//!
//! There are two kinds, which are never mixed: plain TCP on the links, and the device's own
//! framing. Both count the bytes that a frame occupies on an Ethernet: 1538 for an MTU of 1500. A
//! kernel token bucket counts 1514. The lab corrects for that, so that the topology's rate is the
//! rate on the wire.

use super::sample::Figures;
pub use kumi_topo::ethernet::PLAIN_TCP;

/// Returns the ceilings for links of the given rates, as figures of a sample. If a rate is
/// infinite, returns no figures. `framing` is the payload share of the device's own framing, where
/// the variant has one.
pub fn ceilings(rates_bps: &[f64], framing: Option<f64>) -> Figures {
    let sum: f64 = rates_bps.iter().sum();
    let best = rates_bps.iter().copied().fold(0.0, f64::max);
    if !sum.is_finite() || sum == 0.0 {
        return Figures::new();
    }
    let payload_share = framing.unwrap_or(PLAIN_TCP);
    Figures::from([
        ("ceiling_plain_bps".into(), sum * PLAIN_TCP),
        ("ceiling_framing_bps".into(), sum * payload_share),
        ("ceiling_best_link_bps".into(), best * payload_share),
    ])
}

/// Returns the fraction of the slower links' rates that the goodput gains over the best link: 0 for
/// the best link alone, 1 for all links.
pub fn gain_ratio(goodput_bps: f64, figures: &Figures) -> Option<f64> {
    let total_bps = figures.get("ceiling_framing_bps")?;
    let best_bps = figures.get("ceiling_best_link_bps")?;
    (total_bps > best_bps).then(|| (goodput_bps - best_bps) / (total_bps - best_bps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings__two_gigabit_links__give_the_papers_235_megabytes() {
        let figures = ceilings(&[1e9, 1e9], Some(0.9));
        assert!((figures["ceiling_plain_bps"] / 8e6 - 235.4).abs() < 0.1);
        assert_eq!(figures["ceiling_framing_bps"], 1.8e9);
        assert_eq!(figures["ceiling_best_link_bps"], 0.9e9);
    }

    #[test]
    fn ceilings__unshaped_links__are_undefined() {
        assert!(ceilings(&[f64::INFINITY], None).is_empty());
    }

    #[test]
    fn gain_of_rest__unequal_links__is_relative_to_the_best() {
        let figures = ceilings(&[1000.0, 300.0], Some(1.0));
        let gain = gain_ratio(1240.0, &figures).expect("links differ");
        assert!((gain - 0.8).abs() < 1e-9);
    }
}
