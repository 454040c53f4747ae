//! Puts to many peers, by each way.

use crate::node::tests::config;
use crate::node::{Node, Region, WindError};
use crate::protocol::{Config, Multicast, PeerId, Place, Refused};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

type Star = (Node, Vec<(Node, Region)>, Vec<(PeerId, Place)>);

/// A root, `count` targets that wait for nothing, and their regions.
fn star(count: usize) -> Star {
    star_at(Ipv4Addr::LOCALHOST.into(), count, Multicast::Auto)
}

fn star_at(ip: IpAddr, count: usize, multicast: Multicast) -> Star {
    let settings = Config {
        multicast,
        ..config([1; 32])
    };
    let root = Node::bind((ip, 0).into(), settings).unwrap();
    let targets: Vec<(Node, Region)> = (0..count)
        .map(|_| {
            let target = Node::bind((ip, 0).into(), config([1; 32])).unwrap();
            let region = target.register(1 << 20).unwrap();
            (target, region)
        })
        .collect();
    let places = targets.iter().map(|(target, region)| {
        let peer = root.connect(target.local_address().unwrap()).unwrap();
        (peer, region.place(64))
    });
    let places = places.collect();
    (root, targets, places)
}

fn contents(region: &Region, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    region.memory().read(64, &mut found);
    found
}

#[test]
fn put_to_all__short_and_long__is_in_the_memory_of_each_peer() {
    let (root, targets, places) = star(5);
    for bytes in [0, 1, 5_000, 300_000, 1_000_000] {
        let data: Vec<u8> = (0..bytes).map(|at| (at * 7 + bytes) as u8).collect();
        root.put_to_all(&places, &data).unwrap();
        for (_, region) in &targets {
            assert!(contents(region, bytes) == data, "{bytes} bytes");
        }
    }
}

#[test]
fn put_to_all__each_way__takes_it_and_falls_back_where_no_group_is_heard() {
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    // The loopback interface has no route to groups of IPv6.
    for (ip, multicast, expected) in [
        (v4, Multicast::Network, [0, 3, 0]),
        (v4, Multicast::Relay, [3, 0, 0]),
        (v6, Multicast::Network, [3, 0, 1]),
    ] {
        // On a busy host, a peer may take too long to say that it hears the group.
        let counts: Vec<[u64; 3]> = (0..5)
            .map(|_| counts_of_three_puts(ip, multicast))
            .collect();
        assert!(counts.contains(&expected), "{ip} {multicast:?}: {counts:?}");
    }
}

/// Puts long data three times, and returns the node's counts: relay, network, unheard.
fn counts_of_three_puts(ip: IpAddr, multicast: Multicast) -> [u64; 3] {
    let (root, targets, places) = star_at(ip, 4, multicast);
    for bytes in [262_144, 300_001, 1_000_000] {
        let data: Vec<u8> = (0..bytes).map(|at| (at * 11 + bytes) as u8).collect();
        root.put_to_all(&places, &data).unwrap();
        for (_, region) in &targets {
            assert!(contents(region, bytes) == data, "{bytes} bytes");
        }
    }
    let counts = root.state().multicast.ways.counts;
    [counts.relay, counts.network, counts.unheard]
}

#[test]
fn put_to_all__peer_that_is_lost_or_refuses__names_it_and_reaches_the_others() {
    let (root, mut targets, mut places) = star(4);
    let data = vec![9; 700_000];
    // The second peer refuses: the others have the data, and the error is its refusal.
    let key = std::mem::take(&mut places[1].1.key);
    let error = root.put_to_all(&places, &data).unwrap_err();
    assert!(
        matches!(error, WindError::Refused(Refused::Region)),
        "{error}"
    );
    for index in [0, 2, 3] {
        assert!(
            contents(&targets[index].1, data.len()) == data,
            "target {index}"
        );
    }
    places[1].1.key = key;
    // The third peer ends while the root does not know it.
    drop(targets.remove(2));
    let data = vec![8; 700_000];
    let error = root.put_to_all(&places, &data).unwrap_err();
    assert!(matches!(error, WindError::Lost(_)), "{error}");
    for (_, region) in &targets[..2] {
        assert!(contents(region, data.len()) == data);
    }
}
