//! Chooses the peer's link that a path sends to, its partner, among those that it heard.
//!
//! Links are paired in order: a link sends to the peer's link of its own number, or of its rank. A
//! path that does not answer moves to another link of the peer that was heard lately. Cables may
//! have been swapped, or two links on one switch may have failed, one at each end. Two paths never
//! move to one partner, because they would share its capacity.

use core::net::SocketAddr;

use crate::wire::LINKS_MAX;

/// Time for which a partner counts as present after it was heard, in ns: three hellos.
pub const HEARD_LATELY_NS: u64 = 3_000_000_000;
/// Time after a failed attempt for which a datagram from that partner does not bring the path back
/// to it, in ns.
const FAILED_LATELY_NS: u64 = 1_000_000_000;

/// A link of the peer, as heard on one local link.
#[derive(Debug, Clone, Copy)]
struct Partner {
    /// Number that the peer gave the link.
    remote: u8,
    address: SocketAddr,
    /// Time at which the last authentic datagram from it arrived.
    heard_ns: u64,
    /// Time at which a path last left it because it did not answer; 0: never.
    failed_ns: u64,
    /// True if the administrator configured the address. It need not be heard to be tried.
    is_configured: bool,
}

impl Partner {
    fn is_present(&self, now_ns: u64) -> bool {
        self.is_configured || now_ns < self.heard_ns + HEARD_LATELY_NS
    }
}

/// Returns whether two addresses denote the same socket. A link-local address has another scope on
/// each local link.
pub fn is_same_socket(a: SocketAddr, b: SocketAddr) -> bool {
    a.ip() == b.ip() && a.port() == b.port()
}

/// The peer's links that one local link hears, by number.
#[derive(Debug, Default)]
pub struct Partners {
    known: Vec<Partner>,
}

impl Partners {
    /// Records that the peer's link `remote` was heard from `address`. Returns whether that is new.
    ///
    /// The address of a partner in use (`in_use`) stays as it is: a copied datagram must not move a
    /// path that works.
    pub fn note_heard(
        &mut self,
        remote: u8,
        address: SocketAddr,
        in_use: Option<SocketAddr>,
        now_ns: u64,
    ) -> bool {
        if let Some(partner) = self.known.iter_mut().find(|known| known.remote == remote) {
            if partner.address != address && in_use == Some(partner.address) {
                return false;
            }
            let is_moved = partner.address != address;
            let is_news = is_moved || !partner.is_present(now_ns);
            (partner.address, partner.heard_ns) = (address, now_ns);
            if is_moved {
                partner.failed_ns = 0;
            }
            return is_news;
        }
        if self.known.len() == LINKS_MAX {
            return false;
        }
        self.known.push(Partner {
            remote,
            address,
            heard_ns: now_ns,
            failed_ns: 0,
            is_configured: false,
        });
        self.known.sort_unstable_by_key(|partner| partner.remote);
        true
    }

    /// Marks the address as configured by the administrator: it always counts as present.
    pub fn note_configured(&mut self, address: SocketAddr) {
        for partner in self.known.iter_mut().filter(|p| p.address == address) {
            partner.is_configured = true;
        }
    }

    /// Records that the partner at `address` did not answer.
    pub fn note_failed(&mut self, address: SocketAddr, now_ns: u64) {
        for partner in self.known.iter_mut().filter(|p| p.address == address) {
            partner.failed_ns = now_ns;
        }
    }

    /// Records that the partner at `address` answers.
    pub fn note_answer(&mut self, address: SocketAddr) {
        for partner in self.known.iter_mut().filter(|p| p.address == address) {
            partner.failed_ns = 0;
        }
    }

    /// Returns whether the partner at `address` was left without an answer a moment ago.
    pub fn has_failed_lately(&self, address: SocketAddr, now_ns: u64) -> bool {
        let mut known = self.known.iter();
        known.any(|partner| {
            let failed_ns = partner.failed_ns;
            partner.address == address && failed_ns > 0 && now_ns < failed_ns + FAILED_LATELY_NS
        })
    }

    /// Chooses the partner of local link `own`; `rank` is its position among the local links. Of
    /// the partners present, it is the one that failed longest ago. Ties are decided by the order
    /// of preference. If none is present, all known partners are considered.
    ///
    /// `taken` holds the destinations of the other paths in use. A partner among them is chosen
    /// only if it is the preferred one.
    pub fn choose(
        &self,
        now_ns: u64,
        own: u8,
        rank: usize,
        taken: &[SocketAddr],
    ) -> Option<SocketAddr> {
        let is_any_present = self.known.iter().any(|p| p.is_present(now_ns));
        let eligible = || {
            let known = self.known.iter();
            known.filter(|p| p.is_present(now_ns) || !is_any_present)
        };
        let count = eligible().count();
        let order = |index: usize, partner: &Partner| match partner.remote == own {
            true => 0,
            false => 1 + (index + count - rank % count) % count,
        };
        let ordered = || eligible().enumerate().map(|(i, p)| (order(i, p), p));
        let default = ordered().map(|(order, _)| order).min()?;
        ordered()
            .map(|(order, p)| {
                let is_taken = taken.iter().any(|used| is_same_socket(*used, p.address));
                (p.failed_ns, is_taken, order, p.address)
            })
            .filter(|(_, is_taken, order, _)| !is_taken || *order == default)
            .min_by_key(|(failed_ns, is_taken, order, _)| (*failed_ns, *is_taken, *order))
            .map(|(.., address)| address)
    }

    /// Returns the address of every partner.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.known.iter().map(|partner| partner.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn place(remote: u8) -> SocketAddr {
        ([10, 0, 0, remote + 1], 7000).into()
    }

    fn partners(numbers: &[u8]) -> Partners {
        let mut partners = Partners::default();
        for number in numbers {
            assert!(partners.note_heard(*number, place(*number), None, S));
        }
        partners
    }

    #[test]
    fn partner__same_link_number__is_preferred_and_same_rank_is_next() {
        assert_eq!(partners(&[0, 1, 2]).choose(S, 2, 0, &[]), Some(place(2)));
        assert_eq!(partners(&[0, 1]).choose(S, 5, 3, &[]), Some(place(1)));
        assert_eq!(Partners::default().choose(S, 0, 0, &[]), None);
    }

    #[test]
    fn partner__failed_one__is_replaced_by_the_one_that_failed_longest_ago() {
        let mut partners = partners(&[0, 1]);
        partners.note_failed(place(0), 2 * S);
        assert_eq!(partners.choose(2 * S, 0, 0, &[]), Some(place(1)));
        partners.note_failed(place(1), 3 * S);
        assert_eq!(partners.choose(3 * S, 0, 0, &[]), Some(place(0)));
    }

    #[test]
    fn partner__link_used_by_another_path__is_not_chosen() {
        let mut partners = partners(&[0, 1]);
        partners.note_failed(place(0), 2 * S);
        assert_eq!(partners.choose(2 * S, 0, 0, &[place(1)]), Some(place(0)));
    }

    #[test]
    fn partner__link_not_heard_recently__is_chosen_only_if_no_other_is_available() {
        let mut partners = partners(&[0, 1]);
        let later_ns = S + HEARD_LATELY_NS;
        assert_eq!(partners.choose(later_ns, 0, 0, &[]), Some(place(0)));
        partners.note_heard(1, place(1), None, later_ns);
        assert_eq!(partners.choose(later_ns, 0, 0, &[]), Some(place(1)));
        partners.note_configured(place(0));
        assert_eq!(partners.choose(later_ns, 0, 0, &[]), Some(place(0)));
    }

    #[test]
    fn partner__link_in_use__ignores_a_copied_datagram_from_another_address() {
        let mut partners = partners(&[0]);
        assert!(!partners.note_heard(0, place(9), Some(place(0)), S));
        assert!(partners.note_heard(0, place(9), None, S));
    }
}
