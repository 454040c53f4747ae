//! Test with an MPI application of the distribution, which was not written for this project.

use super::{Control, KUMI};
use std::fs;

/// Input of the HPC Challenge, one value per line: 200 equations in blocks of 40 on 2 x 2
/// processes.
const INPUT: [&str; 36] = [
    "HPC Challenge",
    "small",
    "HPL.out",
    "8",
    "1",
    "200",
    "1",
    "40",
    "0",
    "1",
    "2",
    "2",
    "16.0",
    "1",
    "2",
    "1",
    "4",
    "1",
    "2",
    "1",
    "1",
    "1",
    "1",
    "1",
    "1",
    "2",
    "64",
    "0",
    "0",
    "1",
    "8",
    "-",
    "0",
    "0",
    "0",
    "0",
];

#[test]
#[ignore = "needs root, netns, bpf, mpi, hpcc"]
fn hpcc__under_kumi_run__succeeds_without_errors() {
    let _control = Control::up();
    let cluster = kumi_testlab::up("hpcc", &kumi_testlab::star(4, 1, "1Gbit"));
    let folder = std::env::temp_dir().join(format!("kumi-hpcc-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("hpccinf.txt"), INPUT.join("\n") + "\n").unwrap();
    let mut mpirun = cluster.command("h1", "mpirun").unwrap();
    let mpirun = mpirun
        .args(["--allow-run-as-root", "--host", "h1,h2,h3,h4", "-np", "4"])
        .args(["--mca", "plm_rsh_agent", &format!("{KUMI} lab rsh")])
        .args([
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            "eth1",
        ])
        .args(["--mca", "oob_tcp_if_include", "eth1"])
        .args(["--mca", "mpi_yield_when_idle", "1"])
        .args([KUMI, "run", "--require", "--", "hpcc"])
        .env("KUMI_LAB", cluster.name())
        .current_dir(&folder);
    let output = mpirun.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let result = fs::read_to_string(folder.join("hpccoutf.txt")).unwrap_or_default();
    fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert!(
        result.contains("Success=1") && !result.contains("FAILED"),
        "{stderr}{result}"
    );
}
