use super::*;
use clap::Parser;
use std::net::TcpListener;

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn parse(line: &str) -> Result<Args, clap::Error> {
    let words = std::iter::once("workload").chain(line.split_whitespace());
    Command::try_parse_from(words).map(|command| command.args)
}

#[test]
fn source__nothing_listens__names_the_address_and_the_other_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for (end, arguments, other) in [
        ("flow-source", "0", "flow-sink"),
        ("burst-source", "--pauses-ms 1 8", "burst-sink"),
        ("pattern-source", "one-way streaming 1 0", "pattern-sink"),
        ("ping", "1 1", "pong"),
    ] {
        let args = parse(&format!("{end} 127.0.0.1 {port} {arguments}")).unwrap();
        let expected = format!(
            "cannot connect to 127.0.0.1:{port}; start `kumi workload {other} {port}` there \
             first"
        );
        assert_eq!(run(args).unwrap_err().to_string(), expected, "{end}");
    }
}

#[test]
fn flow_source__unknown_congestion_control__is_named_with_those_of_the_kernel() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let line = format!("flow-source 127.0.0.1 {port} 0 --congestion-control kumi-none");
    let error = run(parse(&line).unwrap()).unwrap_err().to_string();
    let expected = "cannot use congestion control `kumi-none`; available: ";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn duration__not_a_time__is_refused_with_the_accepted_ones() {
    for line in [
        "flow-source 127.0.0.1 1 SECONDS",
        "pattern-source 127.0.0.1 1 one-way streaming 1 SECONDS",
        "datagram-bursts 127.0.0.1 1 1 SECONDS",
        "integrity-source 127.0.0.1 1 SECONDS 1",
        "forge 127.0.0.1:1 SECONDS 1 1",
        "link-bytes SECONDS lo",
    ] {
        parse(&line.replace("SECONDS", "1.5")).unwrap_or_else(|error| panic!("{error}"));
        for wrong in ["inf", "nan", "1e300", "long"] {
            let error = parse(&line.replace("SECONDS", wrong)).err().unwrap();
            let expected =
                format!("invalid value '{wrong}' for '<SECONDS>': expected 0 to 86400 seconds");
            assert!(error.to_string().contains(&expected), "{line}: {error}");
        }
    }
}
