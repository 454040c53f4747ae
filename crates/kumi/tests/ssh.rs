//! Tests `kumi bench --hosts` over a real sshd on each host of a lab.

use kumi_lab::Cluster;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const KUMI: &str = env!("CARGO_BIN_EXE_kumi");

/// Two links for the device, and a third link that no plan uses, over which the hosts are reached.
const TOPOLOGY: &str = r#"
name = "t"
[[host]]
name = "h1"
[[host]]
name = "h2"
[[link]]
between = ["h1:eth1", "h2:eth1"]
rate = "500Mbit"
[[link]]
between = ["h1:eth2", "h2:eth2"]
rate = "500Mbit"
[[link]]
between = ["h1:eth3", "h2:eth3"]
"#;

/// Bench plan that uses all functions of a back end: a stream with a cut, and a load that must be
/// ended.
const PLAN: &str = r#"
name = "over-ssh"
shows = "the same plan on machines reached by ssh"
topology = "two-links"
variants = ["single", "kumi"]
[[case]]
name = "cut"
variants = ["kumi"]
workload = { kind = "flow", seconds = 4 }
event = [
    { at_s = 1.5, name = "cut", link = "h2:eth2", change = { carrier = false } },
    { at_s = 2.5, name = "heal", link = "h2:eth2", change = { carrier = true } },
]
[[case]]
name = "loaded"
workload = { kind = "pingpong", sizes_bytes = [64], under_load = true }
"#;

/// The lab, and a folder with the hosts' keys and the client's configuration.
struct Machines {
    cluster: Cluster,
    folder: PathBuf,
}

impl Machines {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("ssh-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("plans")).unwrap();
        let machines = Self {
            cluster: kumi_testlab::up("ssh", TOPOLOGY),
            folder,
        };
        machines.serve();
        machines
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.join(name), text).unwrap();
    }

    fn run(&self, host: &str, argv: &[&str]) -> Output {
        let mut command = self.cluster.command(host, argv[0]).unwrap();
        command.args(&argv[1..]).output().unwrap()
    }

    /// Starts a private sshd in each host. Returns when both accept a login.
    fn serve(&self) {
        for key in ["host_key", "client_key"] {
            let file = self.file(key);
            let status = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f", &file])
                .status();
            assert!(status.unwrap().success());
        }
        // The path of `kumi` is the only setting that a user has to install.
        let path = Path::new(KUMI).parent().unwrap().display().to_string();
        self.write(
            "sshd.conf",
            &format!(
                "Port 2222\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
                 UsePAM no\nPermitRootLogin yes\nSetEnv PATH={path}:/usr/sbin:/usr/bin:/sbin:/bin\n",
                self.file("host_key"),
                self.file("client_key.pub"),
            ),
        );
        let mut config = String::new();
        for (alias, host) in [("first", "h1"), ("second", "h2")] {
            let addresses = self.run(host, &["ip", "-j", "-4", "address", "show", "dev", "eth3"]);
            let addresses: Value = serde_json::from_slice(&addresses.stdout).unwrap();
            let address = addresses[0]["addr_info"][0]["local"].as_str().unwrap();
            config += &format!("Host {alias}\n  HostName {address}\n");
            let start = "mkdir -p /run/sshd && exec /usr/sbin/sshd -f \"$1\"";
            let output = self.run(host, &["sh", "-c", start, "sh", &self.file("sshd.conf")]);
            assert!(output.status.success(), "{host}: {output:?}");
        }
        config += &format!(
            "Host *\n  Port 2222\n  User root\n  IdentityFile {}\n  IdentitiesOnly yes\n  \
             StrictHostKeyChecking accept-new\n  UserKnownHostsFile {}\n",
            self.file("client_key"),
            self.file("known_hosts"),
        );
        self.write("ssh.conf", &config);
        for alias in ["first", "second"] {
            let deadline = Instant::now() + Duration::from_secs(10);
            let ssh = ["ssh", "-F", &self.file("ssh.conf"), alias, "true"];
            while !self.run("h1", &ssh).status.success() {
                assert!(Instant::now() < deadline, "{alias} is not reached");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
#[ignore = "needs root, netns, tun, sshd, iperf3"]
fn bench__hosts_over_ssh__runs_a_plan_and_leaves_nothing() {
    let machines = Machines::new();
    machines.write("plans/over-ssh.toml", PLAN);
    let (folder, config) = (machines.file(""), machines.file("ssh.conf"));
    let output = machines.run(
        "h1",
        &[
            KUMI,
            "bench",
            "--folder",
            &folder,
            "--hosts",
            "first,second",
            "--over",
            "eth1,eth2",
            "--ssh-config",
            &config,
            "--quick",
            "-j",
            "over-ssh",
        ],
    );
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaint}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["failed"], serde_json::json!([]), "{complaint}");
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{rows:#?}");
    assert!(rows[0]["goodput_bps"].as_f64().unwrap() > 0.0);
    assert!(rows[0]["state_changes"].as_f64().unwrap() > 0.0);
    for host in ["h1", "h2"] {
        let links = machines.run(host, &["ip", "-br", "link"]).stdout;
        assert!(!String::from_utf8_lossy(&links).contains("kumi0"));
        // Port of the load, which runs until it is ended.
        let load = machines.run(host, &["ss", "-Htan", "sport = 5202 or dport = 5202"]);
        let load = String::from_utf8_lossy(&load.stdout).into_owned();
        assert!(
            !load.contains("ESTAB") && !load.contains("LISTEN"),
            "{load}"
        );
    }
}
