//! The agents on all hosts, as the process that discovers a network uses them.

use super::agent::{Answer, Request};
use anyhow::{Context, anyhow, bail};
use kumi_command::{BadInput, errln, interrupt};
use std::io::{BufRead, BufReader, ErrorKind, Write};
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

/// Accepted value of `--shell`, as messages name it.
const ACCEPTED_SHELL: &str = "a program that runs a command on a host, such as ssh";

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
            .ok_or_else(|| BadInput(format!("--shell is empty: expected {ACCEPTED_SHELL}")))?;
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
                .map_err(|error| start_error(&format!("{shell} {name}"), &error))?;
            let (input, output) = (child.stdin.take(), child.stdout.take());
            agents.children.push(child);
            let (Some(input), Some(output)) = (input, output) else {
                bail!("{name}: no pipes to the shell");
            };
            agents.inputs.push(input);
            let sender = sender.clone();
            let trial = format!("{shell} {name} {command} --version");
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    let line = line.map_err(|error| error.to_string());
                    let answer = line.and_then(|line| {
                        serde_json::from_str(&line).map_err(|_| {
                            format!(
                                "invalid output `{line}`: expected one JSON object a line; check that `{trial}` prints nothing else"
                            )
                        })
                    });
                    if sender.send((index, answer)).is_err() {
                        return;
                    }
                }
                let reason = format!("ended unexpectedly; check that `{trial}` works");
                let _ = sender.send((index, Err(reason)));
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

    /// Returns the first answer of each of these agents. Each must arrive within `limit` of the one
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
            let name = &self.names[agent];
            let answer = answer.map_err(|error| anyhow!("{name}: kumi topo probe: {error}"))?;
            let label = answer.label();
            let Some(index) = agents.iter().position(|candidate| *candidate == agent) else {
                bail!("{name}: kumi topo probe answered `{label}` without a request");
            };
            if answers[index].is_some() {
                errln!(
                    "kumi: warning: {name}: kumi topo probe answered one request twice; the second answer, `{label}`, is ignored"
                );
                continue;
            }
            answers[index] = Some(answer);
            deadline = Instant::now() + limit;
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Returns the error for an answer of another kind than the request has, or about another
    /// train.
    pub fn mismatch(&self, agent: usize, answer: &Answer, expected: &str) -> anyhow::Error {
        anyhow!(
            "{}: kumi topo probe answered `{}`: expected `{expected}`; use the same release of kumi on all hosts",
            self.names[agent],
            answer.label()
        )
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
        let answers = self.receive_answers(&hosts, start_limit)?;
        for (host, answer) in answers.into_iter().enumerate() {
            let Answer::Addresses { port, addresses } = answer else {
                return Err(self.mismatch(host, &answer, "here"));
            };
            if addresses.is_empty() {
                return Err(BadInput(format!(
                    "{} has no IPv4 address except on the loopback interface; a network needs one on each host",
                    self.names[host]
                ))
                .into());
            }
            endpoints.push((port, addresses));
        }
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
            let first = networks[0];
            let absent_host = hosts
                .iter()
                .find(|host| address_on(first, **host).is_none())
                .copied()
                .unwrap_or(0);
            let own_networks: Vec<String> = endpoints[absent_host]
                .1
                .iter()
                .map(|own| network_of(own.address, own.bits))
                .map(|(prefix, bits)| format!("{prefix}/{bits}"))
                .collect();
            return Err(BadInput(format!(
                "{} has no address on {}/{}, only on {}; select a network that all hosts share with --network NETWORK/BITS",
                self.names[absent_host],
                first.0,
                first.1,
                own_networks.join(", ")
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
                    "{} and {} are the same host, {}; name it once",
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

/// Returns the error for a shell that cannot be started. A wrong name is a mistake of the user.
fn start_error(line: &str, error: &std::io::Error) -> anyhow::Error {
    let message = format!("--shell: cannot start `{line}` ({error}): expected {ACCEPTED_SHELL}");
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied => BadInput(message).into(),
        _ => anyhow!(message),
    }
}

/// Returns the network of an address, as its prefix and the prefix length.
fn network_of(address: Ipv4Addr, bits: u8) -> (Ipv4Addr, u8) {
    let host_bits = 32_u32.saturating_sub(u32::from(bits));
    let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
    (Ipv4Addr::from_bits(address.to_bits() & mask), bits)
}

fn parse_network(text: &str) -> Result<(Ipv4Addr, u8), BadInput> {
    let parsed = text.split_once('/').and_then(|(address, bits)| {
        let bits = bits.parse::<u8>().ok().filter(|bits| *bits <= 32)?;
        Some(network_of(address.parse().ok()?, bits))
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

#[cfg(test)]
mod tests {
    use super::super::agent::HostAddress;
    use super::*;
    use std::sync::mpsc::Sender;

    type Received = (usize, Result<Answer, String>);

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Returns agents without processes, and the sender of their answers.
    fn idle_agents(names: &[&str]) -> (Agents, Sender<Received>) {
        let (sender, answers) = channel();
        let agents = Agents {
            names: strings(names),
            children: Vec::new(),
            inputs: Vec::new(),
            answers,
        };
        (agents, sender)
    }

    fn addresses(all: &[([u8; 4], u8)]) -> Result<Answer, String> {
        let addresses = all.iter().map(|(address, bits)| HostAddress {
            address: Ipv4Addr::from(*address),
            bits: *bits,
            switch: None,
        });
        Ok(Answer::Addresses {
            port: 9,
            addresses: addresses.collect(),
        })
    }

    #[test]
    fn answers__second_answer_of_an_agent__keeps_the_first() {
        let (agents, sender) = idle_agents(&["one", "two"]);
        for (agent, number) in [(0, 1), (0, 2), (1, 3)] {
            sender.send((agent, Ok(Answer::Sent { number }))).unwrap();
        }
        let answers = agents.answers(&[0, 1]).unwrap();
        assert_eq!(answers, [1, 3].map(|number| Answer::Sent { number }));
    }

    #[test]
    fn answers__of_another_agent_or_an_error__name_the_host() {
        for (answer, message) in [
            (
                (1, Ok(Answer::Sent { number: 5 })),
                "two: kumi topo probe answered `sent 5` without a request",
            ),
            (
                (0, Err("a reason".to_owned())),
                "one: kumi topo probe: a reason",
            ),
        ] {
            let (agents, sender) = idle_agents(&["one", "two"]);
            sender.send(answer).unwrap();
            assert_eq!(agents.answers(&[0]).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn answers__none_in_time__name_the_hosts_and_what_to_check() {
        let (agents, _sender) = idle_agents(&["one", "two"]);
        let error = agents.receive_answers(&[0, 1], Duration::ZERO).unwrap_err();
        assert_eq!(
            error.to_string(),
            "one two: no answer from kumi topo probe within 0 s; check that the shell reaches these hosts without a password"
        );
    }

    #[test]
    fn shell__invalid_or_without_an_agent__is_named_with_what_is_accepted() {
        let names = strings(&["one"]);
        for (shell, message) in [
            (
                " ",
                "--shell is empty: expected a program that runs a command on a host, such as ssh",
            ),
            (
                "/no/such/shell -x",
                "--shell: cannot start `/no/such/shell -x one` (No such file or directory (os error 2)): \
                 expected a program that runs a command on a host, such as ssh",
            ),
        ] {
            let error = Agents::start(&names, shell, "kumi").err().unwrap();
            assert_eq!(error.to_string(), message);
            assert!(error.is::<BadInput>(), "{message}");
        }
        let error_of = |shell: &str| {
            let agents = Agents::start(&names, shell, "kumi").unwrap();
            agents.answers(&[0]).unwrap_err().to_string()
        };
        let output = error_of("echo hello");
        assert!(
            output.starts_with(
                "one: kumi topo probe: invalid output `hello one kumi topo probe --key "
            ) && output.ends_with(
                "`: expected one JSON object a line; \
                 check that `echo hello one kumi --version` prints nothing else"
            ),
            "{output}"
        );
        assert_eq!(
            error_of("true"),
            "one: kumi topo probe: ended unexpectedly; check that `true one kumi --version` works"
        );
    }

    #[test]
    fn request__to_an_agent_that_has_ended__names_the_host() {
        let mut agents = Agents::start(&strings(&["one"]), "true", "kumi").unwrap();
        agents.answers(&[0]).unwrap_err();
        let request = Request::Arrivals {
            number: 1,
            quiet_us: 1,
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        // A child that another test is starting may hold the pipe for a moment.
        let error = loop {
            match agents.request(0, &request) {
                Err(error) => break error,
                Ok(()) => assert!(Instant::now() < deadline, "the pipe stays open"),
            }
            std::thread::sleep(EXIT_INTERVAL);
        };
        assert_eq!(error.to_string(), "one: kumi topo probe has ended");
    }

    #[test]
    fn network__not_shared_by_all_hosts__is_named_with_the_networks_of_the_host() {
        let lan = |host| addresses(&[([10, 0, 0, host], 24)]);
        let both = addresses(&[([10, 0, 0, 2], 24), ([172, 16, 0, 2], 12)]);
        for (network, answers, message) in [
            (
                Some("10.0.0.0"),
                [lan(1), lan(2)],
                "invalid --network `10.0.0.0`: expected an IPv4 network such as 10.0.0.0/24",
            ),
            (
                Some("10.0.0.0/33"),
                [lan(1), lan(2)],
                "invalid --network `10.0.0.0/33`: expected an IPv4 network such as 10.0.0.0/24",
            ),
            (
                Some("192.168.0.0/16"),
                [lan(1), lan(2)],
                "one has no address on 192.168.0.0/16, only on 10.0.0.0/24; \
                 select a network that all hosts share with --network NETWORK/BITS",
            ),
            (
                None,
                [addresses(&[([192, 168, 1, 1], 24)]), both],
                "two has no address on 192.168.1.0/24, only on 10.0.0.0/24, 172.16.0.0/12; \
                 select a network that all hosts share with --network NETWORK/BITS",
            ),
            (
                None,
                [lan(1), addresses(&[])],
                "two has no IPv4 address except on the loopback interface; \
                 a network needs one on each host",
            ),
            // The bits of the host do not matter.
            (
                Some("10.0.0.77/24"),
                [lan(1), lan(1)],
                "one and two are the same host, 10.0.0.1; name it once",
            ),
            (
                None,
                [lan(1), Ok(Answer::Sent { number: 4 })],
                "two: kumi topo probe answered `sent 4`: expected `here`; \
                 use the same release of kumi on all hosts",
            ),
        ] {
            let (mut agents, sender) = idle_agents(&["one", "two"]);
            for received in answers.into_iter().enumerate() {
                sender.send(received).unwrap();
            }
            let outcome = agents.exchange_addresses(network, Duration::from_secs(5));
            assert_eq!(outcome.unwrap_err().to_string(), message);
        }
    }
}
