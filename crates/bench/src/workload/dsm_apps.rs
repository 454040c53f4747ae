//! Applications on shared memory (`examples/dsm`), and the same by hand with MPI.

use super::{Context, Measurement, mpi, ranks};
use crate::sample::Figures;
use crate::variant::Variant;
use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// Length of a page, in bytes.
const PAGE_BYTES: f64 = 4096.0;

/// Header of the examples, which precedes each of them.
const EXAMPLE: &str = include_str!("../../../../examples/dsm/example.h");

/// Name of a program of `examples/dsm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum App {
    /// LU decomposition; a side.
    Lu,
    /// The stencil of the Himeno benchmark; size and rounds.
    Himeno,
    /// Successive over-relaxation; side and rounds.
    Sor,
    /// The travelling salesman; a number of cities.
    Tsp,
}

impl App {
    /// Returns the program on shared memory.
    fn shared(self) -> mpi::Program {
        let (name, source) = match self {
            Self::Lu => ("lu", include_str!("../../../../examples/dsm/lu.c")),
            Self::Himeno => ("himeno", include_str!("../../../../examples/dsm/himeno.c")),
            Self::Sor => ("sor", include_str!("../../../../examples/dsm/sor.c")),
            Self::Tsp => ("tsp", include_str!("../../../../examples/dsm/tsp.c")),
        };
        mpi::Program { name, source }
    }

    /// Returns the program with MPI, if there is one.
    fn by_hand(self) -> Option<mpi::Program> {
        let (name, source) = match self {
            Self::Lu => ("lu", include_str!("../../../../bench/workloads/mpi_lu.c")),
            Self::Himeno => (
                "himeno",
                include_str!("../../../../bench/workloads/mpi_himeno.c"),
            ),
            Self::Sor | Self::Tsp => return None,
        };
        Some(mpi::Program { name, source })
    }
}

/// Runs an application on the first `nodes` hosts.
pub fn measure(
    context: &Context<'_>,
    app: App,
    nodes: usize,
    args: &[String],
) -> anyhow::Result<Vec<Measurement>> {
    let running = context.running;
    let hosts = &running.hosts.names()[..nodes];
    let figures = if running.variant == Variant::Dsm {
        let folder = running.programs_folder();
        let program = app.shared();
        let source = format!(
            "{EXAMPLE}\n{}",
            program.source.replace("#include \"example.h\"", "")
        );
        let compiler = compiler(Path::new(running.hosts.kumi()));
        let file = format!("dsm_{}", program.name);
        let remedy = "install a C compiler; `make build` makes libkumi.so and copies its headers";
        mpi::compile(running, (&file, &source), hosts, &compiler, remedy)?;
        let path = format!("{folder}/{file}");
        let mut words = vec![path.as_str()];
        words.extend(args.iter().map(String::as_str));
        let variables = ["EXAMPLE_JSON=1".to_owned()];
        let text = ranks::run(context, nodes, &variables, &words, false)?;
        totals(&text)?
    } else {
        let program = app.by_hand();
        let program = program.with_context(|| format!("{app:?} has no version for MPI"))?;
        let argv = mpi::mpirun_on(running, &program, hosts, args)?;
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let text = running.hosts.run(running.client(), &argv)?;
        let line = text.lines().find(|line| line.starts_with('{'));
        let line: Value = serde_json::from_str(line.with_context(|| text.clone())?)?;
        anyhow::ensure!(line["is_right"] == true, "the result is wrong: {text}");
        let time_s = line["time_s"].as_f64().unwrap_or(f64::INFINITY);
        Figures::from([("total_s".to_owned(), time_s)])
    };
    Ok(vec![Measurement {
        figures,
        ..Measurement::default()
    }])
}

/// Returns the compiler with the options for a program of libkumi, which is beside the command or
/// installed with it.
fn compiler(kumi: &Path) -> String {
    let folder = kumi.parent().unwrap_or(Path::new("."));
    let built = folder.join("include/kumi");
    let (headers, libraries) = match built.exists() {
        true => (built, folder.to_owned()),
        false => (folder.join("../include/kumi"), folder.join("../lib")),
    };
    let (headers, libraries) = (headers.display(), libraries.display());
    format!("cc -I {headers} -L {libraries} -Wl,-rpath,{libraries} -Wl,--no-as-needed -lkumi -lm")
}

/// Returns the totals of all nodes, and the longest time.
fn totals(text: &str) -> anyhow::Result<Figures> {
    anyhow::ensure!(text.contains(": the sequential result"), "{text}");
    let mut figures = Figures::new();
    let mut nodes = 0.0;
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let number = |name: &str| line[name].as_f64().unwrap_or_default();
        let time_s = figures.entry("total_s".to_owned()).or_default();
        *time_s = time_s.max(number("time_s"));
        for name in [
            "fetched_pages",
            "diffed_pages",
            "diff_bytes",
            "pushed_bytes",
            "messages",
            "message_bytes",
        ] {
            *figures.entry(name.to_owned()).or_default() += number(name);
        }
        *figures.entry("faults".to_owned()).or_default() += number("misses");
        nodes += 1.0;
    }
    anyhow::ensure!(nodes > 0.0, "no node printed its totals: {text}");
    let number = |name: &str| figures[name];
    let pages = number("fetched_pages") * PAGE_BYTES;
    let moved = pages + number("diff_bytes") + number("pushed_bytes");
    let derived = [
        ("moved_bytes", moved + number("message_bytes")),
        ("messages_per_node", number("messages") / nodes),
        ("pages_per_node", number("fetched_pages") / nodes),
    ];
    let pages_vs_diffs = number("diffed_pages") * PAGE_BYTES / number("diff_bytes").max(1.0);
    let has_diffs = number("diff_bytes") > 0.0;
    figures.extend(derived.map(|(name, value)| (name.to_owned(), value)));
    if has_diffs {
        figures.insert("pages_vs_diffs_ratio".to_owned(), pages_vs_diffs);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals__of_two_nodes__are_summed_and_the_longer_time_counts() {
        let text = "{\"node\": 0, \"time_s\": 1.5, \"misses\": 3, \"fetched_pages\": 10, \
                    \"diffed_pages\": 2, \"diff_bytes\": 100, \"messages\": 8, \"message_bytes\": 400}\n\
                    {\"node\": 1, \"time_s\": 2.0, \"misses\": 1, \"messages\": 4}\n\
                    1.5 s on 2 nodes\nLU decomposition: the sequential result\n";
        let figures = totals(text).unwrap();
        let expected = [
            ("total_s", 2.0),
            ("faults", 4.0),
            ("messages_per_node", 6.0),
            ("pages_per_node", 5.0),
            ("moved_bytes", 41_460.0),
            ("pages_vs_diffs_ratio", 81.92),
        ];
        for (name, value) in expected {
            assert!(
                (figures[name] - value).abs() < 1e-9,
                "{name}: {}",
                figures[name]
            );
        }
        assert!(totals("LU decomposition: WRONG").is_err());
    }
}
