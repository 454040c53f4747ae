//! `kumi link up`: checks the arguments, starts the daemon, and waits until the device is usable.

use anyhow::bail;
use kumi_command::background::{self, Starting};
use kumi_command::errln;
use kumi_command::interrupt;
use kumi_device::config::{
    self, DatapathChoice, DeviceConfig, Offload, Preset, Queues, SealChoice,
};
use kumi_device::control::{self, Request};
use kumi_device::run_dir::RunDir;
use kumi_device::why;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest time from the start of the daemon until the device answers.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Waiting time after which `--wait-peers` first reports the missing peers, and the interval of
/// further reports.
const EXPLAIN_DELAY: Duration = Duration::from_secs(4);
const EXPLAIN_INTERVAL: Duration = Duration::from_secs(15);

/// Arguments of `kumi link up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the device, for example kumi0.
    device: String,
    /// Physical interfaces under it, for example eth1,eth2.
    #[arg(long, value_delimiter = ',', required = true)]
    over: Vec<String>,
    /// Address with prefix length; may be repeated.
    #[arg(long)]
    address: Vec<String>,
    /// Cluster key file, the same on every host.
    #[arg(long, default_value = config::KEY_FILE)]
    key: PathBuf,
    /// Authenticates packets without encrypting them.
    #[arg(long, conflicts_with = "plain")]
    authenticate_only: bool,
    /// Neither encrypts nor authenticates packets: anyone on the links can read and forge them.
    #[arg(long)]
    plain: bool,
    /// Protocol: Kumihimo's own, or RI2N/DRV (no security).
    #[arg(long, value_enum, default_value = "kumi")]
    preset: Preset,
    /// Peer behind routers: one address per link, in the order of --over.
    #[arg(long = "peer", value_name = "ADDR,ADDR…")]
    peers: Vec<String>,
    /// UDP port of the first queue.
    #[arg(long, default_value_t = config::PORT)]
    port: u16,
    /// MTU of the device; default: the largest that fits one datagram.
    #[arg(long)]
    mtu: Option<u32>,
    /// Spins instead of sleeping: lower latency, but each queue keeps one core busy.
    #[arg(long)]
    busy_poll: bool,
    /// Number of queues, each with a thread and a UDP port; auto: as many as the links need, at
    /// most half the cores.
    #[arg(long, value_name = "N|auto", default_value = "auto")]
    queues: Queues,
    /// Kernel features that must not be used.
    #[arg(long, value_enum, value_delimiter = ',')]
    without: Vec<Offload>,
    /// Carrier of the frames: the daemon (user), or programs in the kernel, on links that only the
    /// cluster uses (kernel, with --plain).
    #[arg(long, value_enum, default_value = "user")]
    datapath: DatapathChoice,
    /// Waits until this many peers are reached.
    #[arg(long, value_name = "N", default_value_t = 0)]
    wait_peers: usize,
    /// Longest wait of --wait-peers, in seconds; 0 waits without limit. The device stays up either
    /// way.
    #[arg(long, value_name = "S", default_value_t = 60)]
    wait_seconds: u64,
    /// Stays in the foreground.
    #[arg(long)]
    foreground: bool,
}

impl Args {
    fn config(&self) -> anyhow::Result<DeviceConfig> {
        let seal = match (self.plain, self.authenticate_only) {
            (true, _) => SealChoice::Plain,
            (_, true) => SealChoice::Authenticate,
            _ => SealChoice::Encrypt,
        };
        let peer = self
            .peers
            .iter()
            .map(|list| parse_peer(list))
            .collect::<Result<_, _>>()?;
        let config = DeviceConfig {
            name: self.device.clone(),
            over: self.over.clone(),
            address: self.address.clone(),
            key: self.key.clone(),
            seal,
            preset: self.preset,
            peer,
            port: self.port,
            mtu: self.mtu,
            busy_poll: self.busy_poll,
            queues: self.queues,
            without: self.without.clone(),
            datapath: self.datapath,
        };
        config.check()?;
        Ok(config)
    }
}

fn parse_peer(list: &str) -> Result<Vec<IpAddr>, kumi_command::BadInput> {
    list.split(',')
        .map(|text| {
            text.parse().map_err(|_| {
                kumi_command::BadInput(format!(
                    "invalid --peer `{text}`: expected an IP address, such as 10.1.0.2"
                ))
            })
        })
        .collect()
}

/// Runs `kumi link up`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.config()?;
    // A daemon in the background prints this warning itself, and its warnings are printed below.
    if args.foreground && (args.plain || args.preset == Preset::Ri2n) {
        let flag = if args.plain { "plain" } else { "preset ri2n" };
        errln!(
            "kumi: warning: --{flag}: anyone on {} can read and forge the traffic of {}",
            args.over.join(", "),
            args.device
        );
    }
    if args.foreground {
        super::service::end_on_signals(vec![config.name.clone()])?;
        super::run_device(config)?;
        return Ok(ExitCode::SUCCESS);
    }
    let dir = RunDir::make(&config.name)?;
    if control::ask(&dir.socket(), &Request::Show).is_ok() {
        let name = &config.name;
        return Err(kumi_command::BadInput(format!(
            "{name} is already up; run `kumi link down {name}` first, or `kumi link add {name} LINK`"
        ))
        .into());
    }
    interrupt::watch()?;
    let mut daemon = background::start(&dir.log())?;
    let outcome = wait(&args, &mut daemon, &dir);
    if interrupt::noted().is_some() && outcome.is_err() {
        daemon.undo()?;
        interrupt::undone(|| format!("{}: the device and its addresses", config.name));
    }
    // Print the daemon's warnings. Otherwise they would only be in its log.
    let log = daemon.said();
    let warnings = log.lines().filter(|line| line.contains("warning: "));
    if outcome.is_ok() {
        warnings.for_each(|line| errln!("{line}"));
    } else {
        dir.clear_unless_used();
    }
    outcome
}

/// Waits until the device answers and has reached the requested number of peers.
fn wait(args: &Args, daemon: &mut Starting, dir: &RunDir) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let mut report_after = EXPLAIN_DELAY;
    loop {
        interrupt::check()?;
        if let Some((status, output)) = daemon.ended()? {
            if status.code() == Some(i32::from(kumi_command::EXIT_BAD_INPUT)) {
                return Err(kumi_command::BadInput(output).into());
            }
            bail!("{output}");
        }
        let elapsed = start.elapsed();
        match control::ask(&dir.socket(), &Request::Show) {
            Ok(state) if why::peers_up(&state) >= args.wait_peers => return Ok(ExitCode::SUCCESS),
            Ok(state) => {
                let is_expired = args.wait_seconds > 0 && elapsed.as_secs() >= args.wait_seconds;
                let message = || peer_report(&state, args.wait_peers);
                if is_expired {
                    bail!("{}; {} stays up and keeps looking", message(), args.device);
                }
                if elapsed > report_after {
                    errln!("kumi: {}", message());
                    report_after += EXPLAIN_INTERVAL;
                }
            }
            Err(_) if elapsed > START_TIMEOUT => bail!(
                "{} does not answer; see {}",
                args.device,
                dir.log().display()
            ),
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the number of peers reached, and the reasons why others are missing.
fn peer_report(state: &serde_json::Value, requested: usize) -> String {
    let reasons = why::reasons(state);
    let (up, colon) = (
        why::peers_up(state),
        if reasons.is_empty() { "" } else { ":" },
    );
    let lines = reasons.iter().map(|reason| format!("\n  {reason}"));
    format!(
        "{up} of {requested} peers are reached{colon}{}",
        lines.collect::<String>()
    )
}
