//! Input and output of a congestion control: the interface of the kernel's
//! `cong_control`, in packets and microseconds.

/// A sample of the delivery rate, as the kernel takes it (`net/ipv4/tcp_rate.c`): packets that were
/// delivered between the departure and the acknowledgement of one of them.
#[derive(Debug, Clone, Copy)]
pub struct RateSample {
    /// Packets delivered in the interval.
    pub packets: u32,
    /// The longer one of the times of sending and of acknowledging them.
    pub interval_us: u64,
    /// The time of sending them.
    pub sent_us: u64,
    /// True if the program had too little to send for the path meanwhile.
    pub is_app_limited: bool,
    /// Packets delivered in all when the acknowledged packet left.
    pub delivered_before: u64,
}

/// One acknowledgement.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledgement {
    /// The time.
    pub now_us: u64,
    /// Round trip of the newest packet that it acknowledges; absent for one that was sent again.
    pub rtt_us: Option<u64>,
    /// Departure of that packet.
    pub sent_us: u64,
    /// The shortest round trip of the connection.
    pub rtt_min_us: u64,
    /// The smoothed round trip.
    pub srtt_us: u64,
    /// Packets that it acknowledges.
    pub acked: u32,
    /// Packets that it shows to be lost.
    pub lost: u32,
    /// Packets that RACK's timer has taken for lost since the acknowledgement before: those at the
    /// end of a burst. The simulation has only the timer of retransmission, which is
    /// [`Control::time_out`].
    pub lost_by_timer: u32,
    /// Packets acknowledged in all.
    pub delivered: u64,
    /// Packets in flight afterwards.
    pub in_flight: u32,
    /// Packets in flight before.
    pub in_flight_before: u32,
    /// A sample of the delivery rate, if there is one.
    pub rate: Option<RateSample>,
    /// True while a loss is being repaired.
    pub is_repairing: bool,
    /// Packets that left since the repair began.
    pub sent_in_repair: u64,
}

/// A congestion control.
pub trait Control {
    /// The first packet leaves on an empty path (`CA_EVENT_TX_START`).
    fn start(&mut self, now_us: u64);
    /// An acknowledgement came.
    fn acknowledge(&mut self, acknowledgement: &Acknowledgement);
    /// A repair begins, because packets were lost (`ssthresh`). `in_flight` excludes them.
    fn lose(&mut self, in_flight: u32, now_us: u64);
    /// The retransmission timer expired: all packets are taken for lost.
    fn time_out(&mut self, now_us: u64);
    /// The repair was for packets that had only been late.
    fn undo(&mut self);
    /// Packets that may be in flight.
    fn window(&self) -> u32;
    /// Packets per second at which the sender spaces packets out; absent: at once.
    fn pace_pps(&self) -> Option<u64>;
}
