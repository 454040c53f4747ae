//! The ends on all hosts, as who discovers a network sees them.

use super::end::{Said, Told};
use crate::BadInput;
use anyhow::{Context, anyhow, bail};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// An end is started, or answers, within so long.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Ends that run. Dropped, they end.
pub struct Ends {
    names: Vec<String>,
    children: Vec<Child>,
    inputs: Vec<ChildStdin>,
    said: Receiver<(usize, Result<Said, String>)>,
}

impl Ends {
    /// Starts an end on each host, by `shell HOST command topo probe`.
    pub fn start(names: &[String], shell: &str, command: &str) -> anyhow::Result<Self> {
        let key = random()?.to_string();
        let mut words = shell.split_whitespace();
        let program = words
            .next()
            .ok_or_else(|| BadInput("--shell is empty".into()))?;
        let words: Vec<&str> = words.collect();
        let (sender, said) = channel();
        let mut ends = Self {
            names: names.to_vec(),
            children: Vec::new(),
            inputs: Vec::new(),
            said,
        };
        for (at, name) in names.iter().enumerate() {
            let mut child = Command::new(program)
                .args(&words)
                .args([name, command, "topo", "probe", "--key", &key])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .with_context(|| format!("starting `{shell} {name}`"))?;
            let (input, output) = (child.stdin.take(), child.stdout.take());
            ends.children.push(child);
            let (Some(input), Some(output)) = (input, output) else {
                bail!("{name}: no pipes");
            };
            ends.inputs.push(input);
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    let line = line.map_err(|error| error.to_string());
                    let said = line.and_then(|line| {
                        serde_json::from_str(&line).map_err(|_| format!("it says `{line}`"))
                    });
                    if sender.send((at, said)).is_err() {
                        return;
                    }
                }
                let _ = sender.send((at, Err("it has ended".to_owned())));
            });
        }
        Ok(ends)
    }

    /// Tells one end something.
    pub fn tell(&mut self, end: usize, told: &Told) -> anyhow::Result<()> {
        let line = serde_json::to_string(told)? + "\n";
        let written = self.inputs[end].write_all(line.as_bytes());
        written.with_context(|| format!("{}: kumi topo probe has ended", self.names[end]))
    }

    /// One answer of each of these.
    pub fn hear(&self, of: &[usize]) -> anyhow::Result<Vec<Said>> {
        let mut answers: Vec<Option<Said>> = vec![None; of.len()];
        while let Some(absent) = answers.iter().position(Option::is_none) {
            let (end, said) = match self.said.recv_timeout(ANSWER_LIMIT) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "{}: kumi topo probe does not answer",
                        self.names[of[absent]]
                    )
                }
                Err(RecvTimeoutError::Disconnected) => bail!("all ends have ended"),
            };
            let said =
                said.map_err(|why| anyhow!("{}: kumi topo probe: {why}", self.names[end]))?;
            match of.iter().position(|one| *one == end) {
                Some(at) => answers[at] = Some(said),
                None => bail!(
                    "{}: kumi topo probe said more than it was asked",
                    self.names[end]
                ),
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Has them find each other: on a network that all are on, the one named if one is. What each host's switch there calls
    /// itself, where that is known.
    pub fn meet(&mut self, network: Option<&str>) -> anyhow::Result<Vec<Option<String>>> {
        let all: Vec<usize> = (0..self.names.len()).collect();
        let mut here = Vec::new();
        for said in self.hear(&all)? {
            let Said::Here { port, addresses } = said else {
                bail!("an end began with something else");
            };
            here.push((port, addresses));
        }
        let within = |address: Ipv4Addr, bits: u8| {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            (Ipv4Addr::from_bits(address.to_bits() & mask), bits)
        };
        let networks = match network {
            Some(text) => vec![parse_network(text)?],
            None => here[0]
                .1
                .iter()
                .map(|own| within(own.address, own.bits))
                .collect(),
        };
        let on = |(of, bits): (Ipv4Addr, u8), host: usize| {
            let addresses = here[host].1.iter();
            addresses
                .into_iter()
                .find(|own| within(own.address, bits).0 == of)
        };
        let shared = networks
            .iter()
            .find(|network| all.iter().all(|host| on(**network, *host).is_some()));
        let Some(shared) = shared else {
            let first = networks
                .first()
                .copied()
                .unwrap_or((Ipv4Addr::UNSPECIFIED, 0));
            let lacks = all
                .iter()
                .find(|host| on(first, **host).is_none())
                .copied()
                .unwrap_or(0);
            return Err(BadInput(format!(
                "{} has no address on {}/{}; --network NETWORK/BITS names one that all hosts are on",
                self.names[lacks], first.0, first.1
            ))
            .into());
        };
        let addresses: Vec<SocketAddrV4> = all
            .iter()
            .filter_map(|host| {
                let own = on(*shared, *host)?;
                Some(SocketAddrV4::new(own.address, here[*host].0))
            })
            .collect();
        let switches = all
            .iter()
            .map(|host| on(*shared, *host)?.switch.clone())
            .collect();
        for end in all {
            let own = end as u32;
            let addresses = addresses.clone();
            self.tell(end, &Told::Peers { own, addresses })?;
        }
        Ok(switches)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        // They end with their input.
        self.inputs.clear();
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

fn parse_network(text: &str) -> Result<(Ipv4Addr, u8), BadInput> {
    let parsed = text.split_once('/').and_then(|(address, bits)| {
        let bits = bits.parse::<u8>().ok().filter(|bits| *bits <= 32)?;
        Some((address.parse::<Ipv4Addr>().ok()?, bits))
    });
    parsed.ok_or_else(|| {
        BadInput(format!(
            "--network: `{text}` is none; 10.0.0.0/24 would be right"
        ))
    })
}

fn random() -> anyhow::Result<u64> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
