//! Questions to the peers' kernels, and what their answers tell.
//!
//! A question leaves on a path behind the frames that were sent before it. The peer's program
//! answers it at once, with the bytes that have arrived, and this side's program keeps the answer.
//! So neither waits for a daemon. The answers show that a path is alive, what is on the way, and
//! how fast it is.

use super::intf::{Path, QUESTION_TYPE, Question, Way};
use super::known::Known;
use super::{Datapath, byte_time, kernel_ns, link_bps};
use kumi_multilink::endpoint::Endpoint;
use kumi_multilink::wire::{LINKS_MAX, Mac};
use zerocopy::IntoBytes;

/// Least interval of questions to a peer that is in use, in ns: one may be lost within the 4 ms
/// after which a path is suspect.
const ASK_NS: u64 = 2_000_000;
/// Time that each path in use adds to the interval, in ns. With more than 20 paths the interval is
/// longer than [`ASK_NS`]. Chosen by judgement, not measured with that number of paths.
const ASK_EACH_NS: u64 = 100_000;
/// Interval of questions to a peer that is not in use, in ns: that of the daemons' pings.
const ASK_IDLE_NS: u64 = 100_000_000;

impl Datapath {
    /// Passes the answers that arrived to the core and the programs.
    pub fn hear(&mut self, core: &mut Endpoint, now_ns: u64) {
        let kernel_now_ns = kernel_ns();
        let mut outcome = Ok(());
        for (mac, peer) in &mut self.peers {
            for link in 0..LINKS_MAX as u8 {
                let asked = &mut peer.asked[usize::from(link)];
                if asked.answered_ns == asked.last_ns {
                    continue;
                }
                let answer = self.program.answer_of(peer.number, link);
                let is_ours = |at_ns| at_ns > asked.answered_ns && at_ns <= asked.last_ns;
                let Some(answer) = answer.filter(|answer| is_ours(answer.asked_at_ns)) else {
                    continue;
                };
                asked.answered_ns = answer.asked_at_ns;
                let age_ns = kernel_now_ns.saturating_sub(answer.asked_at_ns);
                let trip_ns = answer.arrived_at_ns.saturating_sub(answer.asked_at_ns);
                let timed = (now_ns.saturating_sub(age_ns), trip_ns);
                core.note_answer(*mac, link, timed, now_ns);
                let sent_bytes = self.program.count_of(peer.number, link).sent_bytes;
                let drain = &mut peer.drains[usize::from(link)];
                let drained = drain.note(answer, sent_bytes, link_bps(core, link));
                peer.rates_bps[usize::from(link)] = drained.rate_bps;
                let losses = &mut peer.losses[usize::from(link)];
                let is_exact = answer.asked_at_ns != asked.inexact_ns;
                let lost = losses.note(answer, is_exact, drained.is_waiting, drained.rate_bps);
                if let Some(share) = lost {
                    core.note_carried(*mac, link, share, now_ns);
                }
                // Of several questions that wait, the last one is known.
                let is_open = asked.last_ns > asked.answered_ns;
                asked.path = Path {
                    byte_time: byte_time(drained.rate_bps),
                    latency_ns: drained.travel_ns,
                    left_bytes: drained.left_bytes,
                    left_at_ns: drained.at_ns,
                    asked_at_ns: if is_open { asked.last_ns } else { 0 },
                };
                let set = self.program.set_path(peer.number, link, &asked.path);
                outcome = outcome.and(set);
            }
        }
        self.note_failure(outcome);
    }

    /// Asks the peers' kernels where that is due.
    pub(super) fn ask(&mut self, core: &mut Endpoint, now_ns: u64) {
        if now_ns < self.ask_at_ns {
            return;
        }
        let is_used = |peer: &&Known| now_ns < peer.used_until_ns;
        let used = self.peers.values().filter(is_used);
        let paths: usize = used.map(|peer| ways(peer).count()).sum();
        let used_ns = ASK_NS.max(ASK_EACH_NS * paths as u64);
        self.ask_at_ns = now_ns + ASK_IDLE_NS;
        let mut outcome = Ok(());
        for (mac, peer) in &mut self.peers {
            let interval_ns = match now_ns < peer.used_until_ns {
                true => used_ns,
                false => ASK_IDLE_NS,
            };
            if now_ns >= peer.asked_at_ns + interval_ns {
                peer.asked_at_ns = now_ns;
                let asked: Vec<(u8, Way)> = ways(peer).collect();
                for (link, way) in asked {
                    let Some((index, own)) = self.links[usize::from(link)] else {
                        continue;
                    };
                    let sent_bytes = self.program.count_of(peer.number, link).sent_bytes;
                    let at_ns = kernel_ns();
                    let question = Question::new(at_ns, sent_bytes, &own.key);
                    // A question that is lost, here or later, is as good as one without an answer.
                    let _ = self
                        .questions
                        .send(index, QUESTION_TYPE, &frame(way, &question));
                    let asked = &mut peer.asked[usize::from(link)];
                    asked.last_ns = at_ns;
                    if self.program.count_of(peer.number, link).sent_bytes != sent_bytes {
                        asked.inexact_ns = at_ns;
                    }
                    if asked.path.asked_at_ns == 0 && asked.path.byte_time > 0 {
                        asked.path.asked_at_ns = at_ns;
                        let set = self.program.set_path(peer.number, link, &asked.path);
                        outcome = outcome.and(set);
                    }
                    core.note_question(*mac, link, now_ns);
                }
            }
            self.ask_at_ns = self.ask_at_ns.min(peer.asked_at_ns + interval_ns);
        }
        self.note_failure(outcome);
    }
}

/// Iterates over the ways to a peer, by link.
fn ways(peer: &Known) -> impl Iterator<Item = (u8, Way)> + use<> {
    let ways = peer.reached.map(|reached| reached.ways).into_iter();
    let ways = (0..).zip(ways.flatten());
    ways.filter(|(_, way)| way.to != Mac::default())
}

/// Returns the whole frame of a question.
fn frame(way: Way, question: &Question) -> Vec<u8> {
    let ether_type = QUESTION_TYPE.to_be_bytes();
    [way.as_bytes(), &ether_type, question.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question__golden_bytes__are_stable() {
        let way = Way {
            to: [2, 0, 0, 0, 0, 1],
            from: [2, 0, 0, 0, 0, 2],
        };
        let frame = frame(way, &Question::new(3, 4, &[5; 16]));
        let shortest = 60; // without the check sequence
        assert_eq!(frame.len(), shortest + 2);
        assert_eq!(
            frame[..14],
            [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]
        );
        assert_eq!(frame[14], 1);
        assert_eq!(
            frame[22..38],
            [0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4]
        );
        assert_eq!(frame[38..54], [0; 16]);
        assert_eq!(frame[54..], [123, 242, 151, 23, 145, 49, 102, 103]);
    }
}
