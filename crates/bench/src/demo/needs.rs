//! Requirements of the demo. They are checked before it begins, because it takes a minute.

use kumi_command::{BadInput, library, programs};
use std::path::Path;

/// Programs that the demo runs.
const PROGRAMS: [&str; 7] = [
    "unshare", "ip", "tc", "ethtool", "iperf3", "mpirun", "mpicc",
];

/// Returns an error with everything that is missing, and with the reason if the report cannot be
/// written to `report`.
pub fn check(report: &Path) -> Result<(), BadInput> {
    let mut missing = programs::missing(&PROGRAMS);
    missing.extend(library::planning_library().err());
    if kumi_tcp::installed().is_ok() {
        missing.push(
            "`kumi tcp` is up, and the demo compares the kernel's TCP with it; run `kumi tcp down` first"
                .to_owned(),
        );
    }
    // Appending leaves an existing report unchanged if the demo does not finish.
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
        let expected = "/nowhere/demo.html: the report cannot be written: No such file or \
                        directory (os error 2); name another file with --report";
        assert!(problem.0.contains(expected), "{problem}");
    }
}
