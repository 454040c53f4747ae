//! What is to be done: transfers, and what each waits for.

/// What the hosts do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The root comes to have every host's block.
    Gather {
        /// Index of the host.
        root: usize,
    },
}

/// A set of blocks, one a host, by the host's place in [`Plan::order`]: ascending runs that do not touch. What
/// a chain of hosts carries is one run, however the hosts are numbered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks(Vec<(u32, u32)>);

impl Blocks {
    /// The block at one place.
    pub fn one(place: usize) -> Self {
        Self(vec![(place as u32, place as u32 + 1)])
    }

    /// These and those.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut runs: Vec<(u32, u32)> = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut ours, mut theirs) = (self.0.as_slice(), other.0.as_slice());
        loop {
            let next = match (ours.split_first(), theirs.split_first()) {
                (Some((run, rest)), Some((other, _))) if run <= other => {
                    ours = rest;
                    run
                }
                (_, Some((run, rest))) => {
                    theirs = rest;
                    run
                }
                (Some((run, rest)), None) => {
                    ours = rest;
                    run
                }
                (None, None) => return Self(runs),
            };
            match runs.last_mut() {
                Some((_, end)) if *end >= next.0 => *end = (*end).max(next.1),
                _ => runs.push(*next),
            }
        }
    }

    /// The places, ascending.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let runs = self.0.iter();
        runs.flat_map(|(from, to)| (*from as usize)..(*to as usize))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|(from, to)| (to - from) as usize).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One host sends blocks to another: its own first, and those that it relays as they come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Who sends.
    pub from: usize,
    /// Who receives.
    pub to: usize,
    /// Whose blocks.
    pub blocks: Blocks,
    /// The transfer, by its index, that must have come to `to` whole before this one begins; `to` tells `from`
    /// by a message of one byte (the paper's synchronisation, section 4.2.1). None: it begins at once.
    pub after: Option<usize>,
}

/// Transfers that together do an operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What it does.
    pub operation: Operation,
    /// The hosts that take part, in the planner's order: a block is named by its host's place here.
    pub order: Vec<usize>,
    /// Transfers. One that another waits for, or is fed by, stands before it or after it.
    pub transfers: Vec<Transfer>,
    /// How long it takes by the planner's own reckoning, in seconds.
    pub predicted_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks__joined_in_any_order__are_runs() {
        let places = [3, 1, 2, 7, 3].map(Blocks::one);
        let blocks = places
            .iter()
            .fold(Blocks::default(), |sum, one| sum.union(one));
        assert_eq!(blocks.places().collect::<Vec<_>>(), [1, 2, 3, 7]);
        assert_eq!((blocks.len(), blocks.0.len()), (4, 2));
        assert!(Blocks::default().is_empty());
    }
}
