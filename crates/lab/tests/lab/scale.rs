//! Several nodes on a small scale: two senders, two receivers and a few megabytes, with the zmove next to the lab's
//! program.

use std::process::{Command, Output};

use serde_json::Value;

use crate::{LAB, skip, zmove};

#[test]
fn two_nodes_are_set_against_one_and_drawn() {
    if is_skipped() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let drawing = place.path().join("scale.svg");
    let drawn = drawing.to_str().unwrap();
    let runs = scale(
        "20Mbit",
        &[
            "--data",
            "large:4x1MiB",
            "--methods",
            "one-sender,shares",
            "--svg",
            drawn,
        ],
    );
    assert_eq!(
        methods(&runs),
        [("single", 1), ("one-sender", 2), ("shares", 2)]
    );
    for run in runs {
        let number = |name: &str| {
            run[name]
                .as_f64()
                .unwrap_or_else(|| panic!("{name}: {run}"))
        };
        assert!(
            number("efficiency") > 0.0 && number("first_byte_seconds") < number("seconds"),
            "{run}"
        );
        assert!(
            number("wire_bytes") > number("bytes"),
            "what the links carry is counted: {run}"
        );
        // Allows 5 % for the tokens that a bucket has at the start.
        let links = 20e6 * 1.05 * number("nodes");
        assert!(
            number("bits_per_second") < links,
            "no link carries more than it can: {run}"
        );
    }
    assert!(
        std::fs::read_to_string(drawing)
            .unwrap()
            .contains("shares by hand")
    );
}

#[test]
fn clients_of_a_model_are_charged_for_what_they_take_from_each_other() {
    if is_skipped() {
        return;
    }
    let model = ["--model", "--model-extent", "1GiB"];
    let charges = |run: &Value, name: &str| {
        run["charges"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("{run}"))
    };
    let runs = scale(
        "20Mbit",
        &[
            &["--data", "losf-flat:200x1KiB", "--methods", "shares"],
            &model[..],
        ]
        .concat(),
    );
    assert_eq!(methods(&runs), [("single", 1), ("shares", 2)]);
    for run in &runs {
        assert!(
            charges(run, "entries") >= 200,
            "each file is an entry: {run}"
        );
        assert!(
            run["model"]
                .as_str()
                .unwrap()
                .contains("1 ms for 1048576 KiB"),
            "{run}"
        );
    }
    assert_eq!(
        charges(&runs[0], "entry_handovers"),
        0,
        "one client is alone: {}",
        runs[0]
    );
    assert!(
        charges(&runs[1], "entry_handovers") > 0,
        "two make files in one directory: {}",
        runs[1]
    );
    let runs = scale(
        "100Mbit",
        &[
            &["--data", "huge:1x64MiB", "--methods", "one-sender"],
            &model[..],
        ]
        .concat(),
    );
    assert_eq!(methods(&runs), [("single", 1), ("one-sender", 2)]);
    assert_eq!(
        charges(&runs[0], "extent_handovers"),
        0,
        "one client is alone: {}",
        runs[0]
    );
    assert!(
        charges(&runs[1], "extent_handovers") > 0,
        "two write to one extent: {}",
        runs[1]
    );
}

#[test]
fn fpsync_copies_by_a_worker_on_each_sender() {
    if is_skipped() {
        return;
    }
    if Command::new("fpsync").arg("-h").output().is_err() {
        return skip("there is no fpsync (package fpart)");
    }
    let runs = scale(
        "20Mbit",
        &["--data", "losf:2000x1KiB", "--methods", "fpsync"],
    );
    assert_eq!(methods(&runs), [("single", 1), ("fpsync", 2)]);
    let number = |name: &str| runs[1][name].as_f64().unwrap();
    assert!(
        number("wire_bytes") > number("bytes"),
        "what its one receiver's link carries: {}",
        runs[1]
    );
    assert!(
        number("cpu_seconds") > 0.0,
        "what its own processes take is counted: {}",
        runs[1]
    );
}

#[test]
fn one_node_is_no_second_base_and_a_number_that_is_named_twice_is_run_once() {
    if is_skipped() {
        return;
    }
    let runs = scale_of(
        "1,2,2",
        "20Mbit",
        &["--data", "large:1x1MiB", "--methods", "single,shares"],
    );
    assert_eq!(
        methods(&runs),
        [("single", 1), ("shares", 1), ("single", 2), ("shares", 2)]
    );
}

/// Returns the runs with two nodes and links of this rate. All runs must have succeeded.
fn scale(rate: &str, arguments: &[&str]) -> Vec<Value> {
    scale_of("2", rate, arguments)
}

fn scale_of(nodes: &str, rate: &str, arguments: &[&str]) -> Vec<Value> {
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new(LAB);
    command
        .args(["scale", "--nodes", nodes, "--rate", rate, "--json"])
        // Other cases run at the same time, and the figures do not matter.
        .args(["--settle", "0"])
        .args(arguments);
    let output = command
        .arg("--data-dir")
        .arg(place.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_str(&said).unwrap()
}

/// Returns the methods and the numbers of nodes of the runs, all of which must be correct.
fn methods(runs: &[Value]) -> Vec<(&str, u64)> {
    runs.iter()
        .for_each(|run| assert_eq!(run["verdict"], "right", "{run}"));
    runs.iter()
        .map(|run| {
            (
                run["method"].as_str().unwrap(),
                run["nodes"].as_u64().unwrap(),
            )
        })
        .collect()
}

/// Returns whether this machine cannot run these tests, and may skip them.
fn is_skipped() -> bool {
    let Err(reason) = can_run() else { return false };
    skip(&reason);
    true
}

/// Checks that this machine can create hosts with rate-limited links.
fn can_run() -> Result<(), String> {
    zmove()?;
    let mut hosts = Command::new(LAB);
    hosts.args([
        "hosts",
        "--rtt",
        "0",
        "--rate",
        "1Gbit",
        "--emulator",
        "tbf",
        "--",
        "true",
    ]);
    let Output { status, stderr, .. } = hosts
        .output()
        .map_err(|error| format!("the lab does not start: {error}"))?;
    let said = String::from_utf8_lossy(&stderr);
    if status.success() {
        Ok(())
    } else {
        Err(format!("two hosts cannot be made: {}", said.trim()))
    }
}
