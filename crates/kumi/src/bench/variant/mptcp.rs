//! MPTCP: one subflow a link, for unmodified programs run under `mptcpize`.

use super::Running;
use anyhow::Context;

/// Adds the second and later links' addresses as endpoints on both hosts.
pub fn start(running: &mut Running<'_>) -> anyhow::Result<()> {
    running
        .set_sysctl("net.mptcp.enabled", "1")
        .context("this kernel has no MPTCP")?;
    let roles = [
        (running.client().to_string(), "subflow"),
        (running.server().to_string(), "signal"),
    ];
    for (host, role) in roles {
        let limits = [
            "ip",
            "mptcp",
            "limits",
            "set",
            "subflow",
            "8",
            "add_addr_accepted",
            "8",
        ];
        let none = [
            "ip",
            "mptcp",
            "limits",
            "set",
            "subflow",
            "0",
            "add_addr_accepted",
            "0",
        ];
        running.act(&host, &limits, &none)?;
        for device in running.hosts.devices(&host).into_iter().skip(1) {
            let address = running.hosts.address(&host, &device)?;
            running.act(
                &host,
                &[
                    "ip", "mptcp", "endpoint", "add", &address, "dev", &device, role,
                ],
                &["ip", "mptcp", "endpoint", "flush"],
            )?;
        }
    }
    running.prefix = vec!["mptcpize".into(), "run".into()];
    Ok(())
}

/// A token bucket filter among a device's queueing disciplines.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Where it stands, in tc's words: `root handle 1:` or `parent 1:1 handle 2:`.
    pub place: Vec<String>,
    /// Its rate, in tc's notation.
    pub rate: String,
    /// Its burst, in tc's notation.
    pub burst: String,
    /// Its depth, as the words `limit BYTES` or `latency TIME`.
    pub depth: [String; 2],
}

impl TokenBucket {
    /// The command that gives it this depth on `device`.
    pub fn change<'a>(&'a self, device: &'a str, depth: [&'a str; 2]) -> Vec<&'a str> {
        let mut argv = vec!["tc", "qdisc", "change", "dev", device];
        argv.extend(self.place.iter().map(String::as_str));
        argv.extend([
            "tbf",
            "rate",
            &self.rate,
            "burst",
            &self.burst,
            depth[0],
            depth[1],
        ]);
        argv
    }
}

/// Finds the token bucket in what `tc qdisc show` prints. Its depth is the queue that a sender
/// fills, and MPTCP's scheduler needs it deep.
pub fn token_bucket(shown: &str) -> Option<TokenBucket> {
    let line = shown.lines().find(|line| line.starts_with("qdisc tbf "))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |key: &str| {
        let position = words.iter().position(|word| *word == key)?;
        words.get(position + 1).map(|word| (*word).to_string())
    };
    let handle = words.get(2)?.to_string();
    let mut place = match after("parent") {
        Some(parent) => vec!["parent".to_string(), parent],
        None => vec!["root".to_string()],
    };
    place.extend(["handle".to_string(), handle]);
    Some(TokenBucket {
        place,
        rate: after("rate")?,
        burst: after("burst")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bucket__tc_output__is_read() {
        let shown = "qdisc tbf 8001: root refcnt 2 rate 1Gbit burst 15000b lat 1.1ms \n\
                     qdisc clsact ffff: parent ffff:fff1 \n";
        let bucket = token_bucket(shown).expect("there is one");
        assert_eq!(bucket.place, ["root", "handle", "8001:"]);
        assert_eq!(
            (bucket.rate.as_str(), bucket.burst.as_str()),
            ("1Gbit", "15000b")
        );
        let child = "qdisc tbf 2: parent 1:1 rate 500Mbit burst 15Kb limit 150Kb\n";
        assert_eq!(
            token_bucket(child).expect("there is one").place[..2],
            ["parent", "1:1"]
        );
        assert_eq!(token_bucket("qdisc noqueue 0: root refcnt 2 \n"), None);
    }
}
