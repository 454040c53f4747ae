//! The multilink protocol core.
#![forbid(unsafe_code)]
