//! What this kernel lets the programs do, and what is lost where it lets them do less.

use crate::error::TcpError;
use libbpf_rs::btf::{Btf, types::Struct};

/// A rung, the highest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// A congestion control that writes the pacing rate (Linux 6.0).
    Full,
    /// A congestion control; the ceiling of the pacing rate stands in for the rate (Linux 5.15).
    CappedPacing,
    /// The kernel's congestion control with kumi's socket options.
    OptionsOnly,
}

/// Bits of `settings.mechanisms` that say the rung: `bpf/tcp/intf.h`.
const HAS_CONTROL: u32 = 1 << 30;
const WRITES_PACING: u32 = 1 << 31;
/// Not a rung: a kernel without it (before 6.10) may halve a window that was just set, and nothing else is lost.
pub(crate) const WRITES_STAMP: u32 = 1 << 29;

impl Rung {
    /// All, the highest first.
    pub const ALL: [Self; 3] = [Self::Full, Self::CappedPacing, Self::OptionsOnly];

    /// As the programs read it.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Full => HAS_CONTROL | WRITES_PACING,
            Self::CappedPacing => HAS_CONTROL,
            Self::OptionsOnly => 0,
        }
    }

    /// Reads what [`Rung::bits`] wrote.
    pub(crate) fn of_bits(bits: u32) -> Self {
        let of = |rung: &Self| rung.bits() == bits & (HAS_CONTROL | WRITES_PACING);
        Self::ALL.into_iter().find(of).unwrap_or(Self::OptionsOnly)
    }

    /// Whether there is a congestion control of kumi's on it.
    pub fn has_control(self) -> bool {
        self != Self::OptionsOnly
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::CappedPacing => "capped-pacing",
            Self::OptionsOnly => "options-only",
        }
    }

    /// What is lost on it, in words for an administrator; `None` on the highest.
    pub fn lost(self) -> Option<&'static str> {
        match self {
            Self::Full => None,
            Self::CappedPacing => Some(
                "a restart is paced by the ceiling of the rate, which an application's own \
                 SO_MAX_PACING_RATE is overwritten by",
            ),
            Self::OptionsOnly => Some(
                "no congestion control of kumi's: short timeouts and the cap on unsent data are \
                 there; paced restart, phase memory and forgiven stalls are not",
            ),
        }
    }
}

/// Whether first packets are announced by a callback of their own (Linux 7.1), which the congestion control
/// does not have yet: it would load, and never pace a restart.
pub(crate) fn has_moved_callback() -> Result<bool, TcpError> {
    let btf = Btf::from_vmlinux().map_err(|_| TcpError::NoBtf)?;
    let operations = btf.type_by_name::<Struct<'_>>("tcp_congestion_ops");
    Ok(operations.is_some_and(|operations| {
        let mut members = operations.iter();
        members.any(|member| {
            member
                .name
                .is_some_and(|name| name == "cwnd_event_tx_start")
        })
    }))
}

/// Whether the kernel holds a congestion control by a link (Linux 6.4), or by its map.
pub(crate) fn has_struct_ops_link() -> Result<bool, TcpError> {
    let btf = Btf::from_vmlinux().map_err(|_| TcpError::NoBtf)?;
    Ok(btf
        .type_by_name::<Struct<'_>>("bpf_struct_ops_link")
        .is_some())
}
