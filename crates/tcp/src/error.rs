//! What can go wrong, in words that say what to do.

/// Why the programs are not in place, or not to be seen.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// Built without clang or libbpf's headers.
    #[error(
        "this build of kumi has no congestion control: install clang and libbpf-dev and build it again"
    )]
    NotCompiled,
    /// The kernel refuses the programs.
    #[error("the kernel refuses the TCP programs: {reason}")]
    Refused {
        /// Its reason, a line.
        reason: String,
    },
    /// Not root.
    #[error("the TCP programs need CAP_BPF and CAP_NET_ADMIN: run as root")]
    NotPermitted,
    /// The kernel does not describe its types.
    #[error(
        "the kernel has no BTF at /sys/kernel/btf/vmlinux; the TCP programs need one built with \
         CONFIG_DEBUG_INFO_BTF=y, as the distributions' are"
    )]
    NoBtf,
    /// There already is one.
    #[error("the TCP programs are installed already; `kumi tcp down` removes them")]
    Installed,
    /// The installed programs cannot give way to these under traffic.
    #[error(
        "the installed TCP programs cannot be replaced under traffic: {reason}; `kumi tcp down`, then \
         `kumi tcp up`"
    )]
    NotReplaceable {
        /// What is in the way.
        reason: String,
    },
    /// There is none.
    #[error("the TCP programs are not installed; `kumi tcp up` installs them")]
    Absent,
    /// The file system for pins.
    #[error("{doing}: {reason}; is a writable bpf file system at /sys/fs/bpf?")]
    Pin {
        /// What was tried.
        doing: String,
        /// The kernel's word.
        reason: String,
    },
    /// Processes are only in cgroups of the first version.
    #[error(
        "process {pid} is in no cgroup of version 2 ({reason}); boot with \
         systemd.unified_cgroup_hierarchy=1, or mount cgroup2 beside the old hierarchy"
    )]
    NoCgroup {
        /// The process.
        pid: u32,
        /// What was missing.
        reason: String,
    },
    /// The process has ended, or is not to be seen.
    #[error("process {pid} is not visible in /proc; is it in another PID namespace?")]
    NoProcess {
        /// The process.
        pid: u32,
    },
    /// One user's share of the table is full.
    #[error(
        "user {uid} has {max} processes of `kumi run` on this host already, which is as many as one user may have"
    )]
    TooManyOfUser {
        /// The user.
        uid: u32,
        /// How many it may have.
        max: usize,
    },
    /// The table of processes is full.
    #[error(
        "{max} processes of `kumi run` are on this host already, which is as many as there may be"
    )]
    TooManyRanks {
        /// How many there may be.
        max: u32,
    },
}
