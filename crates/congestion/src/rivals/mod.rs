//! The controls to compare with, as Linux has them.

pub mod bbr;
pub mod cubic;
