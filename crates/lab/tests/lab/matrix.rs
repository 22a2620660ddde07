//! The four sites on a small scale: one direction and a data set of some kilobytes, with the zmove next to the lab's
//! program.

use std::path::Path;
use std::process::{Command, Output};

use crate::{LAB, skip, zmove};

#[test]
fn a_small_set_goes_from_one_site_to_another() {
    if let Err(reason) = can_run() {
        return skip(&reason);
    }
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new(LAB);
    command.args([
        "matrix",
        "--from",
        "durham,ral",
        "--to",
        "ral",
        "--data",
        "small",
        "--budget",
        "4MiB",
    ]);
    command.args([
        "--runs", "1", "--tools", "zmove", "--image", "320MiB", "--settle", "0", "--json", "--dir",
    ]);
    let output = command.arg(place.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    let cells = json["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 1, "{said}");
    assert_eq!(
        (&cells[0]["from"], &cells[0]["to"]),
        (&"Durham".into(), &"RAL".into())
    );
    assert!(
        cells[0]["megabytes_per_second"].as_f64().unwrap() > 0.0,
        "{said}"
    );
    assert_eq!(json["paths"].as_array().unwrap().len(), 6);
}

/// Checks that this machine can create hosts and mount an image.
fn can_run() -> Result<(), String> {
    zmove()?;
    if !Path::new("/dev/loop-control").exists() {
        return Err("there are no loop devices".to_owned());
    }
    let hosts = Command::new(LAB)
        .args(["hosts", "--rtt", "1", "--", "true"])
        .output();
    let Output { status, stderr, .. } =
        hosts.map_err(|error| format!("the lab does not start: {error}"))?;
    let said = String::from_utf8_lossy(&stderr);
    if status.success() {
        Ok(())
    } else {
        Err(format!("two hosts cannot be made: {}", said.trim()))
    }
}
