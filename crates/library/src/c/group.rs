//! C interface of groups. `bindings/c/kumi_group.h` documents the functions.

use super::spans::{Spans, Tables};
use super::version::SizedStruct;
use super::{index, text, write_message};
use crate::group::{
    CARD_BYTES, Call, Config, Element, Environment, Failure, Group, GroupError, Listening, Queue,
    RANKS_MAX, Reduction, Secret, Ticket, Transport,
};
use crate::request::{Request, RequestedOperation, WorkError};
use kumi_coll::PlanError;
use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// C layout of `struct kumi_group_config`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CConfig {
    size: usize,
    host: *const c_char,
    interface: *const c_char,
    network: *const c_char,
    silence_ms: u32,
    patience_ms: u32,
    job: *const Group,
    secret: *const c_char,
}

const _: () = assert!(size_of::<CConfig>() == 56);

// SAFETY: its first member is its size, and all members may be zero.
unsafe impl SizedStruct for CConfig {
    const NAME: &'static str = "kumi_group_config";
    const SIZE_MIN: usize = 56;
}

/// C layout of `struct kumi_group_call`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CCall {
    size: usize,
    operation: i32,
    root: i32,
    element: i32,
    reduction: i32,
    bytes: *const u64,
    blocks: usize,
    from: *const *const u8,
    to: *const *mut u8,
}

const _: () = assert!(size_of::<CCall>() == 56);

// SAFETY: its first member is its size, and all members may be zero.
unsafe impl SizedStruct for CCall {
    const NAME: &'static str = "kumi_group_call";
    const SIZE_MIN: usize = 56;
}

/// C layout of `struct kumi_group_done`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CDone {
    size: usize,
    bytes: u64,
    from: i32,
    reserved: u32,
}

const _: () = assert!(size_of::<CDone>() == 24);

// SAFETY: its first member is its size, and all members may be zero.
unsafe impl SizedStruct for CDone {
    const NAME: &'static str = "kumi_group_done";
    const SIZE_MIN: usize = 24;
}

/// Value of `KUMI_ARGUMENT`.
const ARGUMENT: c_int = 8;

/// Returns the `enum kumi_group_outcome` of a failure.
fn outcome_number(failure: &Failure) -> c_int {
    match failure {
        Failure::Late(_) => 1,
        Failure::Lost { .. } => 2,
        Failure::Excluded(_) => 3,
        Failure::Disagree(_) => 4,
        Failure::Message(_) => 5,
        Failure::System(_) | Failure::Forked(_) => 6,
        Failure::Closed => 7,
    }
}

/// Converts a limit in milliseconds. A negative one means no limit.
fn limit_from_ms(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// # Safety
/// `config` is null or points to a struct. Its pointers are null or point to strings, and `job` to
/// a group.
pub(super) unsafe fn config(config: *const CConfig) -> Result<Config, GroupError> {
    let secret = Secret::from_user(|name| std::env::var_os(name)).map_err(GroupError::Argument)?;
    let transport = Transport::from_environment(variable).map_err(GroupError::Argument)?;
    let mut settings = Config {
        secret,
        transport,
        ..Config::default()
    };
    if config.is_null() {
        return Ok(settings);
    }
    // SAFETY: the caller guarantees it.
    let (config, host, interface, network, secret, job) = unsafe {
        let config = CConfig::read(config)?;
        (
            config,
            text(config.host),
            text(config.interface),
            text(config.network),
            text(config.secret),
            config.job.as_ref(),
        )
    };
    settings.host = host.map(|host| host.to_string_lossy().into_owned());
    settings.interface = interface.map(|name| name.to_string_lossy().into_owned());
    settings.network = network.map(|file| PathBuf::from(OsStr::from_bytes(file.to_bytes())));
    if let Some(secret) = secret {
        let secret = Secret::from_bytes(secret.to_bytes(), "kumi_group_config.secret");
        settings.secret = Some(secret.map_err(GroupError::Argument)?);
    }
    settings.job = job.map(|job| job.hosts().to_vec());
    let timeout = |ms: u32, default| match ms {
        0 => default,
        ms => Duration::from_millis(u64::from(ms)),
    };
    settings.loss_timeout = timeout(config.silence_ms, settings.loss_timeout);
    settings.start_timeout = timeout(config.patience_ms, settings.start_timeout);
    Ok(settings)
}

/// Returns a pointer to the boxed value, or writes the error and returns null.
///
/// # Safety
/// `error` is null or has room for `error_bytes`.
pub(super) unsafe fn into_pointer<T, E: std::fmt::Display>(
    result: Result<T, E>,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut T {
    match result {
        Ok(value) => Box::into_raw(Box::new(value)),
        Err(problem) => {
            // SAFETY: the caller guarantees it.
            unsafe { write_message(&problem, error, error_bytes) };
            ptr::null_mut()
        }
    }
}

/// # Safety
/// The requirements of [`config`] and [`write_message`] hold; `card` has room for a card.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_listen(
    settings: *const CConfig,
    card: *mut c_char,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Listening {
    // SAFETY: the caller guarantees it.
    let listening = unsafe { config(settings) }.and_then(Listening::new);
    if let Ok(listening) = &listening {
        // SAFETY: the caller guarantees that `card` has room.
        unsafe {
            ptr::copy_nonoverlapping(listening.card().as_ptr(), card.cast(), CARD_BYTES);
        }
    }
    // SAFETY: the caller guarantees it.
    unsafe { into_pointer(listening, error, error_bytes) }
}

/// # Safety
/// `listening` comes from `kumi_group_listen` and is not used again; `cards` holds `ranks` cards.
/// The requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_join(
    listening: *mut Listening,
    rank: c_int,
    ranks: c_int,
    cards: *const c_char,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Group {
    // SAFETY: the caller guarantees that `Box::into_raw` made it.
    let listening = unsafe { Box::from_raw(listening) };
    let group = match index(ranks) {
        count @ 1..=RANKS_MAX if index(rank) < count => {
            // SAFETY: the caller guarantees it.
            let cards =
                unsafe { std::slice::from_raw_parts(cards.cast::<u8>(), count * CARD_BYTES) };
            let cards: Vec<Vec<u8>> = cards.chunks(CARD_BYTES).map(<[u8]>::to_vec).collect();
            listening.join(index(rank), &cards)
        }
        count @ 1..=RANKS_MAX => {
            let text = format!("invalid rank {rank}: expected 0 to {}", count - 1);
            Err(GroupError::Argument(text))
        }
        _ => {
            let text = format!("invalid number of ranks {ranks}: expected 1 to {RANKS_MAX}");
            Err(GroupError::Argument(text))
        }
    };
    // SAFETY: the caller guarantees it.
    unsafe { into_pointer(group, error, error_bytes) }
}

/// # Safety
/// The requirements of [`config`] and [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_from_environment(
    settings: *const CConfig,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Group {
    // SAFETY: the caller guarantees it.
    let config = unsafe { config(settings) };
    let environment = Environment::read(variable);
    let environment = environment.map_err(GroupError::Argument);
    let group = config.and_then(|config| Group::from_environment(config, &environment?));
    // SAFETY: the caller guarantees it.
    unsafe { into_pointer(group, error, error_bytes) }
}

/// # Safety
/// `group` is null, or comes from a function above and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_free(group: *mut Group) {
    if !group.is_null() {
        // SAFETY: the caller guarantees that `Box::into_raw` made it.
        drop(unsafe { Box::from_raw(group) });
    }
}

/// # Safety
/// `group` comes from a function above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_rank(group: *const Group) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { &*group }.rank() as c_int
}

/// # Safety
/// `group` comes from a function above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_size(group: *const Group) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { &*group }.size() as c_int
}

/// # Safety
/// `group` comes from a function above; `ranks` has room for `room` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_members(
    group: *const Group,
    ranks: *mut i32,
    room: usize,
) -> usize {
    // SAFETY: the caller guarantees it.
    unsafe { write_ranks(&(*group).members(), ranks, room) }
}

/// # Safety
/// `group` comes from a function above; `ranks` has room for `room` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_lost(
    group: *const Group,
    ranks: *mut i32,
    room: usize,
) -> usize {
    // SAFETY: the caller guarantees it.
    unsafe { write_ranks(&(*group).lost(), ranks, room) }
}

/// # Safety
/// `ranks` has room for `room` numbers.
unsafe fn write_ranks(members: &[usize], ranks: *mut i32, room: usize) -> usize {
    for (position, rank) in members.iter().take(room).enumerate() {
        // SAFETY: the caller guarantees it.
        unsafe { ranks.add(position).write(*rank as i32) };
    }
    members.len()
}

/// # Safety
/// `group` comes from a function above. The requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_shrink(
    group: *const Group,
    limit_ms: i64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    match unsafe { &*group }.shrink(limit_from_ms(limit_ms)) {
        Ok(()) => 0,
        Err(problem) => {
            // SAFETY: the caller guarantees it.
            unsafe { write_message(&problem, error, error_bytes) };
            match problem {
                GroupError::Failed(failure) => outcome_number(&failure),
                _ => 6,
            }
        }
    }
}

/// # Safety
/// `group` comes from a function above; `call` is as `bindings/c/kumi_group.h` requires. The
/// requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_start(
    group: *const Group,
    call: *const CCall,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Arc<Ticket> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let call = CCall::read(call).map_err(GroupError::from);
        let ticket = call.and_then(|call| start(&*group, &call));
        into_pointer(ticket, error, error_bytes)
    }
}

/// # Safety
/// `call` is as `bindings/c/kumi_group.h` requires.
unsafe fn start(group: &Group, call: &CCall) -> Result<Arc<Ticket>, GroupError> {
    let operation = RequestedOperation::from_number(call.operation);
    let operation = operation.ok_or(WorkError::Operation(call.operation))?;
    let invalid_value = |name: &str, number: i32, count: usize| {
        let max = count - 1;
        GroupError::Argument(format!(
            "invalid {name} {number}: expected 0 to {max}, a value of enum kumi_{name}"
        ))
    };
    let element = Element::from_number(call.element)
        .ok_or_else(|| invalid_value("element", call.element, Element::COUNT))?;
    let reduction = Reduction::from_number(call.reduction)
        .ok_or_else(|| invalid_value("reduction", call.reduction, Reduction::COUNT))?;
    group.check()?;
    let (rank, ranks, root) = (group.rank(), group.size(), index(call.root));
    let blocks = match operation {
        RequestedOperation::AllToAll => ranks * ranks,
        RequestedOperation::Broadcast
        | RequestedOperation::Reduce
        | RequestedOperation::AllReduce => 1,
        _ => ranks,
    };
    // This precedes the read of a table that may be shorter.
    if call.blocks != blocks {
        let given = call.blocks;
        return Err(WorkError::from(PlanError::Sizes { given, blocks }).into());
    }
    if root >= ranks {
        let text = format!("root {} out of range (0–{})", call.root, ranks - 1);
        return Err(GroupError::Argument(text));
    }
    // SAFETY: the caller guarantees it.
    let (bytes, memory) = unsafe {
        let bytes = std::slice::from_raw_parts(call.bytes, blocks);
        let memory = Spans::new(&Tables {
            operation,
            root,
            rank,
            ranks,
            bytes,
            from: call.from,
            to: call.to,
        });
        (bytes.to_vec(), memory)
    };
    group.start(Call {
        request: Request {
            operation,
            root,
            bytes,
            element_bytes: element.bytes(),
        },
        element,
        reduction,
        memory: Box::new(memory),
    })
}

/// Checks that the rank of a peer is not negative. [`Group::send`] checks the upper limit.
fn peer_rank(group: &Group, peer: c_int) -> Result<usize, GroupError> {
    usize::try_from(peer).map_err(|_| {
        GroupError::Argument(format!(
            "invalid peer rank {peer}: expected 0 to {}, except this rank, {}",
            group.size().saturating_sub(1),
            group.rank()
        ))
    })
}

/// # Safety
/// `group` comes from a function above; `at` stays valid until the ticket is settled. The
/// requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_send(
    group: *const Group,
    to: c_int,
    tag: u64,
    at: *const u8,
    bytes: u64,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Arc<Ticket> {
    let memory = Box::new(Spans::single(at.cast_mut(), bytes));
    // SAFETY: the caller guarantees it.
    unsafe {
        let group = &*group;
        let ticket = peer_rank(group, to).and_then(|to| group.send(to, tag, bytes, memory));
        into_pointer(ticket, error, error_bytes)
    }
}

/// # Safety
/// `group` comes from a function above; `at` stays valid until the ticket is settled. The
/// requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_group_receive(
    group: *const Group,
    from: c_int,
    tag: u64,
    at: *mut u8,
    bytes: u64,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Arc<Ticket> {
    let memory = Box::new(Spans::single(at, bytes));
    let from = (from >= 0).then(|| index(from));
    // SAFETY: the caller guarantees it.
    unsafe {
        into_pointer(
            (*group).receive(from, tag, bytes, memory),
            error,
            error_bytes,
        )
    }
}

/// # Safety
/// `ticket` comes from a function above; `done` is null or points to a struct whose size is set.
/// The requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ticket_wait(
    ticket: *const Arc<Ticket>,
    limit_ms: i64,
    done: *mut CDone,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let limit = limit_from_ms(limit_ms);
    if !done.is_null() {
        // SAFETY: the caller guarantees it.
        if let Err(problem) = unsafe { CDone::read(done) } {
            // SAFETY: the caller guarantees it.
            unsafe { write_message(&problem, error, error_bytes) };
            return ARGUMENT;
        }
    }
    // SAFETY: the caller guarantees it.
    match unsafe { &*ticket }.wait(limit) {
        None => 1,
        Some(Ok(completion)) => {
            if !done.is_null() {
                // SAFETY: its size, which was checked, includes these members.
                unsafe {
                    (*done).from = completion.from as i32;
                    (*done).reserved = 0;
                    (*done).bytes = completion.bytes;
                }
            }
            0
        }
        Some(Err(failure)) => {
            // SAFETY: the caller guarantees it.
            unsafe { write_message(&failure, error, error_bytes) };
            outcome_number(&failure)
        }
    }
}

/// # Safety
/// `ticket` is null, or comes from a function above and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ticket_free(ticket: *mut Arc<Ticket>) {
    if !ticket.is_null() {
        // SAFETY: the caller guarantees that `Box::into_raw` made it.
        drop(unsafe { Box::from_raw(ticket) });
    }
}

/// Returns a new queue, to be freed by `kumi_queue_free`.
#[unsafe(no_mangle)]
pub extern "C" fn kumi_queue_new() -> *mut Arc<Queue> {
    Box::into_raw(Box::default())
}

/// # Safety
/// `queue` is null, or comes from `kumi_queue_new` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_queue_free(queue: *mut Arc<Queue>) {
    if !queue.is_null() {
        // SAFETY: the caller guarantees that `Box::into_raw` made it.
        drop(unsafe { Box::from_raw(queue) });
    }
}

/// # Safety
/// `ticket` comes from a function above, and `queue` from `kumi_queue_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_ticket_notify(
    ticket: *const Arc<Ticket>,
    queue: *const Arc<Queue>,
    name: u64,
) {
    // SAFETY: the caller guarantees it.
    let (ticket, queue) = unsafe { (&*ticket, &*queue) };
    ticket.notify(queue, name);
}

/// # Safety
/// `queue` comes from `kumi_queue_new`; `name` has room for one name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_queue_next(
    queue: *const Arc<Queue>,
    limit_ms: i64,
    name: *mut u64,
) -> c_int {
    // SAFETY: the caller guarantees it.
    match unsafe { &*queue }.next(limit_from_ms(limit_ms)) {
        Some(next) => {
            // SAFETY: the caller guarantees it.
            unsafe { name.write(next) };
            0
        }
        None => 1,
    }
}

#[cfg(test)]
mod tests;
