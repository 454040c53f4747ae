//! What the demo needs, asked for before it begins: it takes a minute.

use crate::{BadInput, programs, run};
use std::path::Path;

/// Programs that it runs.
const PROGRAMS: [&str; 7] = [
    "unshare", "ip", "tc", "ethtool", "iperf3", "mpirun", "mpicc",
];

/// Names everything that is missing, and whether the report can be written to `report`.
pub fn check(report: &Path) -> Result<(), BadInput> {
    let mut missing = programs::missing(&PROGRAMS);
    missing.extend(run::planning_library().err());
    if kumi_tcp::installed().is_ok() {
        missing.push(
            "`kumi tcp` is up, and the demo compares the kernel's TCP with it: `kumi tcp down` first"
                .to_owned(),
        );
    }
    // Appending changes nothing of a report that is there, should the demo not come to its end.
    let is_new = !report.exists();
    let mut options = std::fs::File::options();
    match options.append(true).create(true).open(report) {
        Ok(_) if is_new => _ = std::fs::remove_file(report),
        Ok(_) => {}
        Err(error) => missing.push(format!(
            "{}: the report cannot be written: {error}; name another file with --report",
            report.display()
        )),
    }
    BadInput::of_all(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check__report_in_an_absent_folder__is_refused() {
        let problem = check(Path::new("/nowhere/demo.html")).expect_err("must be refused");
        assert!(problem.0.contains("/nowhere/demo.html: the report cannot"));
    }
}
