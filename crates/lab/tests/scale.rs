//! More nodes, in small: two senders and two receivers, and four megabytes, by the zmove that lies beside the lab's
//! program.

use std::path::Path;
use std::process::{Command, Output};

const LAB: &str = env!("CARGO_BIN_EXE_zmove-lab");

#[test]
fn two_nodes_are_set_against_one_and_drawn() {
    if let Err(reason) = can_run() {
        let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
        assert!(!required, "ZMOVE_REQUIRE_LAB=1, but {reason}");
        return eprintln!("skipped: {reason}");
    }
    let place = tempfile::tempdir().unwrap();
    let drawing = place.path().join("scale.svg");
    let mut command = Command::new(LAB);
    command.args(["scale", "--nodes", "2", "--data", "large:4x1MiB", "--rate", "20Mbit"]);
    command.args(["--methods", "one-sender,shares", "--json", "--svg"]).arg(&drawing).arg("--data-dir");
    let output = command.arg(place.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    let runs: Vec<_> = json.as_array().unwrap().iter().collect();
    let methods: Vec<_> = runs.iter().map(|run| (&run["method"], &run["nodes"], &run["verdict"])).collect();
    let expected = [("single", 1), ("one-sender", 2), ("shares", 2)];
    for (found, (method, nodes)) in methods.iter().zip(expected) {
        assert_eq!(*found, (&method.into(), &nodes.into(), &"right".into()), "{said}");
    }
    for run in runs {
        let number = |name: &str| run[name].as_f64().unwrap_or_else(|| panic!("{name}: {run}"));
        assert!(number("efficiency") > 0.0 && number("first_byte_seconds") < number("seconds"), "{run}");
        assert!(number("wire_bytes") > number("bytes"), "what the links carry is counted: {run}");
        // one twentieth for what a bucket has at the start
        let links = 20e6 * 1.05 * number("nodes");
        assert!(number("bits_per_second") < links, "no link carries more than it can: {run}");
    }
    assert!(std::fs::read_to_string(drawing).unwrap().contains("shares by hand"));
}

/// Whether this machine can make hosts whose links have a rate.
fn can_run() -> Result<(), String> {
    let zmove = Path::new(LAB).with_file_name("zmove");
    if !zmove.is_file() {
        return Err(format!("{} is missing; `cargo test --workspace` makes it", zmove.display()));
    }
    let mut hosts = Command::new(LAB);
    hosts.args(["hosts", "--rtt", "0", "--rate", "1Gbit", "--emulator", "tbf", "--", "true"]);
    let Output { status, stderr, .. } =
        hosts.output().map_err(|error| format!("the lab does not start: {error}"))?;
    let said = String::from_utf8_lossy(&stderr);
    if status.success() { Ok(()) } else { Err(format!("two hosts cannot be made: {}", said.trim())) }
}
