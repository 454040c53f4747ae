//! The list of hosts of a job.

/// A host and the number of its PEs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub pes: usize,
}

/// Reads a list such as `a,b:4`, and fills the hosts with `count` PEs.
pub fn parse(list: &str, count: Option<usize>) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for entry in list.split(',') {
        let invalid = || format!("--host `{entry}`: expected NAME or NAME:COUNT");
        let (name, pes) = match entry.rsplit_once(':') {
            Some((name, pes)) => (name, pes.parse().map_err(|_| invalid())?),
            None => (entry, 1),
        };
        let is_name =
            !name.is_empty() && !name.starts_with('-') && !name.contains(char::is_whitespace);
        if !is_name || pes == 0 {
            return Err(invalid());
        }
        hosts.push(Host {
            name: name.to_owned(),
            pes,
        });
    }
    let places: usize = hosts.iter().map(|host| host.pes).sum();
    let mut left = count.unwrap_or(places);
    if left == 0 || left > places {
        return Err(format!(
            "-n {left}: expected 1 to {places}, as many as `--host {list}` takes"
        ));
    }
    for host in &mut hosts {
        host.pes = host.pes.min(left);
        left -= host.pes;
    }
    hosts.retain(|host| host.pes > 0);
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, pes: usize) -> Host {
        Host {
            name: name.into(),
            pes,
        }
    }

    #[test]
    fn hosts__with_and_without_counts__are_filled_in_order() {
        assert_eq!(parse("a,b:4", None), Ok(vec![host("a", 1), host("b", 4)]));
        assert_eq!(
            parse("a:2,b:4", Some(3)),
            Ok(vec![host("a", 2), host("b", 1)])
        );
        assert_eq!(parse("a:2,b:4", Some(2)), Ok(vec![host("a", 2)]));
    }

    #[test]
    fn hosts__malformed_or_too_few__are_named() {
        for list in ["", "a,,b", "a:0", "a:x", "-o:1", "a b"] {
            assert!(
                parse(list, None).unwrap_err().contains("NAME:COUNT"),
                "{list}"
            );
        }
        let error = parse("a,b", Some(3)).unwrap_err();
        assert_eq!(
            error,
            "-n 3: expected 1 to 2, as many as `--host a,b` takes"
        );
    }
}
