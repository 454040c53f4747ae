//! Rates, times, sizes and probabilities, as a topology file spells them.
//!
//! Each is a newtype over one unit, so that no function takes a bare number whose unit the caller
//! must guess. Bits are for rates only; sizes are in bytes.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// A quantity that could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not a {kind}; write {right}")]
pub struct QuantityError {
    /// Kind of quantity that was expected (`rate`, `time`, …).
    pub kind: &'static str,
    /// Text that was found.
    pub value: String,
    /// Spelling that is accepted.
    pub right: &'static str,
}

/// Splits `12.5Mbit` into its number and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim()))
}

/// Scales by the first unit of `units` that matches, ignoring case.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let (number, unit) = split(text)?;
    let scale = units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))?
        .1;
    let value = (number * scale).round();
    (value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

/// Prints `value` in the largest unit of `units` (ascending) that divides it.
fn display(value: u64, units: &[(&str, u64)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (unit, scale) = units
        .iter()
        .rev()
        .find(|(_, scale)| value >= *scale && value % *scale == 0)
        .copied()
        .unwrap_or(units[0]);
    write!(f, "{}{unit}", value / scale)
}

/// A link's rate on the wire, preamble and inter-frame gap included, in bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// Returns a rate of `bps` bits per second, or `None` for zero.
    pub const fn from_bps(bps: u64) -> Option<Self> {
        if bps == 0 { None } else { Some(Self(bps)) }
    }

    /// Returns a measured rate, rounded to three digits, the precision of the measurement.
    pub fn measured(bps: f64) -> Option<Self> {
        let rounded = bps as u64;
        let digit = 10_u64.pow(rounded.checked_ilog10()?.saturating_sub(2));
        Self::from_bps((rounded + digit / 2) / digit * digit)
    }

    /// Returns the rate in bits per second.
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// Returns the time for which `bytes` occupy the wire, in nanoseconds, rounded up.
    pub const fn time_ns(self, bytes: u64) -> u64 {
        ((bytes as u128 * 8 * 1_000_000_000).div_ceil(self.0 as u128)) as u64
    }
}

impl FromStr for Rate {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let units = [
            ("bit", 1.0),
            ("kbit", 1e3),
            ("Mbit", 1e6),
            ("Gbit", 1e9),
            ("Tbit", 1e12),
        ];
        scaled(text, &units)
            .and_then(Self::from_bps)
            .ok_or(QuantityError {
                kind: "rate",
                value: text.to_owned(),
                right: "a positive number with bit, kbit, Mbit, Gbit or Tbit (a second), such as `1Gbit`",
            })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(
            self.0,
            &[
                ("bit", 1),
                ("kbit", 1_000),
                ("Mbit", 1_000_000),
                ("Gbit", 1_000_000_000),
            ],
            f,
        )
    }
}

/// A span of time, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delay(u64);

impl Delay {
    /// A span of zero nanoseconds.
    pub const ZERO: Self = Self(0);

    /// Returns a span of `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns the span in nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0
    }
}

impl FromStr for Delay {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        if text.trim() == "0" {
            return Ok(Self(0));
        }
        scaled(text, &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)])
            .map(Self)
            .ok_or(QuantityError {
                kind: "time",
                value: text.to_owned(),
                right: "a number with ns, us, ms or s, such as `50us`, or `0`",
            })
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(
            self.0,
            &[
                ("ns", 1),
                ("us", 1_000),
                ("ms", 1_000_000),
                ("s", 1_000_000_000),
            ],
            f,
        )
    }
}

/// A size in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// Returns a size of `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the size in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let units = [
            ("B", 1.0),
            ("KB", 1e3),
            ("MB", 1e6),
            ("GB", 1e9),
            ("KiB", 1024.0),
            ("MiB", 1_048_576.0),
            ("GiB", 1_073_741_824.0),
        ];
        scaled(text, &units).map(Self).ok_or(QuantityError {
            kind: "size",
            value: text.to_owned(),
            right: "a number with B, KB, KiB, MB, MiB, GB or GiB, such as `128KiB`",
        })
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(
            self.0,
            &[("B", 1), ("KB", 1000), ("KiB", 1024), ("MiB", 1_048_576)],
            f,
        )
    }
}

/// Depth of a NIC's transmit queue. NICs count descriptors, so packets are the usual unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NicQueue {
    /// Depth in packets.
    Packets(u32),
    /// Depth in bytes.
    Bytes(u64),
}

impl Default for NicQueue {
    /// Returns Linux's default `txqueuelen` of an Ethernet device.
    fn default() -> Self {
        Self::Packets(1000)
    }
}

impl FromStr for NicQueue {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let count = text
            .trim()
            .trim_end_matches("packets")
            .trim_end_matches('p')
            .trim();
        if let Ok(packets) = count.parse::<u32>() {
            if packets > 0 {
                return Ok(Self::Packets(packets));
            }
        } else if let Ok(bytes) = text.parse::<Bytes>() {
            if bytes.get() > 0 {
                return Ok(Self::Bytes(bytes.get()));
            }
        }
        Err(QuantityError {
            kind: "NIC queue",
            value: text.to_owned(),
            right: "a positive number of packets, such as `1000`, or a size, such as `150KB`",
        })
    }
}

impl fmt::Display for NicQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets(packets) => write!(f, "{packets}"),
            Self::Bytes(bytes) => Bytes(*bytes).fmt(f),
        }
    }
}

/// A probability, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd)]
pub struct Probability(f64);

impl Probability {
    /// Probability of an event that never occurs.
    pub const ZERO: Self = Self(0.0);

    /// Returns `p` as a probability, or `None` outside 0 to 1.
    pub fn new(p: f64) -> Option<Self> {
        (0.0..=1.0).contains(&p).then_some(Self(p))
    }

    /// Returns the number, 0 to 1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Probability {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, scale) = match text.trim().strip_suffix('%') {
            Some(number) => (number.trim(), 0.01),
            None => (text.trim(), 1.0),
        };
        number
            .parse()
            .ok()
            .and_then(|p: f64| Self::new(p * scale))
            .ok_or(QuantityError {
                kind: "probability",
                value: text.to_owned(),
                right: "a number from 0 to 1, such as `0.01`, or a percentage, such as `1%`",
            })
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Accepts both spellings of a quantity: a string, or a bare number.
struct QuantityVisitor<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = QuantityError>> de::Visitor<'_> for QuantityVisitor<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity with its unit, as a string")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

macro_rules! as_text {
    ($($quantity:ty),*) => {$(
        impl<'de> Deserialize<'de> for $quantity {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(QuantityVisitor(std::marker::PhantomData))
            }
        }
        impl Serialize for $quantity {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}
as_text!(Rate, Delay, Bytes, NicQueue, Probability);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate__decimal_units__are_bits_per_second() {
        assert_eq!("1Gbit".parse::<Rate>().unwrap().bps(), 1_000_000_000);
        assert_eq!("12.5mbit".parse::<Rate>().unwrap().bps(), 12_500_000);
        assert_eq!("1Gbit".parse::<Rate>().unwrap().time_ns(1538), 12_304);
    }

    /// Parses each of the values, which must be refused with `message` after the value.
    fn check_refusals<T: FromStr<Err = QuantityError> + fmt::Debug>(
        values: &[&str],
        message: &str,
    ) {
        for value in values {
            let error = value.parse::<T>().unwrap_err().to_string();
            assert_eq!(error, format!("`{value}` is not a {message}"));
        }
    }

    #[test]
    fn quantities__invalid__are_refused_with_what_is_accepted() {
        check_refusals::<Rate>(
            &["0Gbit", "1Gb", "fast", "1 GB", "", "1", "-1Gbit"],
            "rate; write a positive number with bit, kbit, Mbit, Gbit or Tbit (a second), \
             such as `1Gbit`",
        );
        check_refusals::<Delay>(
            &["50", "soon", "", "-1us", "1min"],
            "time; write a number with ns, us, ms or s, such as `50us`, or `0`",
        );
        check_refusals::<Bytes>(
            &["1", "1TB", "", "-1B", "17179869184GiB"],
            "size; write a number with B, KB, KiB, MB, MiB, GB or GiB, such as `128KiB`",
        );
        check_refusals::<NicQueue>(
            &["0", "0B", "deep", "", "-1", "4294967296"],
            "NIC queue; write a positive number of packets, such as `1000`, or a size, \
             such as `150KB`",
        );
        check_refusals::<Probability>(
            &["1.5", "-0.1", "NaN", "101%", "often", ""],
            "probability; write a number from 0 to 1, such as `0.01`, or a percentage, \
             such as `1%`",
        );
        assert_eq!("2Tbit".parse::<Rate>().unwrap().bps(), 2_000_000_000_000);
        assert_eq!("1GB".parse::<Bytes>().unwrap().get(), 1_000_000_000);
    }

    #[test]
    fn bytes__kb_and_kib__differ() {
        assert_eq!("128KiB".parse::<Bytes>().unwrap().get(), 131_072);
        assert_eq!("128KB".parse::<Bytes>().unwrap().get(), 128_000);
    }

    #[test]
    fn delay__units_up_to_seconds__are_parsed_and_a_missing_unit_is_refused() {
        for (text, ns) in [
            ("0", 0),
            ("50us", 50_000),
            ("1.5ms", 1_500_000),
            ("2s", 2_000_000_000),
        ] {
            assert_eq!(text.parse::<Delay>().unwrap().ns(), ns);
        }
        assert!("50".parse::<Delay>().is_err());
    }

    #[test]
    fn nic_queue__bare_number__is_packets() {
        assert_eq!("30".parse::<NicQueue>().unwrap(), NicQueue::Packets(30));
        assert_eq!(
            "150KB".parse::<NicQueue>().unwrap(),
            NicQueue::Bytes(150_000)
        );
        assert!("0".parse::<NicQueue>().is_err());
    }

    #[test]
    fn probability__outside_zero_to_one__is_refused() {
        assert_eq!("1%".parse::<Probability>().unwrap().get(), 0.01);
        assert!("1.5".parse::<Probability>().is_err());
        assert!("-0.1".parse::<Probability>().is_err());
        assert!("NaN".parse::<Probability>().is_err());
    }

    #[test]
    fn display__rates_and_byte_counts__round_trip() {
        for text in ["1Gbit", "1500kbit", "7bit"] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
        }
        for bytes in [0, 1, 1024, 128_000, 131_072] {
            assert_eq!(
                Bytes(bytes).to_string().parse::<Bytes>().unwrap(),
                Bytes(bytes)
            );
        }
    }
}
