//! A network that passes TCP and not UDP.

use super::*;

/// A firewall may pass TCP and drop UDP.
#[test]
fn rank__whose_udp_port_does_not_answer__is_lost_with_the_reason() {
    let config = Config {
        transport: Transport::Wind,
        host: Some("here".to_owned()),
        interface: Some("lo".to_owned()),
        ..Config::default()
    };
    let listening = [(); 2].map(|()| Listening::new(config.clone()).unwrap());
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut cards = [0, 1].map(|rank: usize| listening[rank].card.clone());
    let own = cards.clone().map(|card| card.bytes().to_vec());
    cards[1].wind_port = silent.local_addr().unwrap().port();
    let unlike = cards.map(|card| card.bytes().to_vec());
    let [first, second] = listening;
    std::thread::scope(|scope| {
        let first = scope.spawn(move || {
            let group = first.join(0, &unlike).unwrap();
            all_reduce(&group, 100_000).unwrap_err().to_string()
        });
        let second = scope.spawn(move || all_reduce(&second.join(1, &own).unwrap(), 100_000));
        let error = first.join().unwrap();
        assert!(
            error.contains("rank 1 is lost: the peer does not answer, over UDP"),
            "{error}"
        );
        second.join().unwrap().unwrap_err();
    });
}
