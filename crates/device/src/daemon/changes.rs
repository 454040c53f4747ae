//! Checks of a change to the links of a running device. Each queue checks a change before the first
//! queue makes it, so a check changes nothing.

use anyhow::bail;
use kumi_multilink::wire::LINKS_MAX;

/// A device, as the checks see it.
#[derive(Debug)]
pub(super) struct Links<'a> {
    /// Name of the device.
    pub(super) device: &'a str,
    /// Names of its links.
    pub(super) names: Vec<&'a str>,
}

impl Links<'_> {
    /// Checks that `name` may become a link.
    pub(super) fn check_new(&self, name: &str) -> anyhow::Result<()> {
        if self.names.contains(&name) {
            bail!("`{name}` is already a link of {}", self.device);
        }
        if name == self.device {
            bail!("`{name}` cannot be under itself");
        }
        if self.names.len() >= LINKS_MAX {
            bail!(
                "`{name}` cannot be added: {} has {LINKS_MAX} links, the limit",
                self.device
            );
        }
        Ok(())
    }

    /// Returns the position of link `name`.
    fn find(&self, name: &str) -> anyhow::Result<usize> {
        let Some(index) = self.names.iter().position(|link| *link == name) else {
            bail!(
                "`{name}` is not a link of {}; its links are {}",
                self.device,
                self.names.join(", ")
            );
        };
        Ok(index)
    }

    /// Returns the position of link `name`, if it may get this rate in bits per second; `None`
    /// stands for a measured rate.
    pub(super) fn find_for_rate(&self, name: &str, rate_bps: Option<u64>) -> anyhow::Result<usize> {
        let index = self.find(name)?;
        if rate_bps == Some(0) {
            bail!("invalid rate of `{name}`, 0 bit/s: expected 1 bit/s or more, or auto");
        }
        Ok(index)
    }

    /// Returns the position of link `name`, if it may be removed.
    pub(super) fn find_removable(&self, name: &str) -> anyhow::Result<usize> {
        let index = self.find(name)?;
        if self.names.len() == 1 {
            bail!(
                "`{name}` is the last link; run `kumi link down {}` to remove the device",
                self.device
            );
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links__invalid_change__is_refused_with_what_is_accepted() {
        let links = |names: &[&'static str]| Links {
            device: "kumi0",
            names: names.to_vec(),
        };
        let two = links(&["eth1", "eth2"]);
        let full = links(&["eth1"; LINKS_MAX]);
        let error_of = |outcome: anyhow::Result<()>| outcome.unwrap_err().to_string();
        for (outcome, message) in [
            (
                two.check_new("eth1"),
                "`eth1` is already a link of kumi0".to_owned(),
            ),
            (
                two.check_new("kumi0"),
                "`kumi0` cannot be under itself".to_owned(),
            ),
            (
                full.check_new("eth3"),
                format!("`eth3` cannot be added: kumi0 has {LINKS_MAX} links, the limit"),
            ),
            (
                two.find_for_rate("eth7", None).map(drop),
                "`eth7` is not a link of kumi0; its links are eth1, eth2".to_owned(),
            ),
            (
                two.find_for_rate("eth1", Some(0)).map(drop),
                "invalid rate of `eth1`, 0 bit/s: expected 1 bit/s or more, or auto".to_owned(),
            ),
            (
                two.find_removable("eth7").map(drop),
                "`eth7` is not a link of kumi0; its links are eth1, eth2".to_owned(),
            ),
            (
                links(&["eth1"]).find_removable("eth1").map(drop),
                "`eth1` is the last link; run `kumi link down kumi0` to remove the device"
                    .to_owned(),
            ),
        ] {
            assert_eq!(error_of(outcome), message);
        }
        two.check_new("eth3").unwrap();
        assert_eq!(two.find_for_rate("eth2", Some(1)).unwrap(), 1);
        assert_eq!(two.find_removable("eth1").unwrap(), 0);
    }
}
