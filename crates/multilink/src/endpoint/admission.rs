//! Admission of handshakes: which are processed, and which senders must first prove their address
//! (ADR 025).
//!
//! The order of checks is WireGuard's, with one MAC in place of its two. A message that no node of
//! the cluster made is dropped before it gets here. A message that gets here may still be a
//! recording that an attacker on the path sends again. Each message is therefore processed only
//! once. Above a rate, its sender must put a cookie into it. Only a sender that receives at its
//! address and holds the key can do so.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use crate::secure::{ClusterKey, Tag};

/// Handshakes without a cookie that are processed per second. Each costs about 100 µs, mostly for
/// the Diffie-Hellman of its answer, so recordings take a twentieth of a core.
const UNPROVEN_PER_S: f64 = 500.0;
/// Handshakes with a cookie that are processed per second. A cluster of a thousand nodes that
/// starts at once takes two seconds.
const PROVEN_PER_S: f64 = 500.0;
/// Cookie replies per second. Each costs two HMACs and 52 bytes. A genuine node gets no cookie only
/// while recordings arrive faster than this.
const COOKIES_PER_S: f64 = 20_000.0;
/// Messages that are remembered, so that a copy costs one HMAC. A genuine node makes one every two
/// minutes: these are eight hours of handshakes with sixteen peers.
const RECENT_MAX: usize = 4096;
/// Time for which a cookie is issued, in ns: WireGuard's `COOKIE_SECRET_MAX_AGE`. It is accepted
/// for as long again.
const COOKIE_NS: u64 = 120_000_000_000;

/// Token bucket with a burst of one second.
#[derive(Debug)]
struct Tokens {
    rate_per_s: f64,
    available: f64,
    updated_at_ns: u64,
}

impl Tokens {
    fn new(rate_per_s: f64, now_ns: u64) -> Self {
        Self {
            rate_per_s,
            available: rate_per_s,
            updated_at_ns: now_ns,
        }
    }

    fn take(&mut self, now_ns: u64) -> bool {
        let earned = now_ns.saturating_sub(self.updated_at_ns) as f64 * self.rate_per_s / 1e9;
        self.available = (self.available + earned).min(self.rate_per_s);
        self.updated_at_ns = now_ns;
        let has_token = self.available >= 1.0;
        self.available -= f64::from(u8::from(has_token));
        has_token
    }
}

/// Decision about a handshake message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is processed. `is_proven`: its sender has proven its address.
    Admitted { is_proven: bool },
    /// Its sender must send it again with a cookie.
    Challenged,
    /// It was processed before.
    Replayed,
    /// Too many messages arrive.
    Refused,
}

/// Rate limits and remembered messages of one endpoint.
#[derive(Debug)]
pub(super) struct Admission {
    unproven: Tokens,
    proven: Tokens,
    cookies: Tokens,
    recent: HashSet<Tag>,
    oldest: VecDeque<Tag>,
}

impl Admission {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            unproven: Tokens::new(UNPROVEN_PER_S, now_ns),
            proven: Tokens::new(PROVEN_PER_S, now_ns),
            cookies: Tokens::new(COOKIES_PER_S, now_ns),
            recent: HashSet::new(),
            oldest: VecDeque::new(),
        }
    }

    /// Decides about the message with the MAC `tag`.
    pub(super) fn judge(&mut self, tag: Tag, is_proven: bool, now_ns: u64) -> Verdict {
        if self.recent.contains(&tag) {
            return Verdict::Replayed;
        }
        let verdict = if is_proven {
            match self.proven.take(now_ns) {
                true => Verdict::Admitted { is_proven },
                false => Verdict::Refused,
            }
        } else if self.unproven.take(now_ns) {
            Verdict::Admitted { is_proven }
        } else if self.cookies.take(now_ns) {
            Verdict::Challenged
        } else {
            Verdict::Refused
        };
        if verdict != Verdict::Refused {
            self.remember(tag);
        }
        verdict
    }

    /// Returns whether one more cookie may be sent, and counts it.
    pub(super) fn may_challenge(&mut self, now_ns: u64) -> bool {
        self.cookies.take(now_ns)
    }

    fn remember(&mut self, tag: Tag) {
        if self.oldest.len() == RECENT_MAX {
            if let Some(oldest) = self.oldest.pop_front() {
                self.recent.remove(&oldest);
            }
        }
        self.oldest.push_back(tag);
        self.recent.insert(tag);
    }
}

/// Cookies of one endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cookies<'a> {
    pub(super) key: &'a ClusterKey,
    /// Epoch of the endpoint. Another epoch issues other cookies.
    pub(super) instance: u64,
}

impl Cookies<'_> {
    /// Returns the cookie that is now valid for `sender` on `link`.
    pub(super) fn cookie(&self, link: u8, sender: SocketAddr, now_ns: u64) -> Tag {
        self.cookie_at_epoch(link, sender, now_ns / COOKIE_NS)
    }

    /// Returns whether `cookie` was issued to `sender` on `link` lately.
    pub(super) fn is_valid(&self, cookie: Tag, link: u8, sender: SocketAddr, now_ns: u64) -> bool {
        let epoch = now_ns / COOKIE_NS;
        let epochs = [Some(epoch), epoch.checked_sub(1)];
        let mut valid_epochs = epochs.into_iter().flatten();
        cookie != Tag::default()
            && valid_epochs.any(|epoch| self.cookie_at_epoch(link, sender, epoch) == cookie)
    }

    fn cookie_at_epoch(&self, link: u8, sender: SocketAddr, epoch: u64) -> Tag {
        let mut text = Vec::with_capacity(35);
        text.extend_from_slice(&self.instance.to_be_bytes());
        text.extend_from_slice(&epoch.to_be_bytes());
        text.push(link);
        let ip = match sender.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        text.extend_from_slice(&ip.octets());
        text.extend_from_slice(&sender.port().to_be_bytes());
        self.key.cookie(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn tag(number: u32) -> Tag {
        let mut tag = Tag::default();
        tag[..4].copy_from_slice(&number.to_be_bytes());
        tag
    }

    #[test]
    fn admission__unproven_messages_beyond_the_rate__are_limited_and_proven_ones_admitted() {
        let mut admission = Admission::new(0);
        let verdicts: Vec<Verdict> = (0..10_000)
            .map(|number| admission.judge(tag(number), false, u64::from(number) * S / 10_000))
            .collect();
        let admitted = verdicts
            .iter()
            .filter(|verdict| matches!(verdict, Verdict::Admitted { .. }));
        assert!((990..=1010).contains(&admitted.count()));
        let genuine = admission.judge(tag(20_000), true, S);
        assert_eq!(genuine, Verdict::Admitted { is_proven: true });
    }

    #[test]
    fn admission__repeated_message__is_a_replay_and_costs_no_token() {
        let mut admission = Admission::new(0);
        let first = admission.judge(tag(1), false, 0);
        assert_eq!(first, Verdict::Admitted { is_proven: false });
        for _ in 0..10_000 {
            assert_eq!(admission.judge(tag(1), false, 0), Verdict::Replayed);
        }
        let second = admission.judge(tag(2), false, 0);
        assert_eq!(second, Verdict::Admitted { is_proven: false });
    }

    #[test]
    fn admission__any_number_of_messages__memory_stays_bounded() {
        let mut admission = Admission::new(0);
        for number in 0..3 * RECENT_MAX as u32 {
            admission.judge(tag(number), false, u64::from(number) * S);
        }
        assert_eq!(
            (admission.recent.len(), admission.oldest.len()),
            (RECENT_MAX, RECENT_MAX)
        );
    }

    #[test]
    fn cookie__other_address_or_link_or_too_old__is_refused() {
        let key = ClusterKey::from_bytes([7; 32]);
        let cookies = Cookies {
            key: &key,
            instance: 5,
        };
        let (sender, second) = (([10, 0, 0, 1], 7).into(), ([10, 0, 0, 2], 7).into());
        let cookie = cookies.cookie(0, sender, 10 * S);
        assert!(cookies.is_valid(cookie, 0, sender, 20 * S));
        assert!(cookies.is_valid(cookie, 0, sender, 200 * S));
        assert!(!cookies.is_valid(cookie, 0, sender, 300 * S));
        assert!(!cookies.is_valid(cookie, 0, second, 20 * S));
        assert!(!cookies.is_valid(cookie, 1, sender, 20 * S));
        assert!(!cookies.is_valid(Tag::default(), 0, sender, 20 * S));
    }
}
