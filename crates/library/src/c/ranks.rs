//! C interface of ranks that Wind connects. `bindings/c/kumi_ranks.h` documents the functions.

use super::group::{CConfig, config, into_pointer};
use super::index;
use crate::group::{CARD_BYTES, Environment, GroupError, Listening, RANKS_MAX};
use crate::wind_ranks::{JoinError, WindRanks, listen};
use kumi_multilink::secure::Seal;
use kumi_wind::Node;
use std::ffi::{c_char, c_int};

fn seal(trusted: c_int) -> Seal {
    match trusted {
        0 => Seal::Encrypt,
        _ => Seal::Authenticate,
    }
}

/// Copies cards that C gives.
///
/// # Safety
/// `cards` has `count` cards.
pub(super) unsafe fn copied_cards(cards: *const [u8; CARD_BYTES], count: usize) -> Vec<Vec<u8>> {
    // SAFETY: the caller guarantees the cards.
    let cards = unsafe { std::slice::from_raw_parts(cards, count) };
    cards.iter().map(|card| card.to_vec()).collect()
}

/// See `kumi_ranks.h`.
///
/// # Safety
/// `settings` is as `kumi_group.h` requires, `card` has room for `KUMI_CARD_BYTES`, and `error` for
/// `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ranks_listen(
    settings: *const CConfig,
    card: *mut [u8; CARD_BYTES],
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Listening {
    // SAFETY: the caller guarantees it.
    let listening = unsafe { config(settings) }.and_then(listen);
    if let Ok(listening) = &listening {
        // SAFETY: the caller guarantees the room.
        unsafe { card.write(listening.card()) };
    }
    // SAFETY: the caller guarantees the room.
    unsafe { into_pointer(listening, error, error_bytes) }
}

/// See `kumi_ranks.h`.
///
/// # Safety
/// `listening` comes from [`kumi_ranks_listen`] and is not used again. `cards` has `count` cards,
/// and `error` room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ranks_join(
    listening: *mut Listening,
    rank: c_int,
    count: c_int,
    cards: *const [u8; CARD_BYTES],
    trusted: c_int,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut WindRanks {
    // SAFETY: the caller guarantees it.
    let listening = *unsafe { Box::from_raw(listening) };
    let join = || {
        let (rank, count) = (index(rank), index(count));
        if rank >= count || count > RANKS_MAX {
            return Err(JoinError::Ranks(GroupError::Argument(format!(
                "rank {rank} of {count}: expected a number below the number of ranks, which is at most {RANKS_MAX}"
            ))));
        }
        // SAFETY: the caller guarantees the cards.
        let cards = unsafe { copied_cards(cards, count) };
        WindRanks::join(listening, rank, &cards, seal(trusted))
    };
    // SAFETY: the caller guarantees the room.
    unsafe { into_pointer(join(), error, error_bytes) }
}

/// See `kumi_ranks.h`.
///
/// # Safety
/// `settings` is as `kumi_group.h` requires, and `error` has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ranks_from_environment(
    settings: *const CConfig,
    trusted: c_int,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut WindRanks {
    let join = || {
        // SAFETY: the caller guarantees it.
        let config = unsafe { config(settings) }?;
        let environment = Environment::read(|name| std::env::var(name).ok());
        let environment = environment.map_err(GroupError::Argument)?;
        WindRanks::from_environment(config, &environment, seal(trusted))
    };
    // SAFETY: the caller guarantees the room.
    unsafe { into_pointer(join(), error, error_bytes) }
}

/// See `kumi_ranks.h`.
///
/// # Safety
/// `ranks` is null or ranks, which are not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ranks_free(ranks: *mut WindRanks) {
    if !ranks.is_null() {
        // SAFETY: `kumi_ranks_join` made it, and the caller gives it back.
        drop(unsafe { Box::from_raw(ranks) });
    }
}

/// See `kumi_ranks.h`.
///
/// # Safety
/// `ranks` are ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ranks_node(ranks: *const WindRanks) -> *const Node {
    // SAFETY: the caller guarantees it.
    &raw const unsafe { &*ranks }.node
}

/// See `kumi_ranks.h`.
///
/// # Safety
/// `ranks` are ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ranks_rank(ranks: *const WindRanks) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { &*ranks }.rank as c_int
}

/// See `kumi_ranks.h`.
///
/// # Safety
/// `ranks` are ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ranks_count(ranks: *const WindRanks) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { &*ranks }.peers.len() as c_int
}

/// See `kumi_ranks.h`.
///
/// # Safety
/// `ranks` are ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ranks_peer(ranks: *const WindRanks, rank: c_int) -> u32 {
    // SAFETY: the caller guarantees it.
    let peer = unsafe { &*ranks }.peers.get(index(rank));
    peer.copied().flatten().map_or(u32::MAX, |peer| peer.0)
}

/// See `kumi_ranks.h`.
///
/// # Safety
/// `ranks` are ranks, and `secret` has room for 32 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ranks_secret(ranks: *const WindRanks, secret: *mut [u8; 32]) {
    // SAFETY: the caller guarantees both.
    unsafe { secret.write((*ranks).secret) };
}
