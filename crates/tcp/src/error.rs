//! Errors of installing and controlling the TCP programs. Each says how to resolve it.

/// Reason for which the programs are not installed or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// The build had no clang or no libbpf headers.
    #[error(
        "this build of kumi has no congestion control: install clang and libbpf-dev and build it again"
    )]
    NotCompiled,
    /// The kernel refused the programs.
    #[error("the kernel refuses the TCP programs: {reason}")]
    Refused {
        /// Reason in one line.
        reason: String,
    },
    /// The caller is not root.
    #[error("the TCP programs need CAP_BPF and CAP_NET_ADMIN: run as root")]
    NotPermitted,
    /// The kernel has no BTF, the description of its types.
    #[error(
        "the kernel has no BTF at /sys/kernel/btf/vmlinux; the TCP programs need a kernel built with \
         CONFIG_DEBUG_INFO_BTF=y, as distributions build theirs"
    )]
    NoBtf,
    /// The programs are installed already.
    #[error("the TCP programs are installed already; `kumi tcp down` removes them")]
    Installed,
    /// The installed programs cannot be replaced under traffic.
    #[error(
        "the installed TCP programs cannot be replaced under traffic: {reason}; run `kumi tcp down`, \
         then `kumi tcp up`"
    )]
    NotReplaceable {
        /// Obstacle, in one line.
        reason: String,
    },
    /// The programs are not installed.
    #[error("the TCP programs are not installed; `kumi tcp up` installs them")]
    Absent,
    /// An operation on bpffs, the file system for pins, failed.
    #[error(
        "{operation}: {reason}; check that a writable bpf file system is mounted at /sys/fs/bpf"
    )]
    Pin {
        /// Operation that was attempted.
        operation: String,
        /// Error of the kernel.
        reason: String,
    },
    /// Processes are in version 1 cgroups only.
    #[error(
        "process {pid} is not in a version 2 cgroup ({reason}); boot with \
         systemd.unified_cgroup_hierarchy=1, or mount cgroup2 next to the version 1 hierarchy"
    )]
    NoCgroup {
        /// Process number.
        pid: u32,
        /// Missing part, in one line.
        reason: String,
    },
    /// A folder is not that of a version 2 cgroup.
    #[error(
        "{folder} is not a version 2 cgroup, whose folder has a file cgroup.controllers; \
         expected a folder such as /sys/fs/cgroup/system.slice"
    )]
    NotCgroup {
        /// Path of the folder.
        folder: String,
    },
    /// The process has ended, or is not visible.
    #[error("process {pid} is not visible in /proc; is it in another PID namespace?")]
    NoProcess {
        /// Process number.
        pid: u32,
    },
    /// A user's share of the process table is full.
    #[error(
        "user {uid} already has {max} processes of `kumi run` on this host, the limit for one user"
    )]
    TooManyOfUser {
        /// User number.
        uid: u32,
        /// Most processes of one user.
        max: usize,
    },
    /// The process table is full.
    #[error("this host already has {max} processes of `kumi run`, the limit for one host")]
    TooManyRanks {
        /// Most processes of a host.
        max: u32,
    },
}
