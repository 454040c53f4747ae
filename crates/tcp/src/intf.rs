//! Structures of `bpf/tcp/intf.h` and `bpf/trace/intf.h`, which the programs share with user space.
//!
//! A test compares each field with the type information of the compiled programs: its name, offset
//! and size.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Declares a structure with the fields of a C structure, in the host's byte order.
macro_rules! shared {
    ($(#[$attribute:meta])* $name:ident, $c_name:literal { $($field:ident: $type:ty,)* }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        #[cfg(test)]
        impl $name {
            fn layout() -> tests::Layout {
                tests::Layout {
                    name: $c_name,
                    bytes: size_of::<Self>(),
                    fields: vec![$((
                        stringify!($field),
                        std::mem::offset_of!(Self, $field),
                        size_of::<$type>(),
                    ),)*],
                }
            }
        }
    };
}

shared! {
    /// Settings of the congestion control.
    SharedSettings, "kumi_tcp_settings" {
        memory_max_ns: u64,
        first_bytes_ps: u64,
        mechanisms: u32,
        rto_min_us: u32,
        delack_max_us: u32,
        unsent_bytes_max: u32,
        tick_us: u32,
        reserved: u32,
    }
}

shared! {
    /// Counters of one processor.
    SharedTotals, "kumi_tcp_totals" {
        connections: u64,
        paced: u64,
        stalls: u64,
        losses: u64,
        timeouts: u64,
        spurious: u64,
        switches: u64,
        acks_first: u64,
        mended: u64,
    }
}

shared! {
    /// A row of the iterator over connections.
    SharedConnection, "kumi_tcp_connection" {
        local: [u8; 16],
        remote: [u8; 16],
        is_ipv6: u32,
        local_port: u16,
        remote_port: u16,
        phase: u32,
        rank: u32,
        cwnd: u32,
        ssthresh: u32,
        in_flight: u32,
        rtt_us: u32,
        rto_us: u32,
        mss_bytes: u32,
        stalls: u32,
        losses: u32,
        timeouts: u32,
        paced: u32,
        rto_min_us: u32,
        reserved: u32,
        pacing_bytes_ps: u64,
        retransmits: u64,
        phase_name: [u8; 64],
    }
}

shared! {
    /// A process in the table. The lower ten bits of its rank are its place, the higher bits the
    /// place's generation. `started` is in hundredths of a second since boot, and `cgroup` is the
    /// inode of the cgroup whose links serve the process.
    Process, "kumi_tcp_process" {
        rank: u32,
        uid: u32,
        started: u64,
        cgroup: u64,
    }
}

shared! {
    /// Settings of the tracing programs.
    SharedTraceSettings, "kumi_trace_settings" {
        cgroup: u64,
        only_senders: u32,
        reserved: u32,
    }
}

shared! {
    /// An event of an observed connection.
    SharedEvent, "kumi_trace_event" {
        at_ns: u64,
        cookie: u64,
        pacing_bytes_ps: u64,
        kind: u32,
        detail: u32,
        ack: u32,
        snd_una: u32,
        snd_nxt: u32,
        write_seq: u32,
        cwnd: u32,
        ssthresh: u32,
        in_flight: u32,
        snd_wnd: u32,
        rcv_wnd: u32,
        srtt_us: u32,
        rtt_min_us: u32,
        rto_ticks: u32,
        mss_bytes: u32,
        ca_state: u8,
        limit: u8,
        is_ipv6: u8,
        reserved: u8,
        local_port: u16,
        remote_port: u16,
        local: [u8; 16],
        remote: [u8; 16],
        lost: u32,
        rank: u32,
        phase: u32,
        bytes_sent: u64,
        bytes_resent: u64,
        bytes_acked: u64,
        network_ticks: u32,
        far_ticks: u32,
        buffer_ticks: u32,
        dupacks: u32,
        sacks: u32,
        dsacks: u32,
    }
}

/// Returns the address in a field of sixteen bytes, of which IPv4 uses the first four.
pub fn address(ip: [u8; 16], port: u16, is_ipv6: bool) -> SocketAddr {
    let ip = if is_ipv6 {
        IpAddr::from(Ipv6Addr::from(ip)).to_canonical()
    } else {
        let [a, b, c, d, ..] = ip;
        IpAddr::from(Ipv4Addr::new(a, b, c, d))
    };
    SocketAddr::new(ip, port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::btf::types::{MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, HasSize};

    /// Size of a structure, and name, offset and size of each field, in bytes.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Layout {
        pub name: &'static str,
        pub bytes: usize,
        pub fields: Vec<(&'static str, usize, usize)>,
    }

    /// Reads the layout of `expected.name` from the type information of a program.
    fn compiled_fields(btf: &Btf<'_>, expected: &Layout) -> Vec<(String, usize, usize)> {
        let c_type: Struct<'_> = btf
            .type_by_name(expected.name)
            .unwrap_or_else(|| panic!("no struct {} in the program", expected.name));
        assert_eq!(c_type.size(), expected.bytes, "size of {}", expected.name);
        let offsets: Vec<(String, usize)> = c_type
            .iter()
            .map(|member| {
                let MemberAttr::Normal { offset } = member.attr else {
                    panic!("bit field in {}", expected.name);
                };
                let name = member.name.expect("a field has a name");
                (name.to_string_lossy().into_owned(), offset as usize / 8)
            })
            .collect();
        let ends = offsets.iter().skip(1).map(|(_, offset)| *offset);
        let ends: Vec<usize> = ends.chain([c_type.size()]).collect();
        let with_size = offsets.into_iter().zip(ends);
        with_size
            .map(|((name, offset), end)| (name, offset, end - offset))
            .collect()
    }

    #[test]
    fn structures__shared_with_the_programs__have_the_compiled_layout() {
        let path = std::path::Path::new(env!("OUT_DIR")).join("layout.bpf.o");
        if std::fs::metadata(&path).is_ok_and(|file| file.len() == 0) {
            eprintln!("skipped: this build has no programs, because clang is not installed");
            return;
        }
        let btf = Btf::from_path(&path).expect("the object has type information");
        let layouts = [
            SharedSettings::layout(),
            SharedTotals::layout(),
            SharedConnection::layout(),
            Process::layout(),
            SharedTraceSettings::layout(),
            SharedEvent::layout(),
        ];
        for expected in layouts {
            let fields = compiled_fields(&btf, &expected);
            let fields = fields
                .iter()
                .map(|(name, offset, size)| (&**name, *offset, *size));
            assert!(fields.eq(expected.fields.iter().copied()), "{expected:?}");
        }
    }
}
