//! Routes: the floor of TCP's retransmission timeout on those of one interface, and their cache.

use super::Rtnetlink;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteProtocol, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;

/// `RTAX_RTO_MIN`: place of the floor in the bit set of locked metrics.
const RTAX_RTO_MIN: u32 = 13;

/// Table of the route that [`renew_cached`] adds for a moment: `ku`.
const TABLE: u32 = 0x6b75;

/// Makes the connections of IPv4 look up their routes again, as after every change of a route
/// (`rt_cache_flush` of net/ipv4/route.c). They learn changed limits of an interface.
///
/// A route is added to a table that no rule names, and removed. `route/flush` of /proc/sys would
/// do too, but it also voids the path MTUs that the host has learnt (`fnhe_genid_bump`).
///
/// # Errors
/// The kernel's error.
pub fn renew_cached() -> io::Result<()> {
    let mut route = RouteMessage::default();
    route.header.address_family = AddressFamily::Inet;
    route.header.kind = RouteType::BlackHole;
    route.header.protocol = RouteProtocol::Static;
    route.attributes = vec![RouteAttribute::Table(TABLE)];
    let mut kernel = Rtnetlink::open()?;
    let add = RouteNetlinkMessage::NewRoute(route.clone());
    kernel.change(add, NLM_F_CREATE | NLM_F_REPLACE)?;
    match kernel.change(RouteNetlinkMessage::DelRoute(route), 0) {
        // Another device of this host has removed it.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result,
    }
}

/// Sets the floor of the retransmission timeout to `rto_min_ms` on every unicast route over the
/// interface. Returns the number of changed routes.
///
/// Some routes stay unchanged: those that have a floor, those that expire, those of router
/// advertisements, and those over several interfaces. The kernel refreshes only its own route of a
/// router advertisement. The kernel's own description of each route is sent back with one metric
/// changed.
///
/// # Errors
/// The kernel's error for the list of routes, or for the first route that it refused. The other
/// routes are changed.
pub fn set_rto_min(interface_index: u32, rto_min_ms: u32) -> io::Result<usize> {
    let mut kernel = Rtnetlink::open()?;
    let routes = kernel.dump(RouteNetlinkMessage::GetRoute(RouteMessage::default()))?;
    let (mut changed, mut first_error) = (0, None);
    for route in routes {
        let RouteNetlinkMessage::NewRoute(route) = route else {
            continue;
        };
        let Some(request) = with_rto_min(route, interface_index, rto_min_ms) else {
            continue;
        };
        // Without NLM_F_CREATE, a route that has been removed is not created again.
        match kernel.change(RouteNetlinkMessage::NewRoute(request), NLM_F_REPLACE) {
            Ok(()) => changed += 1,
            // The route has been removed in between.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(changed), Err)
}

/// Returns the request that sets the floor of `route`; `None` for a route that stays unchanged.
fn with_rto_min(
    mut route: RouteMessage,
    interface_index: u32,
    rto_min_ms: u32,
) -> Option<RouteMessage> {
    let flags = route.header.flags;
    let is_temporary =
        route.header.protocol == RouteProtocol::Ra || flags.contains(RouteFlags::Cloned);
    if route.header.kind != RouteType::Unicast || is_temporary {
        return None;
    }
    let attributes = &route.attributes;
    let uses_interface = attributes.contains(&RouteAttribute::Oif(interface_index));
    if !uses_interface || attributes.iter().any(is_unchangeable) {
        return None;
    }
    let has_object = attributes
        .iter()
        .any(|attribute| matches!(attribute, RouteAttribute::NhId(_)));
    // Onlink is the only flag that the administrator sets. The others are the kernel's state.
    route.header.flags &= RouteFlags::Onlink;
    let mut metrics = Vec::new();
    let mut request = Vec::new();
    for attribute in route.attributes {
        match attribute {
            RouteAttribute::Metrics(present) => metrics = present,
            RouteAttribute::CacheInfo(_) => {}
            // A next-hop object implies these attributes.
            RouteAttribute::Oif(_) | RouteAttribute::Gateway(_) | RouteAttribute::Via(_)
                if has_object => {}
            attribute => request.push(attribute),
        }
    }
    // A floor is there, from the administrator or an earlier daemon.
    if metrics
        .iter()
        .any(|metric| matches!(metric, RouteMetric::RtoMin(_)))
    {
        return None;
    }
    let mut locked = 1 << RTAX_RTO_MIN;
    metrics.retain(|metric| match metric {
        RouteMetric::Lock(metrics) => {
            locked |= metrics;
            false
        }
        _ => true,
    });
    metrics.extend([RouteMetric::Lock(locked), RouteMetric::RtoMin(rto_min_ms)]);
    request.push(RouteAttribute::Metrics(metrics));
    route.attributes = request;
    Some(route)
}

/// Returns whether a route with `attribute` is left alone: it expires, has several interfaces, or
/// leads to a multicast or link-local address of IPv6, which needs no floor.
fn is_unchangeable(attribute: &RouteAttribute) -> bool {
    match attribute {
        RouteAttribute::CacheInfo(info) => info.expires != 0,
        RouteAttribute::MultiPath(_) => true,
        RouteAttribute::Destination(RouteAddress::Inet6(ip)) => {
            ip.is_multicast() || ip.is_unicast_link_local()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::route::RouteCacheInfo;

    /// A route over interface 7, as the kernel describes it.
    fn route(protocol: RouteProtocol, expires: u32, metrics: Vec<RouteMetric>) -> RouteMessage {
        let mut route = RouteMessage::default();
        route.header.address_family = AddressFamily::Inet6;
        route.header.destination_prefix_length = 64;
        route.header.protocol = protocol;
        route.header.kind = RouteType::Unicast;
        route.header.flags = RouteFlags::Linkdown;
        // struct rta_cacheinfo: eight words, of which the third is the expiry
        let words = [0, 0, expires, 0, 0, 0, 0, 0];
        let info = RouteCacheInfo::parse(&words.map(u32::to_ne_bytes).concat()).unwrap();
        route.attributes = vec![RouteAttribute::Oif(7), RouteAttribute::CacheInfo(info)];
        if !metrics.is_empty() {
            route.attributes.push(RouteAttribute::Metrics(metrics));
        }
        route
    }

    #[test]
    fn rto_min__route_with_other_metrics__keeps_them_and_their_locks() {
        let metrics = vec![RouteMetric::Lock(4), RouteMetric::Mtu(1400)];
        let request =
            with_rto_min(route(RouteProtocol::Boot, 0, metrics), 7, 120).expect("is changed");
        assert!(
            request.header.flags.is_empty(),
            "the kernel's state is not given back"
        );
        let set = RouteAttribute::Metrics(vec![
            RouteMetric::Mtu(1400),
            RouteMetric::Lock(4 | 1 << RTAX_RTO_MIN),
            RouteMetric::RtoMin(120),
        ]);
        assert_eq!(request.attributes, [RouteAttribute::Oif(7), set]);
        let repeat = with_rto_min(request, 7, 120);
        assert_eq!(repeat, None, "a route that has a floor is left alone");
    }

    #[test]
    fn rto_min__expiring_or_other_interface_routes__are_unchanged() {
        let unchanged = |protocol, expires, index| {
            with_rto_min(route(protocol, expires, Vec::new()), index, 120).is_none()
        };
        assert!(unchanged(RouteProtocol::Boot, 179_900, 7));
        assert!(unchanged(RouteProtocol::Ra, 0, 7));
        assert!(unchanged(RouteProtocol::Boot, 0, 8));
        assert!(!unchanged(RouteProtocol::Boot, 0, 7));
        let mut link_local = route(RouteProtocol::Kernel, 0, Vec::new());
        let destination = RouteAddress::Inet6("fe80::".parse().unwrap());
        link_local
            .attributes
            .push(RouteAttribute::Destination(destination));
        assert_eq!(with_rto_min(link_local, 7, 120), None);
    }
}
