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
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// Interval at which a wait for answers checks for a signal.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which an agent's exit is checked.
const EXIT_INTERVAL: Duration = Duration::from_millis(5);

/// The running agents. They end when the value is dropped.
pub struct Agents {
    names: Vec<String>,
    children: Vec<Child>,
    inputs: Vec<ChildStdin>,
    answers: Receiver<(usize, Result<Answer, String>)>,
}

impl Agents {
    /// Starts an agent on each host, by `shell HOST command topo probe`.
    pub fn start(names: &[String], shell: &str, command: &str) -> anyhow::Result<Self> {
        let key = random()?.to_string();
        let mut words = shell.split_whitespace();
        let program = words
            .next()
            .ok_or_else(|| BadInput("--shell is empty".into()))?;
        let arguments: Vec<&str> = words.collect();
        let (sender, answers) = channel();
        let mut agents = Self {
            names: names.to_vec(),
            children: Vec::new(),
            inputs: Vec::new(),
            answers,
        };
        for (index, name) in names.iter().enumerate() {
            let mut child = Command::new(program)
                .args(&arguments)
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
                    if sender.send((index, answer)).is_err() {
                        return;
                    }
                }
                let _ = sender.send((index, Err("ended unexpectedly".to_owned())));
            });
        }
        Ok(agents)
    }

    /// Sends a request to one agent.
    pub fn request(&mut self, agent: usize, request: &Request) -> anyhow::Result<()> {
        let line = serde_json::to_string(request)? + "\n";
        let written = self.inputs[agent].write_all(line.as_bytes());
        written.with_context(|| format!("{}: kumi topo probe has ended", self.names[agent]))
    }

    /// Returns one answer of each of these agents.
    pub fn answers(&self, agents: &[usize]) -> anyhow::Result<Vec<Answer>> {
        self.receive_answers(agents, ANSWER_LIMIT)
    }

    /// Returns one answer of each of these agents. Each must arrive within `limit` of the one
    /// before.
    fn receive_answers(&self, agents: &[usize], limit: Duration) -> anyhow::Result<Vec<Answer>> {
        let mut answers: Vec<Option<Answer>> = vec![None; agents.len()];
        let mut deadline = Instant::now() + limit;
        while answers.iter().any(Option::is_none) {
            interrupt::check()?;
            let remaining = deadline.saturating_duration_since(Instant::now());
            let (agent, answer) = match self.answers.recv_timeout(remaining.min(CHECK_INTERVAL)) {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Timeout) if remaining > CHECK_INTERVAL => continue,
                Err(RecvTimeoutError::Timeout) => {
                    let absent = agents.iter().zip(&answers);
                    let absent = absent.filter(|(_, answer)| answer.is_none());
                    let names: Vec<&str> = absent.map(|(agent, _)| &*self.names[*agent]).collect();
                    bail!(
                        "{}: no answer from kumi topo probe within {} s; check that the shell reaches these hosts without a password",
                        names.join(" "),
                        limit.as_secs()
                    )
                }
                Err(RecvTimeoutError::Disconnected) => bail!("kumi topo probe ended on all hosts"),
            };
            deadline = Instant::now() + limit;
            let answer = answer
                .map_err(|error| anyhow!("{}: kumi topo probe: {error}", self.names[agent]))?;
            match agents.iter().position(|candidate| *candidate == agent) {
                Some(index) => answers[index] = Some(answer),
                None => bail!(
                    "{}: kumi topo probe answered without a request",
                    self.names[agent]
                ),
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Sends all addresses to all agents, on a network that all hosts share. `network` selects one.
    /// Returns the name of each host's switch there, where LLDP announces it.
    pub fn exchange_addresses(
        &mut self,
        network: Option<&str>,
        start_limit: Duration,
    ) -> anyhow::Result<Vec<Option<String>>> {
        let hosts: Vec<usize> = (0..self.names.len()).collect();
        let mut endpoints = Vec::new();
        for answer in self.receive_answers(&hosts, start_limit)? {
            let Answer::Addresses { port, addresses } = answer else {
                bail!("kumi topo probe did not report its addresses first");
            };
            endpoints.push((port, addresses));
        }
        let network_of = |address: Ipv4Addr, bits: u8| {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            (Ipv4Addr::from_bits(address.to_bits() & mask), bits)
        };
        let networks = match network {
            Some(text) => vec![parse_network(text)?],
            None => endpoints[0]
                .1
                .iter()
                .map(|own| network_of(own.address, own.bits))
                .collect(),
        };
        let address_on = |(prefix, bits): (Ipv4Addr, u8), host: usize| {
            let addresses = endpoints[host].1.iter();
            addresses
                .into_iter()
                .find(|own| network_of(own.address, bits).0 == prefix)
        };
        let shared = networks.iter().find(|network| {
            hosts
                .iter()
                .all(|host| address_on(**network, *host).is_some())
        });
        let Some(shared) = shared else {
            let first = networks
                .first()
                .copied()
                .unwrap_or((Ipv4Addr::UNSPECIFIED, 0));
            let absent_host = hosts
                .iter()
                .find(|host| address_on(first, **host).is_none())
                .copied()
                .unwrap_or(0);
            return Err(BadInput(format!(
                "{} has no address on {}/{}; select a network that all hosts share with --network NETWORK/BITS",
                self.names[absent_host], first.0, first.1
            ))
            .into());
        };
        let addresses: Vec<SocketAddrV4> = hosts
            .iter()
            .filter_map(|host| {
                let own = address_on(*shared, *host)?;
                Some(SocketAddrV4::new(own.address, endpoints[*host].0))
            })
            .collect();
        self.refuse_twins(&addresses)?;
        let switches = hosts
            .iter()
            .map(|host| address_on(*shared, *host)?.switch.clone())
            .collect();
        for host in hosts {
            let own = host as u32;
            let addresses = addresses.clone();
            self.request(host, &Request::Peers { own, addresses })?;
        }
        Ok(switches)
    }
}

impl Agents {
    /// Refuses two names of one host. Its pairs would be measured twice, and it would fill its own
    /// link.
    fn refuse_twins(&self, addresses: &[SocketAddrV4]) -> Result<(), BadInput> {
        for (index, address) in addresses.iter().enumerate() {
            let twin = addresses[..index]
                .iter()
                .position(|earlier| earlier.ip() == address.ip());
            if let Some(twin) = twin {
                return Err(BadInput(format!(
                    "--hosts: {} and {} are the same host, {}; name it once",
                    self.names[twin],
                    self.names[index],
                    address.ip()
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // Agents exit when their input is closed, but a shell that hangs does not.
        self.inputs.clear();
        let deadline = Instant::now() + EXIT_LIMIT;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(EXIT_INTERVAL);
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
