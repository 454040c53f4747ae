//! Membership of a group, and the agreement of the surviving ranks on a new one.
//!
//! A lost rank stays lost. Each rank that wants to continue votes: it sends the set of ranks that
//! it considers lost. A rank that learns of further losses votes again.
//!
//! When all ranks that a rank considers alive have voted for the same set as itself, the set
//! determines the new membership. The size of the set is the term's number. Sets only grow, so of
//! two sets on which the same ranks agreed the larger is the later. If a rank dies after some ranks
//! have agreed and before others have, all of them consider it lost. The first then agree again.

use std::collections::BTreeSet;

/// Membership of a group. Unless stated otherwise, ranks are initial ones: those of the group's
/// start.
#[derive(Debug, Clone)]
pub struct Membership {
    rank: usize,
    ranks: usize,
    lost: BTreeSet<usize>,
    /// Initial ranks of the current members. Some of them may have been lost since the term began.
    members: Vec<usize>,
    term: u32,
    votes: Vec<Option<BTreeSet<usize>>>,
    /// True if this rank has voted and waits for an agreement.
    votes_itself: bool,
}

impl Membership {
    /// Returns the membership of all ranks of a new group, as `rank` sees it.
    pub fn new(rank: usize, ranks: usize) -> Self {
        Self {
            rank,
            ranks,
            lost: BTreeSet::new(),
            members: (0..ranks).collect(),
            term: 0,
            votes: vec![None; ranks],
            votes_itself: false,
        }
    }

    /// Returns the initial ranks of the members, by current rank.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// Returns the current rank of this process.
    pub fn rank(&self) -> usize {
        let place = self.members.iter().position(|member| *member == self.rank);
        place.unwrap_or(0)
    }

    /// Returns the term's number, which is the number of ranks lost before it.
    pub fn term(&self) -> u32 {
        self.term
    }

    /// Returns whether a rank is lost.
    pub fn is_lost(&self, rank: usize) -> bool {
        self.lost.contains(&rank)
    }

    /// Returns whether no member has been lost since the term began.
    #[cfg(test)]
    fn is_whole(&self) -> bool {
        self.lost.len() == self.term as usize
    }

    /// Marks a rank as lost. Returns whether that is new.
    pub fn lose(&mut self, rank: usize) -> bool {
        rank < self.ranks && rank != self.rank && self.lost.insert(rank)
    }

    /// Votes to continue without the lost ranks. Returns the vote to send to all others.
    pub fn begin(&mut self) -> Vec<u8> {
        self.votes_itself = true;
        self.vote()
    }

    /// Returns whether this rank has voted and waits for an agreement.
    pub fn is_voting(&self) -> bool {
        self.votes_itself
    }

    /// Returns this rank's vote: a bit for each rank, set if it is lost.
    pub fn vote(&self) -> Vec<u8> {
        let mut set = vec![0; self.ranks.div_ceil(8)];
        for lost in &self.lost {
            set[lost / 8] |= 1 << (lost % 8);
        }
        set
    }

    /// Records a rank's vote. Returns the ranks in it that this rank did not know to be lost, which
    /// may include this rank itself. Returns `None` if the vote is malformed.
    pub fn hear(&mut self, from: usize, set: &[u8]) -> Option<Vec<usize>> {
        if from >= self.ranks || set.len() != self.ranks.div_ceil(8) {
            return None;
        }
        let has = |rank: usize| set[rank / 8] >> (rank % 8) & 1 == 1;
        if (self.ranks..8 * set.len()).any(has) {
            return None;
        }
        let lost: BTreeSet<usize> = (0..self.ranks).filter(|rank| has(*rank)).collect();
        let news = lost.difference(&self.lost).copied().collect();
        // The control messages of a rank arrive in order, and its sets only grow.
        self.votes[from] = Some(lost);
        Some(news)
    }

    /// Returns the other live ranks that have not voted for this rank's set.
    pub fn silent(&self) -> Vec<usize> {
        let living = (0..self.ranks).filter(|rank| !self.lost.contains(rank));
        let agrees = |rank: &usize| self.votes[*rank].as_ref() == Some(&self.lost);
        living
            .filter(|rank| *rank != self.rank && !agrees(rank))
            .collect()
    }

    /// Begins a new term if all live ranks agree. Returns whether it has begun.
    pub fn agree(&mut self) -> bool {
        if !self.votes_itself || !self.silent().is_empty() {
            return false;
        }
        self.votes_itself = false;
        self.term = self.lost.len() as u32;
        self.members = (0..self.ranks)
            .filter(|rank| !self.lost.contains(rank))
            .collect();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks lose each other at random moments. Control messages of different ranks arrive in any
    /// order. All survivors must end in the same membership, which is the set of survivors.
    #[test]
    fn survivors__ranks_lost_at_random_moments__agree_on_the_membership() {
        for seed in 0..500 {
            let mut random = fastrand::Rng::with_seed(seed);
            let ranks = random.usize(2..9);
            let mut all: Vec<Membership> = (0..ranks)
                .map(|rank| Membership::new(rank, ranks))
                .collect();
            let mut dead = vec![false; ranks];
            // Control messages in flight, by sender and receiver, in order.
            let mut words = vec![vec![Vec::new(); ranks]; ranks];
            let mut deaths_left = random.usize(1..ranks);
            for _ in 0..20_000 {
                let at = random.usize(0..ranks);
                let by = random.usize(0..ranks);
                if deaths_left > 0 && random.f64() < 0.02 && !dead[at] {
                    dead[at] = true;
                    deaths_left -= 1;
                    // Some of its last messages are lost with it.
                    for to in &mut words[at] {
                        to.truncate(random.usize(0..=to.len()));
                    }
                }
                if dead[by] || by == at {
                    continue;
                }
                let before = all[by].lost.len();
                // The survivor's own detector fires at some time; otherwise it handles a message,
                // if there is one.
                if dead[at] && words[at][by].is_empty() && random.f64() < 0.1 {
                    all[by].lose(at);
                } else if !words[at][by].is_empty() {
                    let word: Vec<u8> = words[at][by].remove(0);
                    for lost in all[by].hear(at, &word).unwrap() {
                        all[by].lose(lost);
                    }
                }
                let begins = !all[by].is_voting() && !all[by].is_whole();
                if begins || (all[by].is_voting() && all[by].lost.len() > before) {
                    let vote = all[by].begin();
                    for to in &mut words[by] {
                        to.push(vote.clone());
                    }
                }
                all[by].agree();
            }
            let living: Vec<usize> = (0..ranks).filter(|rank| !dead[*rank]).collect();
            for rank in &living {
                assert_eq!(all[*rank].members(), living, "seed {seed}");
                assert!(
                    all[*rank].is_whole() && !all[*rank].is_voting(),
                    "seed {seed}"
                );
            }
        }
    }

    #[test]
    fn membership__malformed_set_or_unknown_sender__is_refused() {
        let mut membership = Membership::new(0, 3);
        assert_eq!(membership.hear(1, &[]), None);
        assert_eq!(membership.hear(1, &[0b1000]), None);
        assert_eq!(membership.hear(3, &[0]), None);
        assert_eq!(membership.hear(1, &[0b101]), Some(vec![0, 2]));
        assert!(!membership.lose(0) && membership.lose(2));
    }
}
