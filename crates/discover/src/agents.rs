//! The agents on all hosts, as the process that discovers a network uses them.

use super::agent::{Answer, Request};
use anyhow::{Context, anyhow, bail};
use kumi_command::{BadInput, interrupt};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Time limit for the next answer of any agent. The longest request is a batch of pings.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for agents to exit after their input is closed. After it, they are killed.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

/// Interval at which a wait for answers checks for a signal.
const INTERRUPT_LOOK: Duration = Duration::from_millis(100);

/// Interval at which an agent's exit is checked.
const LEAVE_LOOK: Duration = Duration::from_millis(5);

/// The running agents. They end when the value is dropped.
pub struct Agents {
    names: Vec<String>,
    children: Vec<Child>,
    inputs: Vec<ChildStdin>,
    answer: Receiver<(usize, Result<Answer, String>)>,
}

impl Agents {
    /// Starts an agent on each host, by `shell HOST command topo probe`.
    pub fn start(names: &[String], shell: &str, command: &str) -> anyhow::Result<Self> {
        let key = random()?.to_string();
        let mut words = shell.split_whitespace();
        let program = words
            .next()
            .ok_or_else(|| BadInput("--shell is empty".into()))?;
        let words: Vec<&str> = words.collect();
        let (sender, answer) = channel();
        let mut agents = Self {
            names: names.to_vec(),
            children: Vec::new(),
            inputs: Vec::new(),
            answer,
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
            agents.children.push(child);
            let (Some(input), Some(output)) = (input, output) else {
                bail!("{name}: no pipes to the shell");
            };
            agents.inputs.push(input);
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    let line = line.map_err(|error| error.to_string());
                    let answer = line.and_then(|line| {
                        serde_json::from_str(&line).map_err(|_| format!("invalid output `{line}`"))
                    });
                    if sender.send((at, answer)).is_err() {
                        return;
                    }
                }
                let _ = sender.send((at, Err("ended unexpectedly".to_owned())));
            });
        }
        Ok(agents)
    }

    /// Sends a request to one agent.
    pub fn request(&mut self, end: usize, request: &Request) -> anyhow::Result<()> {
        let line = serde_json::to_string(request)? + "\n";
        let written = self.inputs[end].write_all(line.as_bytes());
        written.with_context(|| format!("{}: kumi topo probe has ended", self.names[end]))
    }

    /// Returns one answer of each of these agents.
    pub fn answers(&self, of: &[usize]) -> anyhow::Result<Vec<Answer>> {
        self.hear_within(of, ANSWER_LIMIT)
    }

    /// Returns one answer of each of these agents. Each must arrive within `limit` of the one
    /// before.
    fn hear_within(&self, of: &[usize], limit: Duration) -> anyhow::Result<Vec<Answer>> {
        let mut answers: Vec<Option<Answer>> = vec![None; of.len()];
        let mut deadline = Instant::now() + limit;
        while answers.iter().any(Option::is_none) {
            interrupt::check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            let (end, answer) = match self.answer.recv_timeout(left.min(INTERRUPT_LOOK)) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) if left > INTERRUPT_LOOK => continue,
                Err(RecvTimeoutError::Timeout) => {
                    let absent = of.iter().zip(&answers);
                    let absent = absent.filter(|(_, answer)| answer.is_none());
                    let names: Vec<&str> = absent.map(|(end, _)| &*self.names[*end]).collect();
                    bail!(
                        "{}: no answer from kumi topo probe within {} s; check that the shell reaches these hosts without a password",
                        names.join(" "),
                        limit.as_secs()
                    )
                }
                Err(RecvTimeoutError::Disconnected) => bail!("kumi topo probe ended on all hosts"),
            };
            deadline = Instant::now() + limit;
            let answer =
                answer.map_err(|why| anyhow!("{}: kumi topo probe: {why}", self.names[end]))?;
            match of.iter().position(|one| *one == end) {
                Some(at) => answers[at] = Some(answer),
                None => bail!(
                    "{}: kumi topo probe answered without a request",
                    self.names[end]
                ),
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Sends all addresses to all agents, on a network that all hosts share. `network` selects one.
    /// Returns the name of each host's switch there, where LLDP announces it.
    pub fn meet(
        &mut self,
        network: Option<&str>,
        start_limit: Duration,
    ) -> anyhow::Result<Vec<Option<String>>> {
        let all: Vec<usize> = (0..self.names.len()).collect();
        let mut here = Vec::new();
        for answer in self.hear_within(&all, start_limit)? {
            let Answer::Here { port, addresses } = answer else {
                bail!("kumi topo probe did not report its addresses first");
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
                "{} has no address on {}/{}; select a network that all hosts share with --network NETWORK/BITS",
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
        self.refuse_twins(&addresses)?;
        let switches = all
            .iter()
            .map(|host| on(*shared, *host)?.switch.clone())
            .collect();
        for end in all {
            let own = end as u32;
            let addresses = addresses.clone();
            self.request(end, &Request::Peers { own, addresses })?;
        }
        Ok(switches)
    }
}

impl Agents {
    /// Refuses two names of one host. Its pairs would be measured twice, and it would fill its own
    /// link.
    fn refuse_twins(&self, addresses: &[SocketAddrV4]) -> Result<(), BadInput> {
        for (at, address) in addresses.iter().enumerate() {
            let twin = addresses[..at]
                .iter()
                .position(|one| one.ip() == address.ip());
            if let Some(twin) = twin {
                return Err(BadInput(format!(
                    "--hosts: {} and {} are the same host, {}; name it once",
                    self.names[twin],
                    self.names[at],
                    address.ip()
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // Ends exit when their input is closed, but a shell that hangs does not.
        self.inputs.clear();
        let until = Instant::now() + LEAVE_LIMIT;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(LEAVE_LOOK);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        interrupt::undone(|| format!("kumi topo probe on {}", self.names.join(", ")));
    }
}

fn parse_network(text: &str) -> Result<(Ipv4Addr, u8), BadInput> {
    let parsed = text.split_once('/').and_then(|(address, bits)| {
        let bits = bits.parse::<u8>().ok().filter(|bits| *bits <= 32)?;
        Some((address.parse::<Ipv4Addr>().ok()?, bits))
    });
    parsed.ok_or_else(|| {
        BadInput(format!(
            "invalid --network `{text}`: expected an IPv4 network such as 10.0.0.0/24"
        ))
    })
}

fn random() -> anyhow::Result<u64> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
