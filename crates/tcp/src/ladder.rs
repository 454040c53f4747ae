//! Capability tiers: the mechanisms that a kernel accepts, and those that it lacks.

use crate::error::TcpError;
use libbpf_rs::btf::types::{FuncProto, Ptr, Struct};
use libbpf_rs::btf::{Btf, ReferencesType};

/// Capability tier, the highest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// A congestion control that writes the pacing rate (Linux 6.0).
    Full,
    /// A congestion control that writes the upper limit of the pacing rate instead (Linux 5.15).
    CappedPacing,
    /// The kernel's congestion control, with kumi's socket options.
    OptionsOnly,
}

/// Bits of `settings.mechanisms` that encode the tier (`bpf/tcp/intf.h`).
const HAS_CONTROL: u32 = 1 << 30;
const WRITES_PACING: u32 = 1 << 31;

impl Tier {
    /// All tiers, the highest first.
    pub const ALL: [Self; 3] = [Self::Full, Self::CappedPacing, Self::OptionsOnly];

    /// Returns the tier as the programs read it.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Full => HAS_CONTROL | WRITES_PACING,
            Self::CappedPacing => HAS_CONTROL,
            Self::OptionsOnly => 0,
        }
    }

    /// Reads the result of [`Tier::bits`].
    pub(crate) fn from_bits(bits: u32) -> Self {
        let has_bits = |tier: &Self| tier.bits() == bits & (HAS_CONTROL | WRITES_PACING);
        Self::ALL
            .into_iter()
            .find(has_bits)
            .unwrap_or(Self::OptionsOnly)
    }

    /// Returns whether the tier includes kumi's congestion control.
    pub fn has_control(self) -> bool {
        self != Self::OptionsOnly
    }

    /// Returns the tier's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::CappedPacing => "capped-pacing",
            Self::OptionsOnly => "options-only",
        }
    }

    /// Describes the mechanisms that are lost on the tier, for an administrator; `None` on the
    /// highest.
    pub fn lost(self) -> Option<&'static str> {
        match self {
            Self::Full => None,
            Self::CappedPacing => Some(
                "restarts are paced by the socket's maximum pacing rate, which overwrites an \
                 application's own SO_MAX_PACING_RATE",
            ),
            Self::OptionsOnly => Some(
                "no congestion control `kumi`: short timeouts and the cap on unsent data work; \
                 paced restart, phase memory and stall forgiveness do not",
            ),
        }
    }
}

/// Returns whether the kernel announces first packets by a separate callback (Linux 7.1). The
/// congestion control does not implement it yet: it would load, and never pace a restart.
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

/// Way in which a kernel holds a congestion control, and what it passes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registration {
    /// By a link. An acknowledgement comes with its number and its kind (Linux 6.10).
    Link,
    /// By a link (Linux 6.4).
    LinkOnly,
    /// By its map.
    Map,
}

impl Registration {
    const ALL: [Self; 3] = [Self::Link, Self::LinkOnly, Self::Map];

    /// Returns the way of the running kernel.
    ///
    /// # Errors
    /// [`TcpError::NoBtf`].
    pub(crate) fn of_this_kernel() -> Result<Self, TcpError> {
        let btf = Btf::from_vmlinux().map_err(|_| TcpError::NoBtf)?;
        if btf
            .type_by_name::<Struct<'_>>("bpf_struct_ops_link")
            .is_none()
        {
            return Ok(Self::Map);
        }
        Ok(if parameters_of_control(&btf) > 2 {
            Self::Link
        } else {
            Self::LinkOnly
        })
    }

    /// Returns the map of the congestion control that the kernel accepts.
    pub(crate) fn control(self) -> &'static str {
        match self {
            Self::Link => "kumi",
            Self::LinkOnly => "kumi_6_4",
            Self::Map => "kumi_unlinked",
        }
    }

    /// Returns the way of a congestion control's map, by its name.
    pub(crate) fn of_map(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.control() == name)
    }

    /// Returns the program that is called for an acknowledgement.
    pub(crate) fn acknowledged(self) -> &'static str {
        match self {
            Self::Link => "kumi_cong_control",
            Self::LinkOnly | Self::Map => "kumi_cong_control_6_0",
        }
    }
}

/// Returns the number of parameters of `cong_control`; 0 if it is not found.
fn parameters_of_control(btf: &Btf<'_>) -> usize {
    let Some(operations) = btf.type_by_name::<Struct<'_>>("tcp_congestion_ops") else {
        return 0;
    };
    let mut members = operations.iter();
    members
        .find(|member| member.name.is_some_and(|name| name == "cong_control"))
        .and_then(|member| btf.type_by_id::<Ptr<'_>>(member.ty))
        .and_then(|pointer| btf.type_by_id::<FuncProto<'_>>(pointer.referenced_type().type_id()))
        .map_or(0, |function| function.len())
}
