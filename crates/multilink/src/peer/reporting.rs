//! Reports to the peer, and the evaluation of reports from it.

use super::deliver::REPORT_MIN_NS;
use super::{Peer, Shared};
use crate::ledger::LostRun;
use crate::link::OVERHEAD_BYTES;
use crate::liveness::State;
use crate::path::Path;
use crate::seq::extend;
use crate::wire::{ControlKind, LinkReport, Malformed, Missing, REPORT_MISSING_MAX, Report};

/// Share of packets lost above which a path raises an event, and the kernel leaves it. Below half
/// of it the event is withdrawn: the stream that the daemon carries loses some at a full port.
pub(super) const LOSSY_SHARE: f64 = 0.005;
/// Queueing delay on the way to the peer above which a loss counts as congestion, in ns. TCP must
/// see it.
const CONGESTED_NS: u64 = 8_000_000;

impl Peer {
    /// Sends the report on every path with a destination. It is about the session of the newest
    /// packet.
    pub(super) fn send_report(&mut self, shared: &mut Shared<'_>) {
        let now_ns = shared.now_ns;
        self.report_due_ns = None;
        let (number, seq) = (self.arrival_session, self.report_seq.wrapping_add(1));
        let mut report = std::mem::take(&mut self.report);
        let Some(session) = self.session_mut(number) else {
            self.report = report;
            return; // the session of the report has ended
        };
        (report.seq, report.session) = (seq, session.local);
        report.clock_us = (now_ns / 1000) as u32;
        report.links.clear();
        report.missing.clear();
        let mut has_undecided = false;
        for (link, arrivals) in session.arrivals().iter_mut().enumerate() {
            if !arrivals.has_packets() {
                continue;
            }
            let (link, missing) = (link as u8, &mut report.missing);
            let (decided, held_ns) = arrivals.report(now_ns, |first, count| {
                let fits = missing.len() < REPORT_MISSING_MAX;
                if fits {
                    missing.push(Missing {
                        link,
                        first: first as u32,
                        count,
                    });
                }
                fits
            });
            has_undecided |= decided < arrivals.next();
            let Some(highest) = decided.checked_sub(1) else {
                continue; // the very first packet is missing and may only be late
            };
            report.links.push(LinkReport {
                link,
                highest: highest as u32,
                received: arrivals.received(),
                held_us: u32::try_from(held_ns / 1000).unwrap_or(u32::MAX),
            });
        }
        let mut body = Vec::with_capacity(512);
        report.emit(&mut body);
        (self.report, self.report_seq) = (report, seq);
        self.reported_at_ns = now_ns;
        self.report_due_ns = has_undecided.then_some(now_ns + 2 * REPORT_MIN_NS);
        for link in 0..self.paths.len() {
            let has_carrier = shared.links[link]
                .as_ref()
                .is_some_and(|link| link.has_carrier);
            if has_carrier && self.paths[link].destination.is_some() {
                self.send_control(link as u8, ControlKind::Report, &body, shared);
            }
        }
    }

    /// Evaluates a report from the peer.
    pub(crate) fn handle_report(
        &mut self,
        body: &[u8],
        shared: &mut Shared<'_>,
    ) -> Result<(), Malformed> {
        let mut report = std::mem::take(&mut self.report);
        let parsed = report.parse(body);
        if parsed.is_ok() && self.is_news(&report) {
            for link in &report.links {
                self.settle_link(link, &report, shared);
            }
            self.send_repairs(shared);
        }
        self.report = report;
        parsed
    }

    /// Returns whether a report is the first copy of the newest one, about the session in use for
    /// sending.
    fn is_news(&mut self, report: &Report) -> bool {
        let is_ours = self
            .current
            .as_ref()
            .is_some_and(|s| s.remote == report.session);
        let is_newer = self
            .newest_report_seq
            .is_none_or(|newest| report.seq.wrapping_sub(newest) as i32 > 0);
        if is_ours && is_newer {
            self.newest_report_seq = Some(report.seq);
        }
        is_ours && is_newer
    }

    fn settle_link(&mut self, link: &LinkReport, report: &Report, shared: &mut Shared<'_>) {
        let now_ns = shared.now_ns;
        let Some(path) = self.paths.get_mut(usize::from(link.link)) else {
            return;
        };
        let next = path.ledger.next_seq();
        let highest = extend(link.highest, next);
        if highest >= next {
            return; // acknowledges a datagram that was never sent
        }
        if let Some(sent) = path.ledger.get(highest) {
            let held_ns = u64::from(link.held_us) * 1000;
            path.rtt
                .sample(now_ns.saturating_sub(sent.queued_at_ns + held_ns).max(1));
            let network_ns = now_ns.saturating_sub(sent.departure_ns + held_ns).max(1);
            let wait_ns = sent.departure_ns.saturating_sub(sent.queued_at_ns);
            path.rtt.sample_network(now_ns, network_ns, wait_ns);
            let arrived_us = report.clock_us.wrapping_sub(link.held_us);
            let forward_us = arrived_us.wrapping_sub((sent.departure_ns / 1000) as u32);
            path.rtt.sample_forward(now_ns, forward_us, wait_ns);
        }
        let lost: Vec<LostRun> = report
            .missing
            .iter()
            .filter(|run| run.link == link.link)
            .map(|run| {
                let first = extend(run.first, next);
                first..first + u64::from(run.count)
            })
            .collect();
        let is_congested = path.rtt.queue_ns() > CONGESTED_NS;
        let (mut delivered_bytes, mut progressed, mut share) = (0u32, false, None);
        let mut resized = false;
        let (mut settled, mut repairs) = (Vec::new(), Vec::new());
        let Path {
            ledger,
            loss,
            counters,
            newest_acked_sent_ns,
            mtu,
            ..
        } = path;
        ledger.settle(highest, &lost, |sent, is_lost| {
            let datagram_bytes = sent.bytes as usize - OVERHEAD_BYTES;
            let is_probe = sent.is_probe();
            if !is_probe {
                share = loss.count(now_ns, is_lost).or(share);
                counters.lost += u64::from(is_lost);
            }
            if is_lost {
                mtu.note_lost(datagram_bytes, is_probe);
            } else {
                resized |= mtu.note_delivered(now_ns, datagram_bytes);
            }
            match (sent.unit, is_lost && !is_congested) {
                (Some(unit), true) => repairs.push(unit),
                (Some(unit), false) => settled.push(unit),
                (None, _) => {}
            }
            if !is_lost {
                delivered_bytes += sent.bytes;
                progressed |= sent.eliciting;
                *newest_acked_sent_ns = sent.queued_at_ns.max(*newest_acked_sent_ns);
            }
        });
        settled
            .into_iter()
            .for_each(|unit| self.retained.settle(unit, shared.pool));
        repairs.into_iter().for_each(|unit| self.queue_repair(unit));
        self.earn_repairs(delivered_bytes);
        if let Some(local) = &shared.links[usize::from(link.link)] {
            let path = &mut self.paths[usize::from(link.link)];
            let queue_ns = path.rtt.queue_ns();
            let link_bps = local.capacity.rate_bps();
            let arrived = (delivered_bytes, path.ledger.oldest_open().is_none());
            path.bottleneck
                .note_report(now_ns, arrived, queue_ns, link_bps);
        }
        if resized {
            self.fit_units();
        }
        if progressed {
            self.paths[usize::from(link.link)].answered_at_ns = now_ns;
        }
        // A path is used again only after it has been shown to carry full datagrams. Of a path in
        // use, the silence of the peer's kernel counts if it has answered: datagrams may arrive
        // where frames do not.
        let path = &self.paths[usize::from(link.link)];
        let decides = !path.is_settled() || !path.direct.is_asked(now_ns);
        if progressed && decides && (path.is_settled() || path.mtu.is_confirmed()) {
            let alone = !self.paths.iter().any(Path::is_settled);
            let path = &mut self.paths[usize::from(link.link)];
            if let Some(to) = path.destination {
                path.partners.note_answer(to);
            }
            if let Some(change) = path.liveness.handle_ack(now_ns, alone) {
                // Losses before the path healed do not describe the healed path.
                share = share.filter(|_| change.from == State::Suspect);
                self.apply(link.link, change, shared);
            }
        }
        if let Some(share) = share {
            self.judge_loss(link.link, share, shared);
        }
    }

    /// Acts on the share of packets lost on a path.
    pub(super) fn judge_loss(&mut self, link: u8, share: f64, shared: &mut Shared<'_>) {
        let path = &mut self.paths[usize::from(link)];
        let was_lossy = path.is_lossy;
        path.is_lossy = if was_lossy {
            share > LOSSY_SHARE / 2.0
        } else {
            share > LOSSY_SHARE
        };
        path.direct.is_lossy &= path.is_lossy;
        if path.is_lossy != was_lossy {
            shared.events.push_back(crate::event::Event::Lossy {
                node: self.params.node,
                name: self.params.name.clone(),
                link,
                share,
                is_lossy: path.is_lossy,
            });
        }
        if let Some(change) = path.liveness.handle_loss(shared.now_ns, share) {
            self.apply(link, change, shared);
        }
    }
}
