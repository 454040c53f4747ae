//! Report of a receiver to the sender: the datagrams received on each link. It is sent every few
//! milliseconds under load.
//!
//! ```text
//! | report sequence (32) | session (16) | links (8) | missing runs (8) | clock in µs (32) |
//! per link:
//! | link (8) | highest link sequence (32) | packets received (32) | held for µs (32) |
//! per missing run:
//! | link (8) | first link sequence (32) | count (16) |
//! ```
//!
//! The counts are cumulative, so the loss of a report costs only time. For the same reason, several
//! reports repeat a missing run. A report is sent on every path whose link has carrier, and the
//! first copy to arrive is used.

use super::{LINKS_MAX, Malformed, Reader};

/// Most missing runs in a report. 24 runs of 7 bytes keep the report below 512 bytes. A link that
/// loses more runs within a report interval should be quarantined rather than repaired.
pub const REPORT_MISSING_MAX: usize = 24;

/// Reception on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkReport {
    /// Data sender's number for the link.
    pub link: u8,
    /// Highest decided link sequence number (low 32 bits). Every packet up to it was received or is
    /// named as missing.
    pub highest: u32,
    /// Packets received on the link under this session, modulo 2³².
    pub received: u32,
    /// Time between the arrival of packet `highest` and this report, in µs, saturating.
    pub held_us: u32,
}

/// A run of link sequence numbers that later ones have overtaken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Data sender's number for the link.
    pub link: u8,
    /// First missing link sequence number (low 32 bits).
    pub first: u32,
    /// Number of missing packets from `first` on, at least 1.
    pub count: u16,
}

/// A receiver's report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of the report, which identifies copies on other links and late reports.
    pub seq: u32,
    /// Number of the reported session, as its packets carry it.
    pub session: u16,
    /// Receiver's clock at the report, in µs, modulo 2³². `clock_us` − `held_us` is the arrival
    /// time of the packet. The sender thereby sees how the forward delay varies, without the delay
    /// of the return path.
    pub clock_us: u32,
    /// One entry per link on which packets are decided.
    pub links: Vec<LinkReport>,
    /// Missing runs, oldest first on each link.
    pub missing: Vec<Missing>,
}

impl Report {
    /// Appends the body to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        debug_assert!(self.links.len() <= LINKS_MAX && self.missing.len() <= REPORT_MISSING_MAX);
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.session.to_be_bytes());
        out.push(self.links.len() as u8);
        out.push(self.missing.len() as u8);
        out.extend_from_slice(&self.clock_us.to_be_bytes());
        for link in &self.links {
            out.push(link.link);
            out.extend_from_slice(&link.highest.to_be_bytes());
            out.extend_from_slice(&link.received.to_be_bytes());
            out.extend_from_slice(&link.held_us.to_be_bytes());
        }
        for run in &self.missing {
            out.push(run.link);
            out.extend_from_slice(&run.first.to_be_bytes());
            out.extend_from_slice(&run.count.to_be_bytes());
        }
    }

    /// Parses the body into `self` and reuses its vectors.
    pub fn parse(&mut self, body: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(body);
        self.links.clear();
        self.missing.clear();
        self.seq = reader.u32()?;
        self.session = reader.u16()?;
        let (links, missing) = (reader.u8()?, reader.u8()?);
        self.clock_us = reader.u32()?;
        if usize::from(links) > LINKS_MAX {
            return Err(Malformed::Field("links"));
        }
        if usize::from(missing) > REPORT_MISSING_MAX {
            return Err(Malformed::Field("missing runs"));
        }
        for _ in 0..links {
            let link = LinkReport {
                link: reader.u8()?,
                highest: reader.u32()?,
                received: reader.u32()?,
                held_us: reader.u32()?,
            };
            if usize::from(link.link) >= LINKS_MAX {
                return Err(Malformed::Field("link"));
            }
            self.links.push(link);
        }
        for _ in 0..missing {
            let run = Missing {
                link: reader.u8()?,
                first: reader.u32()?,
                count: reader.u16()?,
            };
            if usize::from(run.link) >= LINKS_MAX || run.count == 0 {
                return Err(Malformed::Field("missing run"));
            }
            self.missing.push(run);
        }
        if reader.remaining().is_empty() {
            Ok(())
        } else {
            Err(Malformed::Field("length"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report__emitted_and_parsed__is_unchanged() {
        let report = Report {
            seq: 9,
            session: 5,
            clock_us: 900,
            links: vec![LinkReport {
                link: 1,
                highest: 77,
                received: 70,
                held_us: 12,
            }],
            missing: vec![Missing {
                link: 1,
                first: 70,
                count: 2,
            }],
        };
        let mut body = Vec::new();
        report.emit(&mut body);
        assert_eq!(body.len(), 12 + 13 + 7);
        let mut parsed = Report::default();
        parsed.parse(&body).unwrap();
        assert_eq!(parsed, report);
        body.push(0);
        assert_eq!(parsed.parse(&body), Err(Malformed::Field("length")));
        assert_eq!(parsed.parse(&body[..20]), Err(Malformed::Short));
    }

    #[test]
    fn report__golden_bytes__are_stable() {
        let report = Report {
            seq: 0x0102_0304,
            session: 0xbeef,
            clock_us: 0x1122_3344,
            links: vec![LinkReport {
                link: 3,
                highest: 0xffff_fffe,
                received: 0x0a0b_0c0d,
                held_us: 250,
            }],
            missing: vec![Missing {
                link: 3,
                first: 0xffff_fff0,
                count: 5,
            }],
        };
        let golden = [
            1, 2, 3, 4, 0xbe, 0xef, 1, 1, 0x11, 0x22, 0x33, 0x44, // fixed part
            3, 0xff, 0xff, 0xff, 0xfe, 10, 11, 12, 13, 0, 0, 0, 250, // link entry
            3, 0xff, 0xff, 0xff, 0xf0, 0, 5, // missing run
        ];
        let mut body = Vec::new();
        report.emit(&mut body);
        assert_eq!(body, golden);
    }
}
