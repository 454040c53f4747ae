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
    has_voted: bool,
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
            has_voted: false,
        }
    }

    /// Returns the initial ranks of the members, by current rank.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// Returns the current rank of this process.
    pub fn rank(&self) -> usize {
        let position = self.members.iter().position(|member| *member == self.rank);
        position.unwrap_or(0)
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
    fn is_intact(&self) -> bool {
        self.lost.len() == self.term as usize
    }

    /// Marks a rank as lost. Returns whether that is new.
    pub fn lose(&mut self, rank: usize) -> bool {
        rank < self.ranks && rank != self.rank && self.lost.insert(rank)
    }

    /// Votes to continue without the lost ranks. Returns the vote to send to all others.
    pub fn begin(&mut self) -> Vec<u8> {
        self.has_voted = true;
        self.vote()
    }

    /// Returns whether this rank has voted and waits for an agreement.
    pub fn is_voting(&self) -> bool {
        self.has_voted
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
    pub fn record_vote(&mut self, from: usize, set: &[u8]) -> Option<Vec<usize>> {
        if from >= self.ranks || set.len() != self.ranks.div_ceil(8) {
            return None;
        }
        let has = |rank: usize| set[rank / 8] >> (rank % 8) & 1 == 1;
        if (self.ranks..8 * set.len()).any(has) {
            return None;
        }
        let lost: BTreeSet<usize> = (0..self.ranks).filter(|rank| has(*rank)).collect();
        let new_losses = lost.difference(&self.lost).copied().collect();
        // The control messages of a rank arrive in order, and its sets only grow.
        self.votes[from] = Some(lost);
        Some(new_losses)
    }

    /// Returns the other live ranks that have not voted for this rank's set.
    pub fn missing_votes(&self) -> Vec<usize> {
        let living = (0..self.ranks).filter(|rank| !self.lost.contains(rank));
        let agrees = |rank: &usize| self.votes[*rank].as_ref() == Some(&self.lost);
        living
            .filter(|rank| *rank != self.rank && !agrees(rank))
            .collect()
    }

    /// Begins a new term if all live ranks agree. Returns whether it has begun.
    pub fn agree(&mut self) -> bool {
        if !self.has_voted || !self.missing_votes().is_empty() {
            return false;
        }
        self.has_voted = false;
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
            let mut group: Vec<Membership> = (0..ranks)
                .map(|rank| Membership::new(rank, ranks))
                .collect();
            let mut dead = vec![false; ranks];
            // Control messages in flight, by sender and receiver, in order.
            let mut in_flight = vec![vec![Vec::new(); ranks]; ranks];
            let mut deaths_left = random.usize(1..ranks);
            for _ in 0..20_000 {
                let sender = random.usize(0..ranks);
                let receiver = random.usize(0..ranks);
                if deaths_left > 0 && random.f64() < 0.02 && !dead[sender] {
                    dead[sender] = true;
                    deaths_left -= 1;
                    // Some of its last messages are lost with it.
                    for queue in &mut in_flight[sender] {
                        queue.truncate(random.usize(0..=queue.len()));
                    }
                }
                if dead[receiver] || receiver == sender {
                    continue;
                }
                let lost_before = group[receiver].lost.len();
                // The survivor's own detector fires at some time; otherwise it handles a message,
                // if there is one.
                if dead[sender] && in_flight[sender][receiver].is_empty() && random.f64() < 0.1 {
                    group[receiver].lose(sender);
                } else if !in_flight[sender][receiver].is_empty() {
                    let message: Vec<u8> = in_flight[sender][receiver].remove(0);
                    for lost in group[receiver].record_vote(sender, &message).unwrap() {
                        group[receiver].lose(lost);
                    }
                }
                let begins = !group[receiver].is_voting() && !group[receiver].is_intact();
                if begins
                    || (group[receiver].is_voting() && group[receiver].lost.len() > lost_before)
                {
                    let vote = group[receiver].begin();
                    for queue in &mut in_flight[receiver] {
                        queue.push(vote.clone());
                    }
                }
                group[receiver].agree();
            }
            let survivors: Vec<usize> = (0..ranks).filter(|rank| !dead[*rank]).collect();
            for rank in &survivors {
                assert_eq!(group[*rank].members(), survivors, "seed {seed}");
                assert!(
                    group[*rank].is_intact() && !group[*rank].is_voting(),
                    "seed {seed}"
                );
            }
        }
    }

    #[test]
    fn membership__malformed_set_or_unknown_sender__is_refused() {
        let mut membership = Membership::new(0, 3);
        assert_eq!(membership.record_vote(1, &[]), None);
        assert_eq!(membership.record_vote(1, &[0b1000]), None);
        assert_eq!(membership.record_vote(3, &[0]), None);
        assert_eq!(membership.record_vote(1, &[0b101]), Some(vec![0, 2]));
        assert!(!membership.lose(0) && membership.lose(2));
    }
}
