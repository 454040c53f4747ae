//! The network file: its keys, and the errors for wrong values.

use crate::nearest::nearest;
use crate::network::{End, HOSTS_MAX, Host, Link, Network, SWITCHES_MAX, Switch};
use crate::quantity::{Delay, Rate};
use crate::source::{self, FileError, Source};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;
use toml::Spanned;

/// Longest host name that Linux accepts, in characters.
const NAME_CHARS_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    #[serde(default)]
    host: Vec<HostEntry>,
    #[serde(default)]
    switch: Vec<SwitchEntry>,
    #[serde(default)]
    link: Vec<LinkEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: Spanned<String>,
    both_ways: Option<Rate>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchEntry {
    name: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    between: Spanned<Vec<Spanned<String>>>,
    rate: Option<Rate>,
    rates: Option<Spanned<Vec<Rate>>>,
    #[serde(default)]
    latency: Delay,
}

/// The file's contents in the form in which they are written.
#[derive(Serialize)]
struct WrittenFile<'a> {
    name: &'a str,
    switch: Vec<WrittenSwitch<'a>>,
    host: Vec<WrittenHost<'a>>,
    link: Vec<WrittenLink<'a>>,
}

#[derive(Serialize)]
struct WrittenSwitch<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct WrittenHost<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    both_ways: Option<Rate>,
}

#[derive(Serialize)]
struct WrittenLink<'a> {
    between: [&'a str; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<[Rate; 2]>,
    latency: Delay,
}

impl Network {
    /// Reads a network file.
    ///
    /// # Errors
    /// Names the file, the line, the key, the value and the accepted values.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let (file, text) = source::read(path)?;
        Self::parse(&file, &text)
    }

    /// Parses a network from `text`. `file` is the name for error messages.
    ///
    /// # Errors
    /// As [`Network::read`].
    pub fn parse(file: &str, text: &str) -> Result<Self, FileError> {
        let source = Source { file, text };
        let entry: File = toml::from_str(text).map_err(|error| source.syntax(&error))?;
        let name = source.name("name", &entry.name, NAME_CHARS_MAX)?;
        let mut ends = HashMap::new();
        let mut take = |name: &Spanned<String>, end: End| {
            let checked = source.name("name", name, NAME_CHARS_MAX)?;
            if ends.insert(checked.clone(), end).is_none() {
                return Ok(checked);
            }
            let problem =
                format!("`{checked}` is already the name of a host or switch; give each its own");
            Err(source.wrong(name.span(), "name", problem))
        };
        let mut hosts = Vec::new();
        for host in &entry.host {
            hosts.push(Host {
                name: take(&host.name, End::Host(hosts.len()))?,
                both_ways: host.both_ways,
            });
        }
        let mut switches = Vec::new();
        for switch in &entry.switch {
            switches.push(Switch {
                name: take(&switch.name, End::Switch(switches.len()))?,
            });
        }
        for (key, count, max) in [
            ("host", hosts.len(), HOSTS_MAX),
            ("switch", switches.len(), SWITCHES_MAX),
        ] {
            if count > max || (key == "host" && count == 0) {
                let problem = format!(
                    "{count} [[{key}]] entries: expected at most {max}, and at least one [[host]]"
                );
                return Err(source.wrong(0..0, key, problem));
            }
        }
        let links = entry
            .link
            .iter()
            .map(|link| check_link(&source, &ends, link));
        let links = links.collect::<Result<Vec<Link>, FileError>>()?;
        let network = Self {
            name,
            hosts,
            switches,
            links,
        };
        check_tree(&source, &network, &entry)?;
        Ok(network)
    }

    /// Returns the file's text. Parsing it returns an equal network.
    ///
    /// # Errors
    /// None is known: every name and number has a spelling.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let links = self.links.iter().map(|link| {
            let [forward, backward] = link.rates;
            WrittenLink {
                between: link.ends.map(|end| self.name_of(end)),
                rate: (forward == backward).then_some(forward),
                rates: (forward != backward).then_some(link.rates),
                latency: link.latency,
            }
        });
        toml::to_string(&WrittenFile {
            name: &self.name,
            switch: self
                .switches
                .iter()
                .map(|switch| WrittenSwitch { name: &switch.name })
                .collect(),
            host: self
                .hosts
                .iter()
                .map(|host| WrittenHost {
                    name: &host.name,
                    both_ways: host.both_ways,
                })
                .collect(),
            link: links.collect(),
        })
    }
}

fn check_link(
    source: &Source<'_>,
    ends: &HashMap<String, End>,
    link: &LinkEntry,
) -> Result<Link, FileError> {
    let wrong = |problem: String| source.wrong(link.between.span(), "between", problem);
    let [a, b] = link.between.get_ref().as_slice() else {
        let count = link.between.get_ref().len();
        let problem = format!("{count} ends: expected two, such as [\"n1\", \"s1\"]");
        return Err(wrong(problem));
    };
    let find = |name: &Spanned<String>| {
        let text = name.get_ref();
        ends.get(text).copied().ok_or_else(|| {
            let hint = match nearest(text, ends.keys().map(String::as_str)) {
                Some(best) => format!("did you mean `{best}`?"),
                None => "define it with [[host]] or [[switch]]".to_owned(),
            };
            let problem = format!("no host or switch `{text}`; {hint}");
            source.wrong(name.span(), "between", problem)
        })
    };
    let ends = [find(a)?, find(b)?];
    let rates = match (link.rate, &link.rates) {
        (Some(rate), None) => [rate, rate],
        (None, Some(rates)) => <[Rate; 2]>::try_from(rates.get_ref().as_slice()).map_err(|_| {
            let problem = format!(
                "{} rates: expected two, from the first end to the second and back",
                rates.get_ref().len()
            );
            source.wrong(rates.span(), "rates", problem)
        })?,
        (Some(_), Some(rates)) => {
            let problem = "both `rate` and `rates`; write one of them".to_owned();
            return Err(source.wrong(rates.span(), "rates", problem));
        }
        (None, None) => {
            let problem = "a link without a `rate`; set the rate of the link, such as `1Gbit`";
            return Err(wrong(problem.to_owned()));
        }
    };
    Ok(Link {
        ends,
        rates,
        latency: link.latency,
    })
}

/// Checks that the network is one tree in which every host is a leaf.
fn check_tree(source: &Source<'_>, network: &Network, entry: &File) -> Result<(), FileError> {
    let nodes = network.hosts.len() + network.switches.len();
    let mut groups = Groups((0..nodes).collect());
    let mut is_linked = vec![false; network.hosts.len()];
    for (link, written) in network.links.iter().zip(&entry.link) {
        let wrong = |problem: String| source.wrong(written.between.span(), "between", problem);
        let [a, b] = link.ends.map(|end| network.name_of(end));
        for end in link.ends {
            let End::Host(host) = end else { continue };
            if std::mem::replace(&mut is_linked[host], true) {
                let problem = format!(
                    "`{}` already has a link; a host has one (the member links of a device count as one)",
                    network.name_of(end)
                );
                return Err(wrong(problem));
            }
        }
        let [x, y] = link.ends.map(|end| groups.find(network.node(end)));
        if x == y {
            let problem =
                format!("joining `{a}` and `{b}` closes a loop; the network must be a tree");
            return Err(wrong(problem));
        }
        groups.0[x] = y;
    }
    let first = groups.find(0);
    if let Some(isolated) = (0..nodes).find(|node| groups.find(*node) != first) {
        let problem = format!(
            "no path from `{}` to `{}`; connect them with links",
            network.hosts[0].name,
            network.name_of(network.end(isolated))
        );
        return Err(source.wrong(0..0, "link", problem));
    }
    Ok(())
}

/// Union-find over nodes: each entry points towards the representative of its group.
struct Groups(Vec<usize>);

impl Groups {
    fn find(&mut self, node: usize) -> usize {
        let mut node = node;
        while self.0[node] != node {
            self.0[node] = self.0[self.0[node]];
            node = self.0[node];
        }
        node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAR: &str = r#"
        name = "star"
        host = [{ name = "a" }, { name = "b", both_ways = "1500Mbit" }, { name = "c" }]
        switch = [{ name = "s" }]
        link = [
            { between = ["a", "s"], rate = "1Gbit", latency = "10us" },
            { between = ["b", "s"], rates = ["1Gbit", "900Mbit"] },
            { between = ["s", "c"], rate = "1Gbit" },
        ]
    "#;

    fn problem(text: &str) -> String {
        Network::parse("n.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn network__written_and_read_back__is_the_same() {
        let network = Network::parse("star.toml", STAR).unwrap();
        let text = network.to_toml().unwrap();
        assert_eq!(Network::parse("again", &text).unwrap(), network, "{text}");
    }

    #[test]
    fn network__inconsistent_file__is_refused_with_the_reason() {
        let third = "[\"s\", \"c\"], rate = \"1Gbit\"";
        for (original, changed, message) in [
            (
                "name = \"star\"",
                "name = 3",
                "2: name: invalid type: integer `3`, expected a string",
            ),
            (
                "name = \"star\"",
                "name = \"two words\"",
                "2: name: `two words` is not a name; use 1 to 64 letters, digits, `-`, `_` or `.`, \
                 a letter or digit first",
            ),
            (
                "name = \"c\"",
                "name = \"a\"",
                "3: name: `a` is already the name of a host or switch; give each its own",
            ),
            (
                "latency",
                "latancy",
                "6: latancy: `latancy` is not known here; did you mean `latency`? \
                 (known: between, rate, rates, latency)",
            ),
            (
                "latency",
                "colour",
                "6: colour: `colour` is not known here (known: between, rate, rates, latency)",
            ),
            (
                "10us",
                "10",
                "6: latency: `10` is not a time; \
                 write a number with ns, us, ms or s, such as `50us`, or `0`",
            ),
            (
                third,
                "[\"s\", \"c\"], rate = true",
                "8: rate: invalid type: boolean `true`, \
                 expected a quantity with its unit, as a string",
            ),
            (
                third,
                "[\"s\", \"c\"], rate = 1000",
                "8: rate: `1000` is not a rate; write a positive number with \
                 bit, kbit, Mbit, Gbit or Tbit (a second), such as `1Gbit`",
            ),
            (
                third,
                "[\"s\", \"c\"]",
                "8: between: a link without a `rate`; set the rate of the link, such as `1Gbit`",
            ),
            (
                third,
                "[\"s\"], rate = \"1Gbit\"",
                "8: between: 1 ends: expected two, such as [\"n1\", \"s1\"]",
            ),
            (
                third,
                "[\"s\", \"cc\"], rate = \"1Gbit\"",
                "8: between: no host or switch `cc`; did you mean `c`?",
            ),
            (
                third,
                "[\"s\", \"zebra\"], rate = \"1Gbit\"",
                "8: between: no host or switch `zebra`; define it with [[host]] or [[switch]]",
            ),
            (
                third,
                "[\"s\", \"a\"], rate = \"1Gbit\"",
                "8: between: `a` already has a link; \
                 a host has one (the member links of a device count as one)",
            ),
            (
                "\"900Mbit\"]",
                "\"900Mbit\", \"1Gbit\"]",
                "7: rates: 3 rates: expected two, from the first end to the second and back",
            ),
            (
                "rates = ",
                "rate = \"1Gbit\", rates = ",
                "7: rates: both `rate` and `rates`; write one of them",
            ),
            (
                "            { between = [\"s\", \"c\"], rate = \"1Gbit\" },\n",
                "",
                "1: link: no path from `a` to `c`; connect them with links",
            ),
        ] {
            assert!(STAR.contains(original), "{original}");
            let text = STAR.replacen(original, changed, 1);
            assert_eq!(problem(&text), format!("n.toml:{message}"));
        }
    }

    #[test]
    fn network__missing_or_too_many_entries__is_refused_with_the_limits() {
        let switches: String = (0..=SWITCHES_MAX)
            .map(|number| format!("[[switch]]\nname = \"s{number}\"\n"))
            .collect();
        let host = "[[host]]\nname = \"a\"\n";
        for (text, message) in [
            (
                String::new(),
                "n.toml:1: file: missing field `name`".to_owned(),
            ),
            (
                "[[link]]\n".to_owned(),
                "n.toml:1: [[link]]: missing field `between`".to_owned(),
            ),
            (
                "name = \"n\"\n".to_owned(),
                format!(
                    "n.toml:1: host: 0 [[host]] entries: expected at most {HOSTS_MAX}, \
                     and at least one [[host]]"
                ),
            ),
            (
                format!("name = \"n\"\n{host}{switches}"),
                format!(
                    "n.toml:1: switch: {} [[switch]] entries: expected at most {SWITCHES_MAX}, \
                     and at least one [[host]]",
                    SWITCHES_MAX + 1
                ),
            ),
        ] {
            assert_eq!(problem(&text), message);
        }
    }

    #[test]
    fn network__switches_in_a_ring__is_refused() {
        let ring = r#"
            name = "ring"
            host = [{ name = "a" }]
            switch = [{ name = "s" }, { name = "t" }, { name = "u" }]
            link = [
                { between = ["a", "s"], rate = "1Gbit" },
                { between = ["s", "t"], rate = "1Gbit" },
                { between = ["t", "u"], rate = "1Gbit" },
                { between = ["u", "s"], rate = "1Gbit" },
            ]
        "#;
        assert!(problem(ring).contains("joining `u` and `s` closes a loop"));
    }
}
