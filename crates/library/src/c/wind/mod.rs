//! C interface of Wind. `bindings/c/kumi_wind.h` documents the functions.

mod memory;
mod polling;

use super::{text, write_message};
use kumi_wind::{Class, Config, Message, Mode, Node, PeerId, Seal, WindError, random_epoch};
use memory::CPlace;
use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::ptr;
use std::time::Duration;

/// C layout of `struct kumi_wind_message`. It owns its header and data.
#[repr(C)]
#[derive(Debug)]
pub struct CMessage {
    peer: u32,
    class: i32,
    mode: i32,
    reserved: u32,
    header: *const u8,
    header_bytes: usize,
    data: *const u8,
    data_bytes: usize,
}

const _: () = assert!(size_of::<CMessage>() == 48);

/// Reason why a function failed.
enum Failure {
    Wind(WindError),
    Argument(String),
}

impl From<WindError> for Failure {
    fn from(error: WindError) -> Self {
        Self::Wind(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wind(error) => error.fmt(f),
            Self::Argument(text) => f.write_str(text),
        }
    }
}

impl Failure {
    /// Returns the `enum kumi_wind_outcome`.
    fn number(&self) -> c_int {
        match self {
            Self::Wind(WindError::Late(_)) => 1,
            Self::Wind(WindError::Lost(_)) => 2,
            Self::Wind(WindError::Refused(_)) => 3,
            Self::Wind(WindError::Rejected(_) | WindError::Taken(_)) | Self::Argument(_) => 4,
            Self::Wind(WindError::System { .. }) => 5,
        }
    }
}

/// Writes the reason of a failure, and returns its number; 0 for success.
///
/// # Safety
/// `error` is null or has room for `error_bytes`.
unsafe fn finish(result: Result<(), Failure>, error: *mut c_char, error_bytes: usize) -> c_int {
    match result {
        Ok(()) => 0,
        Err(failure) => {
            // SAFETY: the caller guarantees the room.
            unsafe { write_message(&failure, error, error_bytes) };
            failure.number()
        }
    }
}

/// # Safety
/// `text` is null or a string.
unsafe fn address(address: *const c_char) -> Result<SocketAddr, Failure> {
    // SAFETY: the caller guarantees it.
    let address = unsafe { text(address) }.map_or("", |text| text.to_str().unwrap_or("?"));
    address.parse().map_err(|_| {
        let expected = "expected IP:PORT, such as 10.0.0.2:7000 or [fd00::2]:7000";
        Failure::Argument(format!("invalid address `{address}`: {expected}"))
    })
}

/// # Safety
/// `from` has `bytes` bytes; it may be null if `bytes` is 0.
unsafe fn borrowed<'a>(from: *const u8, bytes: usize) -> &'a [u8] {
    match bytes {
        0 => &[],
        // SAFETY: the caller guarantees it.
        _ => unsafe { std::slice::from_raw_parts(from, bytes) },
    }
}

/// # Safety
/// As [`borrowed`].
unsafe fn copied(from: *const u8, bytes: usize) -> Vec<u8> {
    // SAFETY: the caller guarantees it.
    unsafe { borrowed(from, bytes) }.to_vec()
}

fn class(number: c_int) -> Result<Class, Failure> {
    let found = Class::ALL
        .into_iter()
        .find(|class| *class as c_int == number);
    found.ok_or_else(|| {
        Failure::Argument(format!(
            "invalid class {number}: expected 0 (ordered), 1 (unordered) or 2 (synchronous)"
        ))
    })
}

fn limit(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `address` is null or a string, `secret` has 32 bytes, and `error` room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_open(
    address_text: *const c_char,
    secret: *const [u8; 32],
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Node {
    // SAFETY: the caller guarantees all of them.
    unsafe { open(address_text, secret, Seal::Encrypt, error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// As [`kumi_wind_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_open_trusted(
    address_text: *const c_char,
    secret: *const [u8; 32],
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Node {
    // SAFETY: the caller guarantees all of them.
    unsafe { open(address_text, secret, Seal::Authenticate, error, error_bytes) }
}

/// # Safety
/// As [`kumi_wind_open`].
unsafe fn open(
    address_text: *const c_char,
    secret: *const [u8; 32],
    seal: Seal,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Node {
    let open = || -> Result<Node, Failure> {
        // SAFETY: the caller guarantees both.
        let (address, secret) = unsafe { (address(address_text)?, secret.as_ref()) };
        let secret = secret.ok_or_else(|| Failure::Argument("secret is NULL".into()))?;
        let epoch = random_epoch().map_err(|error| WindError::System {
            what: "cannot read random numbers",
            error,
        })?;
        let mut config = Config::new(*secret, epoch);
        config.seal = seal;
        Ok(Node::bind(address, config)?)
    };
    match open() {
        Ok(node) => Box::into_raw(Box::new(node)),
        Err(failure) => {
            // SAFETY: the caller guarantees the room.
            unsafe { write_message(&failure, error, error_bytes) };
            ptr::null_mut()
        }
    }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_has_kernel(node: *const Node) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { &*node }.has_kernel().into()
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_peer_has_kernel(node: *const Node, peer: u32) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { &*node }.peer_has_kernel(PeerId(peer)).into()
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_port(node: *const Node) -> c_int {
    // SAFETY: the caller guarantees it.
    let address = unsafe { &*node }.local_address();
    address.map_or(0, |address| address.port().into())
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is null or a node, which is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_close(node: *mut Node) {
    if !node.is_null() {
        // SAFETY: `kumi_wind_open` made it, and the caller gives it back.
        drop(unsafe { Box::from_raw(node) });
    }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `address` null or a string, `peer` writable, and `error` has room for
/// `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_connect(
    node: *const Node,
    address_text: *const c_char,
    peer: *mut u32,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let connect = || -> Result<(), Failure> {
        // SAFETY: the caller guarantees all three.
        unsafe {
            let found = (*node).connect(address(address_text)?)?;
            peer.write(found.0);
        }
        Ok(())
    };
    // SAFETY: the caller guarantees the room.
    unsafe { finish(connect(), error, error_bytes) }
}

/// Sends a message, and waits for a synchronous one.
fn send(node: &Node, peer: PeerId, message: Message) -> Result<(), Failure> {
    let is_synchronous = message.class == Class::Synchronous;
    let sent = node.send(peer, message)?;
    if is_synchronous {
        node.wait_placed(peer, sent, None)?;
    }
    Ok(())
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `data` has `bytes` bytes, and `error` room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_send(
    node: *const Node,
    peer: u32,
    class_number: c_int,
    data: *const u8,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let act = || -> Result<(), Failure> {
        let message = Message {
            class: class(class_number)?,
            mode: Mode::MessageThrough,
            header: Vec::new(),
            // SAFETY: the caller guarantees it.
            data: vec![unsafe { copied(data, bytes) }],
            place: None,
        };
        // SAFETY: the caller guarantees it.
        send(unsafe { &*node }, PeerId(peer), message)
    };
    // SAFETY: the caller guarantees the room.
    unsafe { finish(act(), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `place` a place, `header` and `data` have their lengths, and `error` has room
/// for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_send_to(
    node: *const Node,
    peer: u32,
    class_number: c_int,
    mode: c_int,
    place: *const CPlace,
    header: *const u8,
    header_bytes: usize,
    data: *const u8,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let act = || -> Result<(), Failure> {
        let modes = [Mode::HeaderThrough, Mode::DirectMap];
        let found = modes.into_iter().find(|known| *known as c_int == mode);
        let mode = found.ok_or_else(|| {
            Failure::Argument(format!(
                "invalid mode {mode}: expected 1 (header through) or 2 (direct map)"
            ))
        })?;
        // SAFETY: the caller guarantees all of them.
        let (node, place, header, data) = unsafe {
            let (header, data) = (copied(header, header_bytes), copied(data, bytes));
            (&*node, (*place).into(), header, data)
        };
        let message = Message {
            class: class(class_number)?,
            mode,
            header,
            data: vec![data],
            place: Some(place),
        };
        send(node, PeerId(peer), message)
    };
    // SAFETY: the caller guarantees the room.
    unsafe { finish(act(), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `place` a place, `header` has `header_bytes`, `twin` and `now` have `bytes`,
/// and `error` has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_send_diff(
    node: *const Node,
    peer: u32,
    class_number: c_int,
    mode: c_int,
    place: *const CPlace,
    header: *const u8,
    header_bytes: usize,
    twin: *const u8,
    now: *const u8,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let act = || -> Result<(), Failure> {
        let class = class(class_number)?;
        // SAFETY: the caller guarantees it.
        let header = unsafe { copied(header, header_bytes) };
        let header = match mode {
            3 => Some(header),
            4 => None,
            _ => {
                let expected = "expected 3 (header through) or 4 (direct)";
                return Err(Failure::Argument(format!(
                    "invalid mode {mode} of a diff: {expected}"
                )));
            }
        };
        // SAFETY: the caller guarantees all of them.
        let (node, place, twin, now) = unsafe {
            let (twin, now) = (borrowed(twin, bytes), borrowed(now, bytes));
            (&*node, (*place).into(), twin, now)
        };
        let sent = node.send_diff(PeerId(peer), class, place, header, twin, now)?;
        if class == Class::Synchronous {
            node.wait_placed(PeerId(peer), sent, None)?;
        }
        Ok(())
    };
    // SAFETY: the caller guarantees the room.
    unsafe { finish(act(), error, error_bytes) }
}

/// Returns the bytes as memory that [`free_bytes`] frees.
fn given_away(bytes: Vec<u8>) -> (*const u8, usize) {
    let bytes = bytes.into_boxed_slice();
    let length = bytes.len();
    (Box::into_raw(bytes).cast_const().cast(), length)
}

/// # Safety
/// The arguments are a result of [`given_away`], which is not used again.
unsafe fn free_bytes(start: *const u8, length: usize) {
    let bytes = ptr::slice_from_raw_parts_mut(start.cast_mut(), length);
    // SAFETY: the caller guarantees it.
    drop(unsafe { Box::from_raw(bytes) });
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_receive(node: *const Node, limit_ms: i64) -> *mut CMessage {
    // SAFETY: the caller guarantees it.
    let node = unsafe { &*node };
    let received = match limit_ms {
        0 => node.poll(),
        _ => node.receive(limit(limit_ms)),
    };
    let Some(received) = received else {
        return ptr::null_mut();
    };
    let (header, header_bytes) = given_away(received.message.header);
    let (data, data_bytes) = given_away(received.message.data);
    Box::into_raw(Box::new(CMessage {
        peer: received.peer.0,
        class: received.message.class as i32,
        mode: received.message.mode as i32,
        reserved: 0,
        header,
        header_bytes,
        data,
        data_bytes,
    }))
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `message` is null or a result of [`kumi_wind_receive`], which is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_message_free(message: *mut CMessage) {
    if message.is_null() {
        return;
    }
    // SAFETY: the caller guarantees it, and a program may only read the members.
    unsafe {
        let message = Box::from_raw(message);
        free_bytes(message.header, message.header_bytes);
        free_bytes(message.data, message.data_bytes);
    }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, and `error` has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_flush(
    node: *const Node,
    peer: u32,
    limit_ms: i64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let result = unsafe { &*node }.flush(PeerId(peer), limit(limit_ms));
    // SAFETY: the caller guarantees the room.
    unsafe { finish(result.map_err(Failure::from), error, error_bytes) }
}

#[cfg(test)]
mod tests {
    use super::super::message_of;
    use super::*;
    use std::ffi::CString;

    #[test]
    fn arguments__invalid__are_named_with_what_is_accepted() {
        let secret = [1; 32];
        let open = |address: &str| {
            let address = CString::new(address).unwrap();
            message_of(|error, bytes| {
                // SAFETY: all arguments live for the call.
                let node =
                    unsafe { kumi_wind_open(address.as_ptr(), &raw const secret, error, bytes) };
                assert!(node.is_null());
            })
        };
        let expected = "expected IP:PORT, such as 10.0.0.2:7000 or [fd00::2]:7000";
        assert_eq!(
            open("node2"),
            format!("invalid address `node2`: {expected}")
        );
        let address = CString::new("127.0.0.1:0").unwrap();
        let (none, error) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: all arguments live for the calls, and the node is closed once.
        unsafe {
            let node = kumi_wind_open(address.as_ptr(), &raw const secret, error, 0);
            let class = message_of(|error, bytes| {
                let outcome = kumi_wind_send(node, 0, 9, none, 0, error, bytes);
                assert_eq!(outcome, 4);
            });
            assert_eq!(
                class,
                "invalid class 9: expected 0 (ordered), 1 (unordered) or 2 (synchronous)"
            );
            let peer = message_of(|error, bytes| {
                assert_eq!(kumi_wind_send(node, 7, 0, none, 0, error, bytes), 4);
            });
            assert_eq!(peer, "no such peer; it may be lost");
            assert!(kumi_wind_receive(node, 0).is_null());
            kumi_wind_close(node);
        }
    }
}
