/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Layouts that the TCP programs share with user space. crates/tcp/src/intf.rs has the same
 * structures, and a test compares them. bindings/c/kumi_phase_page.h has the page that a program
 * shares with them.
 */
#ifndef KUMI_TCP_INTF_H
#define KUMI_TCP_INTF_H

/* Each mechanism has a switch: one bit of settings.mechanisms. */
enum {
	KUMI_TCP_PACED_RESTART = 1 << 0,
	KUMI_TCP_STALL_FORGIVENESS = 1 << 1,
	KUMI_TCP_SHORT_RTO = 1 << 2,
	KUMI_TCP_PHASE_MEMORY = 1 << 3,
	KUMI_TCP_ACK_BAND = 1 << 4,
	KUMI_TCP_UNSENT_CAP = 1 << 5,
	KUMI_TCP_FIRST_TARGET = 1 << 6,
	KUMI_TCP_SHORT_BURSTS = 1 << 7, /* in user space: a sysctl */
	KUMI_TCP_FAIR_SHARE = 1 << 8,
	/* Capability tier: the mechanisms that this kernel allows. */
	KUMI_TCP_HAS_CONTROL = 1 << 30,    /* a congestion control of ours */
	KUMI_TCP_WRITES_PACING = 1U << 31, /* sk_pacing_rate may be written (Linux 6.0) */
};

struct kumi_tcp_settings {
	__u64 memory_max_ns;    /* older values are not used: routes change (RFC 9959) */
	__u64 first_bytes_ps;   /* rate of a first connection with nothing to remember; 0: slow start */
	__u32 mechanisms;       /* KUMI_TCP_*, and the capability tier */
	__u32 rto_min_us;       /* floor of the retransmission timeout; the kernel takes 2 ticks at least */
	__u32 delack_max_us;    /* upper limit of the delayed-ACK timer of this host */
	__u32 unsent_bytes_max; /* TCP_NOTSENT_LOWAT */
	__u32 tick_us;          /* the kernel's tick: its unit of timers */
	__u32 reserved;
};

/* A socket's options before kumi changed them. */
struct kumi_tcp_options {
	__u32 is_capped;        /* 0 or 1: kumi set TCP_NOTSENT_LOWAT, where the program had not */
	__u32 rto_min_ticks;    /* floor of the retransmission timeout; 0: kumi has not set it */
	__u32 delack_max_ticks; /* ceiling of a delayed acknowledgement; 0: kumi has not set it */
};

/* Name of the congestion control. */
#define OWN_CONTROL "kumi"

/* Most phases of a connection. The last one stands for all beyond. */
#define KUMI_PHASES_MAX 32

/* State of the path in one phase. */
struct kumi_tcp_path {
	__u64 acked_at_ns;   /* the last acknowledgement in this phase, CLOCK_MONOTONIC; 0: never */
	__u64 span_began_ns; /* of the rates below */
	__u32 best_pps;      /* highest rate of the running span, packets a second */
	__u32 last_pps;      /* the same of the span before */
	__u32 is_bounded;    /* 0 or 1: a train or a loss has shown the path's limit */
	__u32 rtt_us;        /* the shortest round trip when the phase was left; 0: not left yet */
	__u32 ssthresh;      /* packets, when the phase was left */
	__u32 cwnd;          /* the same */
	__u32 mode;          /* the same: of modes.h */
	__u32 top_pps;       /* highest rate of a train that arrived slower than it left, until one agrees */
};

/* Memory of a connection, in its socket's storage. */
struct kumi_tcp_memory {
	struct kumi_tcp_path phases[KUMI_PHASES_MAX];
	__u64 anchor_at_us;     /* the first acknowledgement of the round: when it came, */
	__u64 anchor_sent_us;   /* when its packet had left, */
	__u64 train_last_us;    /* the latest acknowledgement of the round */
	__u64 entered_at_ns;    /* when the phase was entered; 0: it is the first */
	__u64 shared_at_ns;     /* latest save of the route */
	__u32 anchor_delivered; /* and packets delivered until then */
	__u32 has_anchor;       /* 0 or 1 */
	__u32 is_held_up;       /* 0 or 1: a buffer at either end delayed the round's packets */
	__u32 mode;             /* of modes.h */
	__u32 round_until;      /* the round ends with a packet sent after this many deliveries */
	__u32 round_lost;       /* packets lost in the round */
	__u32 seen_lost;        /* `tcp_sock.lost` at the latest acknowledgement */
	__u32 round_pps;        /* highest rate of the kernel's samples in the round */
	__u32 train_pps;        /* rate at which the round's packets arrive; 0: too few yet */
	__u32 train_us;         /* time in which they arrived */
	__u32 gap_us;           /* longest time between two acknowledgements of them */
	__u32 is_stretched;     /* 0 or 1: they arrive slower than they left */
	__u32 round_rtt_us;     /* the shortest round trip of the round; 0: none yet */
	__u32 before_rtt_us;    /* the same of the round before */
	__u32 round_flying;     /* most packets in flight in the round */
	__u32 before_flying;    /* the same of the round before */
	__u32 base_us;          /* the shortest round trip of the first round that held the rate */
	__u32 deepest_us;       /* longest queue of all rounds, an eighth less for each loss */
	__u32 held_rounds;      /* rounds since the rate is held, or the window is full in compete */
	__u32 queue_rounds;     /* of these, the last ones with a queue */
	__u32 drain_us;         /* queue that the pace of this round takes away, while a rate is held */
	__u32 lost_pps;         /* pace at which the lost packets of this round had left; 0: no loss */
	__u32 is_lowered;       /* 0 or 1: the rate was lowered at the end of the round before */
	__u32 repair_flying;    /* packets in flight when the repair began; 0: none */
	__u32 repair_delivered; /* packets delivered since then */
	__u32 is_local;         /* 0 or 1: the last overflow was in a queue of this host */
	__u32 is_own;           /* 0 or 1: this connection has had the rate that is held */
	__u32 step;             /* reciprocal of a probe's step */
	__u32 limit_pps;        /* rate that was shown to be the path's limit, in any phase; 0: none yet */
	__u32 is_probing;       /* 0 or 1: this round is sent faster by the step */
	__u32 probed_pps;       /* pace of the round before, if it was a probe; 0: it was none */
	__u32 skip;             /* restarts to leave out before the next probe */
	__u32 skipped;          /* restarts since the last probe */
	__u32 phase;            /* the phase it is in: an index of phases */
	__u32 phase_before;     /* the one it was in before */
	__u32 is_crowded;       /* 0 or 1: the phase is an all-to-all */
	__u32 is_active;        /* 0 or 1: counted in its process's crowd */
	__u32 switches;         /* of the page, at the latest call of an all-to-all */
	__u32 call_delivered;   /* packets delivered before that call */
	__u32 call_lost;        /* packets lost before it */
	__u32 call_is_wrong;    /* 0 or 1: a quarter of the call's packets was lost */
	__u32 is_shared;        /* 0 or 1: the fair share is in force */
	__u32 confirm_rtt_us;   /* the round trip that the last start relies on; 0: confirmed (RFC 9959) */
	__u32 rank;             /* owner of the phase page; 0: none */
	__u32 has_sent;         /* 0 or 1: the first data has been sent */
	__u32 rto_min_us;       /* the floor in force; doubled when a timeout was wrong */
	__u32 stalls;           /* local refusals that were forgiven */
	__u32 losses;           /* repairs of losses in the network */
	__u32 timeouts;         /* retransmission timeouts */
	__u32 paced;            /* starts at a known rate */
	__u32 ceiling;          /* the largest window or threshold that the programs have left; 0: none yet */
	__u32 ssthresh;         /* the threshold as the programs left it last */
	struct kumi_tcp_options options; /* of a socket without an owner */
};

/* Route: values that a connection leaves for the next one to the same host. */
struct kumi_tcp_route {
	__u64 at_ns;
	__u32 pps;
	__u32 rtt_us;
	__u32 is_bounded; /* 0 or 1: pps is the path's limit, not the program's */
	__u32 reserved;
};

/* Owner of a socket. Accepted sockets inherit it from the listener. */
struct kumi_tcp_owner {
	__u32 rank;      /* 0: owned, without a phase page */
	char before[16]; /* the congestion control it had; empty: it has none of ours yet */
	struct kumi_tcp_options options;
};

/*
 * A process of `kumi run`. The lower ten bits of its rank are its place, an index of phase_pages.
 * The higher bits are the place's generation, so that a socket that outlives its process does not
 * follow the next process's page.
 */
struct kumi_tcp_process {
	__u32 rank;
	__u32 uid;     /* whose place it is */
	__u64 started; /* start time, in hundredths of a second since boot, as in /proc */
	__u64 cgroup;  /* inode of the cgroup in which its programs are attached */
};

/* The page in which a program names its phase (bindings/c/kumi_phase_page.h). */
struct kumi_phase_page {
	__u32 abi;
	__u32 phase;
	__u8 rest[56];
	char names[KUMI_PHASES_MAX][64];
	__u32 switches;            /* phases that were begun or ended, modulo 2^32 */
	__u32 peers;               /* ranks on other hosts; 0: unknown */
	__u64 fair_share_bytes_ps; /* of a connection in an all-to-all of the job; 0: unknown */
	__u32 burst_bytes;         /* that each of these connections may send at once */
	__u8 pad[1964];
};
_Static_assert(__builtin_offsetof(struct kumi_phase_page, switches) == 2112, "after the names");
_Static_assert(__builtin_offsetof(struct kumi_phase_page, fair_share_bytes_ps) == 2120, "as in C");
_Static_assert(sizeof(struct kumi_phase_page) == 4096, "one page");

/* Totals, one set per processor. */
struct kumi_tcp_totals {
	__u64 connections; /* that use this congestion control, since it was installed */
	__u64 paced;       /* restarts paced */
	__u64 stalls;      /* local refusals not taken for congestion */
	__u64 losses;      /* windows cut for losses in the network */
	__u64 timeouts;    /* retransmission timeouts */
	__u64 spurious;    /* of these, found to have been wrong */
	__u64 switches;    /* phases entered with something remembered */
	__u64 acks_first;  /* acknowledgements put before data in the host's queue */
	__u64 mended;      /* windows and thresholds that no program had set, put right */
};

/* One connection, as `kumi tcp show` reads it from the iterator. */
struct kumi_tcp_connection {
	__u8 local[16]; /* an IPv4 address is in the first four bytes */
	__u8 remote[16];
	__u32 is_ipv6;
	__u16 local_port; /* host's byte order */
	__u16 remote_port;
	__u32 phase;
	__u32 rank;
	__u32 cwnd;      /* packets */
	__u32 ssthresh;  /* packets; 0x7fffffff: none yet */
	__u32 in_flight; /* packets */
	__u32 rtt_us;    /* smoothed */
	__u32 rto_us;
	__u32 mss_bytes;
	__u32 stalls;
	__u32 losses;
	__u32 timeouts;
	__u32 paced;
	__u32 rto_min_us;
	__u32 reserved;
	__u64 pacing_bytes_ps;
	__u64 retransmits;
	__u8 phase_name[64];
};

#endif
