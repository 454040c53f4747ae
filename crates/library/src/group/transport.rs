//! Transport of the chunks of collectives.

/// Transport of chunks. Control messages and point-to-point messages use TCP in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// A TCP connection in each direction of a pair.
    #[default]
    Tcp,
    /// Wind, on one UDP socket per rank: puts where the receiver's kernel executes them, and
    /// messages elsewhere.
    Wind,
    /// As Wind, with puts everywhere.
    WindPuts,
}

/// Variable with the transport of a job's groups.
const VARIABLE: &str = "KUMI_TRANSPORT";

impl Transport {
    /// Reads the transport from the environment; TCP without the variable.
    ///
    /// # Errors
    /// The variable names no transport.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        match variable(VARIABLE).as_deref() {
            None | Some("tcp") => Ok(Self::Tcp),
            Some("wind") => Ok(Self::Wind),
            Some("wind-puts") => Ok(Self::WindPuts),
            Some(other) => Err(format!(
                "invalid {VARIABLE} `{other}`: expected tcp, wind or wind-puts"
            )),
        }
    }

    /// Returns the setting of the variable that a rank needs to join, for messages.
    pub fn setting(self) -> String {
        let name = match self {
            Self::Tcp => "tcp",
            Self::Wind | Self::WindPuts => "wind",
        };
        format!("{VARIABLE}={name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport__of_the_environment__is_known_or_refused_with_what_is_accepted() {
        let read = |value: Option<&str>| {
            Transport::from_environment(|name| {
                assert_eq!(name, "KUMI_TRANSPORT");
                value.map(str::to_owned)
            })
        };
        assert_eq!(read(None), Ok(Transport::Tcp));
        assert_eq!(read(Some("tcp")), Ok(Transport::Tcp));
        assert_eq!(read(Some("wind")), Ok(Transport::Wind));
        assert_eq!(read(Some("wind-puts")), Ok(Transport::WindPuts));
        assert_eq!(
            read(Some("rdma")),
            Err("invalid KUMI_TRANSPORT `rdma`: expected tcp, wind or wind-puts".to_owned())
        );
    }
}
