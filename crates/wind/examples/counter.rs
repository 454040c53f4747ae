//! Two nodes: one counts in the memory of the other, whose program does nothing.
//!
//! ```console
//! $ cargo run -p kumi-wind --example counter
//! ```

use kumi_wind::{Atomic, Config, Node, random_epoch};

/// Runs the example.
///
/// # Errors
/// The nodes do not reach each other.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let secret = *b"32 bytes that only the job knows";
    let node = || -> Result<Node, Box<dyn std::error::Error>> {
        let config = Config::new(secret, random_epoch()?);
        Ok(Node::bind("127.0.0.1:0".parse()?, config)?)
    };
    let (server, client) = (node()?, node()?);
    let region = server.register(4096)?;
    let peer = client.connect(server.local_address()?)?;
    for _ in 0..1_000 {
        client.atomic(peer, region.place(0), Atomic::FetchAdd(1))?;
    }
    let mut word = [0; 8];
    region.memory().read(0, &mut word);
    println!("counted to {}", u64::from_ne_bytes(word));
    assert_eq!(u64::from_ne_bytes(word), 1_000);
    Ok(())
}
