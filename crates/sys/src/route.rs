//! Sets the floor of TCP's retransmission timeout on the routes of one interface.
//!
//! `ip route replace` could set it too, but `ip route show` prints attributes that it does not
//! accept: `expires`, `error`, next-hop objects. This module sends the kernel's own message back
//! with one metric changed.

use crate::netlink::{acknowledgement, attribute, attributes, dump, route_socket, u32_at};
use nix::sys::socket::{MsgFlags, send};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST_ACK_REPLACE: u16 = 0x001 | 0x004 | 0x100;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_CACHEINFO: u16 = 12;
const RTA_NH_ID: u16 = 30;
const RTA_VIA: u16 = 18;
const RTA_GATEWAY: u16 = 5;
const RTAX_LOCK: u16 = 1;
const RTAX_RTO_MIN: u16 = 13;
/// First bytes of IPv6 destinations that need no floor: link-local. Multicast is skipped as well.
const LINK_LOCAL: [u8; 2] = [0xfe, 0x80];
const MULTICAST: u8 = 0xff;
const AF_INET6: u8 = libc::AF_INET6 as u8;
/// Offset of `rta_expires` in `struct rta_cacheinfo`, in clock ticks.
const CACHEINFO_EXPIRES_AT: usize = 8;

/// Size of `struct rtmsg`, and offsets of its fields.
const ROUTE_HEADER_BYTES: usize = 12;
const PROTOCOL_AT: usize = 5;
const TYPE_AT: usize = 7;
const FLAGS_AT: usize = 8;
const RTPROT_RA: u8 = 9;
const RTN_UNICAST: u8 = 1;
/// `RTNH_F_ONLINK`, the only flag that the administrator sets; the others are the kernel's state.
const RTNH_F_ONLINK: u32 = 4;
/// `RTM_F_CLONED`: a cached exception, not a route.
const RTM_F_CLONED: u32 = 0x200;

/// Sets the floor of the retransmission timeout to `rto_min_ms` on every unicast route over the
/// interface. Returns the number of changed routes.
///
/// Some routes stay unchanged: those that have a floor, those that expire, those of router
/// advertisements, and those over several interfaces. The kernel refreshes only its own route of a
/// router advertisement.
///
/// # Errors
/// The kernel's error for the list of routes, or for the first route that it refused. The other
/// routes are changed.
pub fn set_rto_min(interface_index: u32, rto_min_ms: u32) -> io::Result<usize> {
    let mut requests = Vec::new();
    dump(RTM_GETROUTE, ROUTE_HEADER_BYTES, |kind, body| {
        if kind == RTM_NEWROUTE {
            requests.extend(with_rto_min(body, interface_index, rto_min_ms));
        }
    })?;
    if requests.is_empty() {
        return Ok(0);
    }
    let fd = route_socket(0)?;
    let (mut changed, mut refused) = (0, None);
    for (sequence, request) in (1..).zip(&requests) {
        match replace(&fd, sequence, request) {
            Ok(()) => changed += 1,
            // The route has been removed in between.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    refused.map_or(Ok(changed), Err)
}

/// Returns the body of a request that sets the floor of the route `body`; `None` for a route that
/// stays unchanged.
fn with_rto_min(body: &[u8], interface_index: u32, rto_min_ms: u32) -> Option<Vec<u8>> {
    let mut request = body.get(..ROUTE_HEADER_BYTES)?.to_vec();
    let flags = u32_at(body, FLAGS_AT)?;
    let is_temporary = body[PROTOCOL_AT] == RTPROT_RA || flags & RTM_F_CLONED != 0;
    if body[TYPE_AT] != RTN_UNICAST || is_temporary {
        return None;
    }
    request[FLAGS_AT..].copy_from_slice(&(flags & RTNH_F_ONLINK).to_ne_bytes());
    let attributes: Vec<(u16, &[u8])> = attributes(&body[ROUTE_HEADER_BYTES..]).collect();
    let find = |wanted| attributes.iter().find(|(kind, _)| *kind == wanted);
    let is_over = find(RTA_OIF).and_then(|(_, index)| u32_at(index, 0)) == Some(interface_index);
    let expires = find(RTA_CACHEINFO).and_then(|(_, info)| u32_at(info, CACHEINFO_EXPIRES_AT));
    if !is_over || find(RTA_MULTIPATH).is_some() || expires.is_some_and(|ticks| ticks != 0) {
        return None;
    }
    let destination = find(RTA_DST).map_or(&[][..], |(_, value)| *value);
    let is_local = destination.starts_with(&LINK_LOCAL) || destination.first() == Some(&MULTICAST);
    if body[0] == AF_INET6 && is_local {
        return None;
    }
    let has_object = find(RTA_NH_ID).is_some();
    let mut metrics: Vec<(u16, Vec<u8>)> = Vec::new();
    let mut locked = 0;
    for (kind, value) in &attributes {
        match *kind {
            RTA_METRICS => {
                for (metric, value) in self::attributes(value) {
                    match metric {
                        RTAX_RTO_MIN => return None, // set by the administrator or by kumi
                        RTAX_LOCK => locked = u32_at(value, 0)?,
                        _ => metrics.push((metric, value.to_vec())),
                    }
                }
            }
            RTA_CACHEINFO => {}
            // A next-hop object implies these attributes.
            RTA_OIF | RTA_GATEWAY | RTA_VIA if has_object => {}
            kind => attribute(&mut request, kind, value),
        }
    }
    metrics.push((
        RTAX_LOCK,
        (locked | 1 << RTAX_RTO_MIN).to_ne_bytes().to_vec(),
    ));
    metrics.push((RTAX_RTO_MIN, rto_min_ms.to_ne_bytes().to_vec()));
    let mut nested = Vec::new();
    for (metric, value) in &metrics {
        attribute(&mut nested, *metric, value);
    }
    attribute(&mut request, RTA_METRICS, &nested);
    Some(request)
}

/// Replaces an existing route. A route that has been removed is not created again.
fn replace(fd: &OwnedFd, sequence: u32, body: &[u8]) -> io::Result<()> {
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
    message.extend_from_slice(&RTM_NEWROUTE.to_ne_bytes());
    message.extend_from_slice(&NLM_F_REQUEST_ACK_REPLACE.to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(body);
    send(fd.as_raw_fd(), &message, MsgFlags::empty())?;
    acknowledgement(fd, sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A route over interface 7, as the kernel describes it.
    fn route(protocol: u8, expires: u32, metrics: &[u8]) -> Vec<u8> {
        let mut body = vec![10, 64, 0, 0, 254, protocol, 0, RTN_UNICAST, 0x10, 0, 0, 0];
        attribute(&mut body, RTA_OIF, &7u32.to_ne_bytes());
        let mut info = [0; 32];
        info[CACHEINFO_EXPIRES_AT..12].copy_from_slice(&expires.to_ne_bytes());
        attribute(&mut body, RTA_CACHEINFO, &info);
        if !metrics.is_empty() {
            attribute(&mut body, RTA_METRICS, metrics);
        }
        body
    }

    #[test]
    fn rto_min__route_with_other_metrics__keeps_them_and_their_locks() {
        let mut metrics = Vec::new();
        attribute(&mut metrics, RTAX_LOCK, &4u32.to_ne_bytes());
        attribute(&mut metrics, 2, &1400u32.to_ne_bytes());
        let request = with_rto_min(&route(3, 0, &metrics), 7, 120).expect("is changed");
        assert_eq!(request[FLAGS_AT], 0, "the kernel's state is not given back");
        let parts: Vec<_> = attributes(&request[ROUTE_HEADER_BYTES..]).collect();
        assert!(parts.iter().all(|(kind, _)| *kind != RTA_CACHEINFO));
        let nested = parts
            .iter()
            .find(|(kind, _)| *kind == RTA_METRICS)
            .unwrap()
            .1;
        let value = |wanted| {
            let found = attributes(nested).find(|(kind, _)| *kind == wanted);
            u32_at(found.unwrap().1, 0).unwrap()
        };
        assert_eq!(value(RTAX_LOCK), 4 | 1 << RTAX_RTO_MIN);
        assert_eq!((value(2), value(RTAX_RTO_MIN)), (1400, 120));
        let again = with_rto_min(&route(3, 0, nested), 7, 120);
        assert_eq!(again, None, "a route that has a floor is left alone");
    }

    #[test]
    fn rto_min__expiring_or_other_interface_routes__are_unchanged() {
        assert_eq!(with_rto_min(&route(3, 179_900, &[]), 7, 120), None);
        assert_eq!(with_rto_min(&route(RTPROT_RA, 0, &[]), 7, 120), None);
        assert_eq!(with_rto_min(&route(3, 0, &[]), 8, 120), None);
        let whole = route(3, 0, &[]);
        for length in 0..whole.len() {
            let _ = with_rto_min(&whole[..length], 7, 120);
        }
    }
}
