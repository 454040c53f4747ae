//! Homes of the pages of a region, and the way in which changes reach other nodes.

/// Rule by which pages get their homes. The same on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// A contiguous block of pages for each node, of equal lengths.
    Blocks,
    /// This many pages for each node in turn.
    Cyclic(u32),
    /// All pages on one node.
    On(u16),
}

/// Way in which what a node has written reaches the others. The same on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Updates {
    /// Others get a page from its home when they access it.
    #[default]
    OnAccess,
    /// Each node has all pages, and sends what it has written to all others at a barrier, as
    /// Fagus does (Hayashi et al., §4.2). Locks do not carry it.
    AtBarriers,
}

impl Placement {
    /// Returns the home of a page of a region of `pages` pages, on `nodes` nodes.
    pub fn home(self, page: u32, pages: u32, nodes: usize) -> usize {
        match self {
            Self::Blocks => {
                let block = pages.div_ceil(nodes as u32).max(1);
                ((page / block) as usize).min(nodes - 1)
            }
            Self::Cyclic(count) => (page / count.max(1)) as usize % nodes,
            Self::On(node) => usize::from(node).min(nodes - 1),
        }
    }

    /// Returns the rule with this number and parameter, if there is one.
    pub fn from_wire(number: u8, parameter: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Blocks),
            1 => Some(Self::Cyclic(parameter)),
            2 => Some(Self::On(u16::try_from(parameter).ok()?)),
            _ => None,
        }
    }

    /// Returns a number and a parameter that stand for the rule on the wire.
    pub fn to_wire(self) -> (u8, u32) {
        match self {
            Self::Blocks => (0, 0),
            Self::Cyclic(count) => (1, count),
            Self::On(node) => (2, u32::from(node)),
        }
    }
}
