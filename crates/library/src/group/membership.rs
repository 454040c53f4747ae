//! Who is in the group, and how those who are left agree on it.
//!
//! A rank that is lost stays lost. Ranks that would go on each say whom they take for lost; whoever hears of more
//! says so again. When all that a rank takes for living have said the same set as itself, the set is the new
//! membership, and its size the term's number: sets only grow, so of two that were agreed on by the same ranks the
//! larger is the later. Who dies after some have agreed and before others have is lost to both: the
//! first agree once more.

use std::collections::BTreeSet;

/// Ranks by the numbers that they had when the group began.
#[derive(Debug, Clone)]
pub struct Membership {
    rank: usize,
    ranks: usize,
    lost: BTreeSet<usize>,
    /// What the members are now: those that the term began with, some of them perhaps lost since.
    members: Vec<usize>,
    term: u32,
    votes: Vec<Option<BTreeSet<usize>>>,
    /// Whether this rank has said whom it would go on without.
    votes_itself: bool,
}

impl Membership {
    /// All ranks of a group, as `rank` sees it.
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

    /// Members, by their ranks of now.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// This rank among them.
    pub fn rank(&self) -> usize {
        let place = self.members.iter().position(|member| *member == self.rank);
        place.unwrap_or(0)
    }

    /// The term's number.
    pub fn term(&self) -> u32 {
        self.term
    }

    /// Whether a rank is lost.
    pub fn is_lost(&self, rank: usize) -> bool {
        self.lost.contains(&rank)
    }

    /// Whether all members are there.
    #[cfg(test)]
    fn is_whole(&self) -> bool {
        self.lost.len() == self.term as usize
    }

    /// A rank is lost. Whether that is new.
    pub fn lose(&mut self, rank: usize) -> bool {
        rank < self.ranks && rank != self.rank && self.lost.insert(rank)
    }

    /// Begins to agree on going on without those that are lost. What to tell all others.
    pub fn begin(&mut self) -> Vec<u8> {
        self.votes_itself = true;
        self.vote()
    }

    /// Whether this rank is agreeing.
    pub fn is_voting(&self) -> bool {
        self.votes_itself
    }

    /// What this rank says.
    pub fn vote(&self) -> Vec<u8> {
        let mut set = vec![0; self.ranks.div_ceil(8)];
        for lost in &self.lost {
            set[lost / 8] |= 1 << (lost % 8);
        }
        set
    }

    /// A rank has said whom it would go on without. `None` if that is no set of ranks; else those that are lost and
    /// were not known to be. This rank may be among them.
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
        // Words of one rank come in order, and sets grow.
        self.votes[from] = Some(lost);
        Some(news)
    }

    /// Ranks that live and have not said the same as this one.
    pub fn silent(&self) -> Vec<usize> {
        let living = (0..self.ranks).filter(|rank| !self.lost.contains(rank));
        let agrees = |rank: &usize| self.votes[*rank].as_ref() == Some(&self.lost);
        living
            .filter(|rank| *rank != self.rank && !agrees(rank))
            .collect()
    }

    /// Whether all that live agree. If so, the new term has begun.
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

    /// Ranks that lose each other at random moments, and words that arrive in any order between different ranks: who
    /// goes on goes on with the same ranks, and with all that live.
    #[test]
    fn survivors__whatever_dies_when__agree_in_the_end() {
        for seed in 0..500 {
            let mut random = fastrand::Rng::with_seed(seed);
            let ranks = random.usize(2..9);
            let mut all: Vec<Membership> = (0..ranks)
                .map(|rank| Membership::new(rank, ranks))
                .collect();
            let mut dead = vec![false; ranks];
            // Words on their way, by sender and receiver, in order.
            let mut words = vec![vec![Vec::new(); ranks]; ranks];
            let mut deaths_left = random.usize(1..ranks);
            for _ in 0..20_000 {
                let at = random.usize(0..ranks);
                let by = random.usize(0..ranks);
                if deaths_left > 0 && random.f64() < 0.02 && !dead[at] {
                    dead[at] = true;
                    deaths_left -= 1;
                    // Some of its last words are lost with it.
                    for to in &mut words[at] {
                        to.truncate(random.usize(0..=to.len()));
                    }
                }
                if dead[by] || by == at {
                    continue;
                }
                let before = all[by].lost.len();
                // Its own detector, sooner or later; a word, if there is one.
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
    fn set__that_is_none__is_refused() {
        let mut membership = Membership::new(0, 3);
        assert_eq!(membership.hear(1, &[]), None);
        assert_eq!(membership.hear(1, &[0b1000]), None);
        assert_eq!(membership.hear(3, &[0]), None);
        assert_eq!(membership.hear(1, &[0b101]), Some(vec![0, 2]));
        assert!(!membership.lose(0) && membership.lose(2));
    }
}
